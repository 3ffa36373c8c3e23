"""Token shards as samples: the `TokenSource` of the stage executor.

Shapes: N samples of a microbatch, T + 1 tokens of a sample. A shard is opened and read for each use: that costs some
microseconds of page cache, keeps no descriptor, and a file that is cut off meanwhile gives a short read, where a memory map
would kill the process.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from node.data.files import BlobFiles, Progress, named_shards
from node.data.verified import Identity
from node.ports import UnusableError
from protocol.manifest import Manifest, TokenShard
from protocol.sampling import Sample, check_data, train_samples, validation_samples

log = logging.getLogger(__name__)
SCAN_TOKENS = 1 << 20
Tokens = npt.NDArray[np.int64]


class ShardFile:
    """One verified token shard. A file that changes is verified again before it is used."""

    def __init__(self, blobs: BlobFiles, shard: TokenShard, what: str, dtype: str, vocab_size: int) -> None:
        self.num_tokens = shard.num_tokens
        self._blobs = blobs
        self._shard = shard
        self._what = what
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._vocab_size = vocab_size
        self._path = Path()
        self._identity = Identity(0, 0, 0)

    def open(self, progress: Progress | None = None) -> None:
        """Find, verify and check the shard. Raises `UnusableError`."""
        self._path = self._blobs.obtain(self._shard, self._what, progress)
        self._identity = self._blobs.identity(self._path)
        self._check_ids()
        self._blobs.keep(self._shard)

    def read(self, first: int, count: int) -> Tokens:
        """Tokens first..first+count. Raises `UnusableError` if the file is no longer what was verified."""
        data = self._bytes(first, count)
        if data is None:
            log.warning("%s %s changed while the node was running; verifying it again", self._what, self._path)
            try:
                self.open()
            except UnusableError as error:
                raise UnusableError(2, f"{self._path} was replaced while the node was running: {error}") from None
            data = self._bytes(first, count)
        if data is None:
            raise UnusableError(2, f"{self._what} {self._path} keeps changing; keep data out of the way of other programs")
        return np.frombuffer(data, self._dtype).astype(np.int64)

    def _bytes(self, first: int, count: int) -> bytes | None:
        size = self._dtype.itemsize
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block
        except OSError:
            return None
        try:
            if Identity.of(os.fstat(descriptor)) != self._identity:
                return None
            data = os.pread(descriptor, count * size, first * size)
        except OSError as error:
            raise UnusableError(2, f"{self._what} {self._path} cannot be read ({error.strerror}); check the disk") from None
        finally:
            os.close(descriptor)
        return data if len(data) == count * size else None

    def _check_ids(self) -> None:
        """Every id, a million at a time; the largest one is remembered, so that a restart need not look again."""
        known = self._blobs.largest_id(self._shard.digest, self._dtype.name)
        if known is not None and known < self._vocab_size:
            return
        largest = 0
        for first in range(0, self.num_tokens, SCAN_TOKENS):
            data = self._bytes(first, min(SCAN_TOKENS, self.num_tokens - first))
            if data is None:
                raise UnusableError(2, f"{self._what} {self._path} changed while it was checked; start again")
            ids = np.frombuffer(data, self._dtype)
            largest = max(largest, int(ids.max()))
            if largest >= self._vocab_size:
                raise UnusableError(2, self._bad_id(first, ids))
        self._blobs.remember_largest_id(self._shard.digest, self._dtype.name, largest)

    def _bad_id(self, first: int, ids: npt.NDArray[np.unsignedinteger]) -> str:
        at = int(np.argmax(ids >= self._vocab_size))
        place = first + at
        return (
            f"{self._what} {self._path}: token {place} (byte {place * self._dtype.itemsize}) has id {ids[at]}, but"
            f" model.vocab_size is {self._vocab_size}; use the tokenizer that the run was set up for, or a larger"
            " model.vocab_size in a new run"
        )


class Text:
    """The concatenation of shards."""

    def __init__(self, shards: Sequence[ShardFile]) -> None:
        self._shards = shards
        self._starts = [0, *accumulate(shard.num_tokens for shard in shards)]

    def read(self, first: int, count: int) -> Tokens:
        """Tokens first..first+count of the concatenation."""
        parts = []
        while count:
            i = bisect_right(self._starts, first) - 1
            part = min(count, self._starts[i + 1] - first)
            parts.append(self._shards[i].read(first - self._starts[i], part))
            first, count = first + part, count - part
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class TokenStore:
    """Samples of a run. Reads may come from any thread."""

    def __init__(self, manifest: Manifest, train: Text, validation: Text) -> None:
        self._manifest = manifest
        self._train = train
        self._validation = validation

    def microbatch(self, step: int, microbatch: int) -> Tokens:
        """[N, T + 1] tokens of a training microbatch; steps count from 1. Raises `UnusableError` if the data went away."""
        return self._rows(self._train, train_samples(self._manifest, step, microbatch))

    def validation(self, microbatch: int) -> Tokens:
        """[N, T + 1] tokens of a held-out microbatch, the same at every evaluation."""
        return self._rows(self._validation, validation_samples(self._manifest, microbatch))

    def _rows(self, text: Text, samples: list[Sample]) -> Tokens:
        count = self._manifest.batch.context_tokens + 1
        return np.stack([text.read(sample.first_token, count) for sample in samples])


def open_token_store(manifest: Manifest, blobs: BlobFiles, progress: Progress | None = None) -> TokenStore:
    """Find (URLs: download), verify and check every shard of the run; `progress` gets bytes of all shards.

    Raises `UnusableError(2)` with one line for the first shard that is missing, unreadable, truncated, another file than the
    manifest's, or has an id outside of the vocabulary, and for a data section that contradicts itself."""
    try:
        check_data(manifest)
    except ValueError as error:
        raise UnusableError(2, str(error)) from None
    total = sum(shard.num_bytes for _, shard in named_shards(manifest))
    done = 0
    files = []
    for what, shard in named_shards(manifest):
        file = ShardFile(blobs, shard, what, manifest.data.dtype, manifest.model.vocab_size)
        file.open(_from(done, total, progress) if progress else None)
        files.append(file)
        done += shard.num_bytes
        if progress:
            progress(done, total)
    _offer_tokenizer(manifest, blobs)
    num_train = len(manifest.data.train)
    return TokenStore(manifest, Text(files[:num_train]), Text(files[num_train:]))


def _from(done: int, total: int, progress: Progress) -> Progress:
    return lambda part, _: progress(done + part, total)


def _offer_tokenizer(manifest: Manifest, blobs: BlobFiles) -> None:
    """Training needs no tokenizer; where it is intact it can be served to peers."""
    if manifest.data.tokenizer is not None:
        try:
            blobs.find(manifest.data.tokenizer, "data.tokenizer:")
        except UnusableError as error:
            log.warning("%s", error)
