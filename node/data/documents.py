"""Documents from text files, JSONL files and Hugging Face datasets, as a stream of pieces of bounded size.

Text is kept byte for byte (CR LF too), apart from a byte order mark at the start of a file, which is dropped. A text file is
one document, or several with the separator `<|endoftext|>` between them. A document that is longer than `PIECE_CHARS` comes in
several pieces, cut after a line where possible. Bad input (invalid UTF-8, NUL, a line that is no JSON object with the field) is
refused with file and position; with `skip_bad` the bad bytes of a text file, or the bad line of a JSONL file, are left out and
counted.
"""

from __future__ import annotations

import codecs
import json
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.ports import UnusableError

SEPARATOR = "<|endoftext|>"
PIECE_CHARS = 1 << 16
READ_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
MAX_NOTES = 20
JSONL_SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a document; `last` where the document ends with it."""

    text: str
    last: bool


@dataclass(slots=True)
class Findings:
    """What was noticed about the input. `notes` holds the first sentences only; `num_bad` counts all that was left out."""

    skip_bad: bool = False
    num_bad: int = 0
    notes: list[str] = field(default_factory=list)
    on_bytes: Callable[[int], None] = lambda _: None
    """Called with the number of bytes just read."""

    def note(self, sentence: str) -> None:
        """Something worth saying once."""
        if len(self.notes) < MAX_NOTES and sentence not in self.notes:
            self.notes.append(sentence)

    def bad(self, where: str, what: str) -> None:
        """Count it and go on, or raise `UnusableError`."""
        if not self.skip_bad:
            raise UnusableError(2, f"{where}: {what}; mend the file or leave such places out with --skip-bad")
        self.num_bad += 1
        self.note(f"{where}: {what}; left out")


@dataclass(frozen=True, slots=True)
class Input:
    """What to read: files, or one dataset of the Hugging Face hub as NAME or NAME:CONFIG."""

    files: tuple[Path, ...] = ()
    dataset: str | None = None
    split: str = "train"
    field: str = "text"

    def num_bytes(self) -> int:
        """Size of the files, 0 for a dataset. Raises `UnusableError` for a file that cannot be read or is empty."""
        return sum(_checked_size(path) for path in self.files)

    def pieces(self, findings: Findings) -> Iterator[Piece]:
        """All documents, in order; the same ones each time. Raises `UnusableError`."""
        for path in self.files:
            if path.suffix.lower() in JSONL_SUFFIXES:
                yield from _jsonl_pieces(path, self.field, findings)
            else:
                yield from _text_pieces(path, findings)
        if self.dataset is not None:
            yield from _dataset_pieces(self.dataset, self.split, self.field, findings)


def _checked_size(path: Path) -> int:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UnusableError(2, f"{path} is a directory; name the files in it: {path}/*.txt")
        if not stat.S_ISREG(status.st_mode):
            raise UnusableError(2, f"{path} is not a regular file; copy its contents into one")
        with path.open("rb") as file:
            if file.read(4) in (b"", codecs.BOM_UTF8):
                raise UnusableError(2, f"{path} is empty; leave it out or give a file with text")
        return status.st_size
    except FileNotFoundError:
        raise UnusableError(2, f"{path}: there is no such file") from None
    except OSError as error:
        raise UnusableError(2, f"{path} cannot be read ({error.strerror}); check its permissions and its disk") from None


# ---- text files ----


def _text_pieces(path: Path, findings: Findings) -> Iterator[Piece]:
    margin = PIECE_CHARS + len(SEPARATOR) + 2
    buffer = ""
    for text in _decoded(path, findings):
        buffer += text
        while len(buffer) > margin:
            piece, buffer = _first_piece(buffer)
            yield piece
    while buffer:
        piece, buffer = _first_piece(buffer)
        yield piece


def _first_piece(buffer: str) -> tuple[Piece, str]:
    """(piece, rest): up to a separator, else `PIECE_CHARS` at most, else all as the end of the document."""
    at = buffer.find(SEPARATOR, 0, PIECE_CHARS + len(SEPARATOR))
    if at >= 0:
        rest = buffer[at + len(SEPARATOR) :]
        return Piece(_without_newline(buffer[:at]), True), rest.removeprefix("\r").removeprefix("\n")
    if len(buffer) <= PIECE_CHARS:
        return Piece(buffer, True), ""
    cut = _cut(buffer)
    return Piece(buffer[:cut], False), buffer[cut:]


def _without_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _cut(text: str) -> int:
    """Where to end a piece: after a line, else before a blank, in the second half of what is allowed."""
    at = text.rfind("\n", PIECE_CHARS // 2, PIECE_CHARS)
    if at >= 0:
        return at + 1
    at = text.rfind(" ", PIECE_CHARS // 2, PIECE_CHARS)
    return at if at >= 0 else PIECE_CHARS


def _decoded(path: Path, findings: Findings) -> Iterator[str]:
    """The text of a file, a block at a time."""
    position, tail = 0, b""
    try:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                findings.on_bytes(len(block))
                if position == 0 and not tail and block.startswith(codecs.BOM_UTF8):
                    findings.note(f"{path} starts with a byte order mark; it is not part of the text")
                    position, block = 3, block[3:]
                text, used = _decode(path, tail + block, position, False, findings)
                tail, position = (tail + block)[used:], position + used
                yield text
            yield _decode(path, tail, position, True, findings)[0]
    except OSError as error:
        raise UnusableError(2, f"{path} cannot be read ({error.strerror}); check the file and its disk") from None


def _decode(path: Path, data: bytes, position: int, final: bool, findings: Findings) -> tuple[str, int]:
    """(text, number of bytes used): all of `data` but a character that may go on in the next block."""
    parts, start, view = [], 0, memoryview(data)
    while True:
        try:
            text, used = codecs.utf_8_decode(view[start:], "strict", final)
        except UnicodeDecodeError as error:
            at = start + error.start
            parts.append(_without_nul(path, str(view[start:at], "utf-8"), position + start, findings))
            hint = _utf16_hint(data[:2], position)
            findings.bad(f"{path}: byte {position + at}", f"0x{data[at]:02x} is not valid UTF-8{hint}")
            start += error.end
        else:
            parts.append(_without_nul(path, text, position + start, findings))
            return "".join(parts), start + used


def _without_nul(path: Path, text: str, position: int, findings: Findings) -> str:
    at = text.find("\0")
    while at >= 0:
        findings.bad(f"{path}: byte {position + len(text[:at].encode())}", "a NUL byte is not text")
        at = text.find("\0", at + 1)
    return text.replace("\0", "")


def _utf16_hint(start: bytes, position: int) -> str:
    is_utf16 = position == 0 and start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return " (the file looks like UTF-16: convert it with `iconv -f utf-16 -t utf-8`)" if is_utf16 else ""


# ---- JSONL files and datasets ----


def _jsonl_pieces(path: Path, name: str, findings: Findings) -> Iterator[Piece]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                findings.on_bytes(len(line))
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line.strip():
                    continue
                text = _line_text(line, name)
                if isinstance(text, _Bad):
                    findings.bad(f"{path}: line {number}", text.what)
                else:
                    yield from _cut_up(text)
    except OSError as error:
        raise UnusableError(2, f"{path} cannot be read ({error.strerror}); check the file and its disk") from None


@dataclass(frozen=True, slots=True)
class _Bad:
    what: str


def _line_text(line: bytes, name: str) -> str | _Bad:
    if len(line) == MAX_LINE_BYTES:
        return _Bad(f"is longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        return _Bad(f"byte {error.start} of the line is not valid UTF-8")
    except (ValueError, RecursionError) as error:
        return _Bad(f"is not JSON ({error})")
    if not isinstance(row, dict):
        return _Bad("is not a JSON object")
    return _row_text(row, name)


def _row_text(row: Mapping[str, Any], name: str) -> str | _Bad:
    if name not in row:
        return _Bad(f"has no field {name!r} (choose one with --field: {', '.join(map(str, list(row)[:8]))})")
    text = row[name]
    if not isinstance(text, str):
        return _Bad(f"field {name!r} is {type(text).__name__}, not text")
    if "\0" in text:
        return _Bad(f"field {name!r} has a NUL character at {text.index(chr(0))}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return _Bad(f"field {name!r} has half of a surrogate pair at {error.start}")
    return text


def _cut_up(text: str) -> Iterator[Piece]:
    while len(text) > PIECE_CHARS:
        cut = _cut(text)
        yield Piece(text[:cut], False)
        text = text[cut:]
    yield Piece(text, True)


def _dataset_pieces(name: str, split: str, column: str, findings: Findings) -> Iterator[Piece]:
    for number, row in enumerate(_dataset_rows(name, split)):
        text = _row_text(row, column)
        if isinstance(text, _Bad):
            findings.bad(f"dataset {name}, split {split}: row {number}", text.what)
        else:
            findings.on_bytes(len(text))
            yield from _cut_up(text)


def _dataset_rows(name: str, split: str) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise UnusableError(2, f"reading the dataset {name} needs one more package: pip install 'regrow[datasets]'") from None
    path, _, config = name.partition(":")
    try:
        yield from datasets.load_dataset(path, config or None, split=split, streaming=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UnusableError(2, f"the dataset {name} (split {split}) cannot be read: {reason}") from None


def input_of(files: Sequence[Path | str], dataset: str | None, split: str, column: str) -> Input:
    """An `Input`. Raises `UnusableError` where there is nothing to read."""
    if not files and dataset is None:
        raise UnusableError(2, "there is nothing to prepare: name text or JSONL files, or a dataset")
    return Input(tuple(map(Path, files)), dataset, split, column)
