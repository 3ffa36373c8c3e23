"""Files of a node under its state directory: each is there as a whole or not at all.

A write goes to a temporary file in the same directory, is fsynced and renamed over the old one. A kill in
between leaves the old file and one temporary, which the next start removes. Errors are `UnusableError(2)`
naming the path and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from node.ports import UnusableError

TEMP_PREFIX = ".tmp-"
PROBE = "write-probe"


class DirectoryStore:
    """The `StateStore` of a node: one directory, no subdirectories."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def open(cls, directory: Path) -> DirectoryStore:
        """Make the directory if missing, check that it can be written and remove stale temporaries."""
        store = cls(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for temporary in directory.glob(f"{TEMP_PREFIX}*"):
                if _is_stale(temporary):
                    temporary.unlink(missing_ok=True)
            store._replace(PROBE, b"")
            store.path(PROBE).unlink(missing_ok=True)
        except OSError as error:
            raise _unusable(directory, error) from error
        return store

    def path(self, name: str) -> Path:
        """Where a file of this name lies or would lie."""
        assert name == Path(name or "?").name, f"not a plain file name: {name!r}"
        assert not name.startswith("."), f"reserved for temporaries: {name!r}"
        return self.directory / name

    def read(self, name: str) -> bytes | None:
        """Contents, or None where there is no such file."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self.path(name), error) from error

    def write(self, name: str, data: bytes) -> None:
        """Replace the file atomically; on an error the old contents stay."""
        try:
            self._replace(name, data)
        except OSError as error:
            raise _unusable(self.directory, error) from error

    def _replace(self, name: str, data: bytes) -> None:
        target = self.path(name)
        temporary = self.directory / f"{TEMP_PREFIX}{os.getpid()}-{name}-{secrets.token_hex(4)}"
        try:
            _write_synced(temporary, data)
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_directory(self.directory)


def _is_stale(temporary: Path) -> bool:
    """Its writer is gone, or had the process id that is ours now."""
    writer = temporary.name.removeprefix(TEMP_PREFIX).partition("-")[0]
    return writer == str(os.getpid()) or not Path("/proc", writer).exists()


def _write_synced(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


ADVICE = {
    errno.ENOSPC: "free some space or choose another --state-dir",
    errno.EDQUOT: "free some space or choose another --state-dir",
    errno.ENOENT: "it was removed; make it again or choose another --state-dir",
    errno.EROFS: "choose a --state-dir on a file system that can be written",
    errno.EACCES: "give this user write permission or choose another --state-dir",
    errno.EPERM: "give this user write permission or choose another --state-dir",
}


def _unusable(path: Path, error: OSError) -> UnusableError:
    advice = ADVICE.get(error.errno or 0, "choose another --state-dir")
    return UnusableError(2, f"cannot use the state directory {path}: {error.strerror}; {advice}")
