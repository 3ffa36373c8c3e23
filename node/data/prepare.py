"""`data prepare`: text in, a folder with token shards, tokenizer.json and data.json out.

data.json is the data section of a manifest, its sources relative to the folder. The same input and options give the same
digests. The text is streamed twice (once to train a tokenizer, once to encode); memory stays bounded by a batch of pieces.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from node.data.documents import Findings, Input, Piece
from node.data.shards import DType, ShardWriter, write_file
from node.data.tokenizer import chosen, load_tokenizer, separator_id, train_tokenizer, vocab_size_of
from node.ports import UnusableError
from protocol.manifest import DataSection

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_PIECES = 64
MIN_HELD_OUT_TOKENS = 1024
LAG_TOKENS = 4096
Ids = npt.NDArray[np.uint32]
PrepareProgress = Callable[[str, int, int], None]
"""(phase: 'tokenizer' or 'encode', bytes done, bytes in all or 0 where that is not known)"""


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """How to turn text into tokens."""

    vocab_size: int = 8192
    """Tokens of the BPE to train; not used with `tokenizer`."""
    tokenizer: Path | None = None
    """A tokenizer.json to use as it is."""
    separator: str | None = None
    """Token between documents; None = the first well-known one that the tokenizer has."""
    validation_fraction: float = 0.02
    """Share of the documents that is held out; 0 = nothing."""
    max_shard_bytes: int = 64 << 20
    skip_bad: bool = False
    """Leave bad places out and count them, where the default is to refuse the input."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made. `notes` are sentences for the user."""

    section: DataSection
    folder: Path
    vocab_size: int
    num_train_tokens: int
    num_validation_tokens: int
    num_bad: int
    notes: tuple[str, ...]

    @property
    def data_file(self) -> Path:
        """The data.json."""
        return self.folder / "data.json"


def prepare(
    source: Input, folder: Path, options: PrepareOptions | None = None, progress: PrepareProgress | None = None
) -> Prepared:
    """Write shards, tokenizer.json and data.json into `folder` (made if need be; the data.json comes last).

    Raises `UnusableError(2)` for bad input, a bad tokenizer, a full disk."""
    options = options or PrepareOptions()
    if not 0 <= options.validation_fraction < 1:
        raise UnusableError(2, f"validation share {options.validation_fraction} must be at least 0 and less than 1")
    total = source.num_bytes()
    try:
        with _locked(folder):
            return _prepare(source, folder, options, _Reporter(progress, total))
    except OSError as error:
        raise UnusableError(
            2, f"cannot write to {folder} ({error.strerror}); free some space or choose another folder"
        ) from None


class _Reporter:
    """Passes on how many bytes were read."""

    def __init__(self, progress: PrepareProgress | None, total: int) -> None:
        self.total = total
        self._progress = progress

    def phase(self, name: str) -> Callable[[int], None]:
        """What to call with the number of bytes just read."""
        done = 0

        def read(count: int) -> None:
            nonlocal done
            done += count
            if self._progress:
                self._progress(name, done, self.total)

        return read


def _prepare(source: Input, folder: Path, options: PrepareOptions, reporter: _Reporter) -> Prepared:
    if options.tokenizer is not None:
        tokenizer = load_tokenizer(options.tokenizer)
        tokenizer_bytes = options.tokenizer.read_bytes()
    else:
        findings = Findings(options.skip_bad, on_bytes=reporter.phase("tokenizer"))
        texts = (piece.text for piece in source.pieces(findings))
        tokenizer = train_tokenizer(texts, reporter.total, options.vocab_size)
        tokenizer_bytes = tokenizer.to_str(pretty=True).encode()
    end = separator_id(tokenizer, options.separator)
    findings = Findings(options.skip_bad, on_bytes=reporter.phase("encode"))
    size = vocab_size_of(tokenizer)
    dtype: DType = "uint16" if size <= 1 << 16 else "uint32"
    with ExitStack() as stack:
        train, held_out = (
            stack.enter_context(ShardWriter(folder, f".{name}.partial", dtype, options.max_shard_bytes))
            for name in ("train", "validation")
        )
        splitter = _Splitter(train, held_out, end, options.validation_fraction)
        for piece, ids in _encoded(source.pieces(findings), tokenizer):
            splitter.add(piece, ids)
        splitter.finish()
        if not train.num_tokens:
            raise UnusableError(2, "there is no text in the input; nothing was written")
        section = DataSection(
            dtype=dtype,
            train=train.close(),
            validation=held_out.close(),
            tokenizer=write_file(folder / "tokenizer.json", tokenizer_bytes),
        )
    write_file(folder / "data.json", (json.dumps(section.model_dump(mode="json"), indent=2) + "\n").encode())
    return Prepared(section, folder, size, train.num_tokens, held_out.num_tokens, findings.num_bad, tuple(findings.notes))


def _encoded(pieces: Iterator[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Piece, Ids]]:
    while batch := list(islice(pieces, BATCH_PIECES)):
        encodings = tokenizer.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)
        for piece, encoding in zip(batch, encodings, strict=True):
            yield piece, np.array(encoding.ids, np.uint32)


class _Splitter:
    """Sends each document to training or held-out text, by the hash of its text; of a long document each piece.

    The last tokens for training lag behind in memory: where the hash held out (almost) nothing, as with a single small
    document, the end of the training text, a tenth at most, is held out."""

    def __init__(self, train: ShardWriter, held_out: ShardWriter, end: int, fraction: float) -> None:
        self._train = train
        self._held_out = held_out
        self._end = np.array([end], np.uint32)
        self._fraction = fraction
        self._lag = np.empty(0, np.uint32)
        self._any = False
        self._open: bool | None = None
        """Side that has an unfinished document: True = held out."""

    def add(self, piece: Piece, ids: Ids) -> None:
        """The next piece."""
        if len(ids):
            side = self._any and chosen(piece.text, self._fraction)
            if self._open is not None and self._open != side:
                self._write(self._open, self._end)
            self._write(side, ids)
            self._any, self._open = True, side
        if piece.last and self._open is not None:
            self._write(self._open, self._end)
            self._open = None

    def finish(self) -> None:
        """There is no more text."""
        total = self._train.num_tokens + len(self._lag)
        wanted = min(len(self._lag), total // 10)
        keep = len(self._lag)
        if self._fraction and self._held_out.num_tokens < min(MIN_HELD_OUT_TOKENS, wanted):
            keep -= wanted
        self._train.write(self._lag[:keep])
        self._held_out.write(self._lag[keep:])

    def _write(self, held_out: bool, ids: Ids) -> None:
        if held_out:
            self._held_out.write(ids)
            return
        lag = np.concatenate([self._lag, ids])
        flush = max(0, len(lag) - LAG_TOKENS)
        self._train.write(lag[:flush])
        self._lag = lag[flush:]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two programs that prepare into one folder take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
