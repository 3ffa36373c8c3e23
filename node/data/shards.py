"""Writing token shards: content-addressed files `DIGEST.tokens` of bounded size, each complete or absent."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

import blake3
import numpy as np
import numpy.typing as npt

from protocol.manifest import FileRef, TokenShard

DType = Literal["uint16", "uint32"]


class ShardWriter:
    """Tokens in, shards out. A context manager; `close` gives the shards. Raises `OSError`.

    The unfinished shard is PARTIAL in the folder; it is removed at the end, and overwritten where a killed program left one."""

    def __init__(self, folder: Path, partial: str, dtype: DType, max_shard_bytes: int) -> None:
        self.num_tokens = 0
        self._folder = folder
        self._partial = folder / partial
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._max_tokens = max(1, max_shard_bytes // self._dtype.itemsize)
        self._shards: list[TokenShard] = []
        self._file: IO[bytes] | None = None
        self._hasher = blake3.blake3()
        self._size = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # closing writes what is buffered: nobody needs it
                self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, ids: npt.NDArray[np.uint32]) -> None:
        """The next tokens; all of them fit the dtype."""
        while len(ids):
            room = self._max_tokens - self._size
            self._append(ids[:room].astype(self._dtype).tobytes(), len(ids[:room]))
            ids = ids[room:]
            if self._size == self._max_tokens:
                self._finish_shard()

    def close(self) -> tuple[TokenShard, ...]:
        """All tokens are written. The sources of the shards are relative to the folder."""
        if self._size:
            self._finish_shard()
        return tuple(self._shards)

    def _append(self, data: bytes, count: int) -> None:
        if self._file is None:
            self._file = self._partial.open("wb")
        self._file.write(data)
        self._hasher.update(data)
        self._size += count
        self.num_tokens += count

    def _finish_shard(self) -> None:
        assert self._file is not None, "a shard with tokens has a file"
        digest = self._hasher.hexdigest()
        name = f"{digest}.tokens"
        publish(self._file, self._partial, self._folder / name)
        size = self._size * self._dtype.itemsize
        self._shards.append(TokenShard(digest=digest, num_bytes=size, sources=(name,), num_tokens=self._size))
        self._file, self._hasher, self._size = None, blake3.blake3(), 0


def write_file(path: Path, data: bytes) -> FileRef:
    """Replace a file at once; the source of the result is relative to its folder. Raises `OSError`."""
    partial = path.with_name(f".{path.name}.partial")
    publish(partial.open("wb"), partial, path, data)
    return FileRef(digest=blake3.blake3(data).hexdigest(), num_bytes=len(data), sources=(path.name,))


def publish(file: IO[bytes], partial: Path, path: Path, data: bytes = b"") -> None:
    """Write the rest, make it durable, and give the file its name."""
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
