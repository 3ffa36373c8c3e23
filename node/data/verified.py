"""What was verified before: a file with the same path, size, times and inode need not be hashed again."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import blake3

log = logging.getLogger(__name__)
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells cheaply whether a file is still the one that was verified."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        """From stat(2)."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def digest_of(path: Path) -> str:
    """blake3 of a file, hex. Raises `OSError`."""
    hasher = blake3.blake3()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


class Memory:
    """What was verified, kept in a small file. An unreadable or strange file counts as an empty one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def files(self) -> dict[str, tuple[Identity, str]]:
        """Absolute path -> (identity when it was verified, digest)."""
        out = {}
        for name, row in self._section("files").items():
            match row:
                case [int(size), int(mtime_ns), int(inode), str(digest)]:
                    out[name] = (Identity(size, mtime_ns, inode), digest)
        return out

    @cached_property
    def largest_ids(self) -> dict[str, int]:
        """'DIGEST DTYPE' -> largest token id."""
        return {key: value for key, value in self._section("largest_ids").items() if isinstance(value, int)}

    def _section(self, name: str) -> dict[str, Any]:
        try:
            section = json.loads(self._path.read_text(encoding="utf-8"))[name]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return section if isinstance(section, dict) else {}

    def save(self) -> None:
        """Replace the file; files that are gone are forgotten. A failure costs only time at the next start."""
        files = {n: [i.size, i.mtime_ns, i.inode, digest] for n, (i, digest) in self.files.items() if os.path.exists(n)}
        text = json.dumps({"files": files, "largest_ids": self.largest_ids})
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            log.warning("cannot remember in %s that data was verified: %s", self._path.parent, error.strerror)
