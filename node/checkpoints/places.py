"""Where saved stages lie: a directory that all nodes see, or an object store by its fsspec URL.

A `Place` holds files by plain names. A write is whole or absent in a directory: it goes to a temporary file, is fsynced and
renamed. An object store shows an object when its upload ends; one that was cut short is told by its size (`store`). Errors are
`PlaceError` with a sentence that names the place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from node.data.remote import OBJECT_STORES, is_url, path_of_file_url

TEMP_PREFIX = ".tmp-"
STALE_S = 3600.0
"""A temporary of another machine, whose processes cannot be seen from here, is given up after so long."""


class PlaceError(Exception):
    """The place cannot be read or written now; the sentence says why."""


class Place(Protocol):
    """Calls block; each may raise `PlaceError`."""

    where: str
    """For people."""

    def sizes(self) -> dict[str, int]:
        """All whole files, and their sizes in bytes."""

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """Put a file there, and return its size. What `parts` raises ends the write without a file."""

    def read(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """The file, from its beginning."""

    def remove(self, name: str) -> None:
        """It is gone afterwards; that it is gone already is fine."""


class DirectoryPlace:
    """A directory, made when the first file is written. Nodes on other machines need to see the same one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.where = str(directory)

    def sizes(self) -> dict[str, int]:
        """See `Place`."""
        found: dict[str, int] = {}
        with self._told("read"), contextlib.suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file() and not entry.name.startswith("."):
                        found[entry.name] = entry.stat().st_size
        return found

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """See `Place`. Temporaries of writers that are gone are removed first: they may be what fills the disk."""
        with self._told("written"):
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            self._tidy()
            temporary = self._directory / f"{TEMP_PREFIX}{os.getpid()}.{socket.gethostname()}.{secrets.token_hex(4)}"
            try:
                size = _write_synced(temporary, parts)
                temporary.replace(self._directory / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
            _sync(self._directory)
        return size

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """See `Place`."""
        with self._told("read"), (self._directory / name).open("rb") as file:
            yield file

    def remove(self, name: str) -> None:
        """See `Place`."""
        with self._told("written"):
            (self._directory / name).unlink(missing_ok=True)

    def _tidy(self) -> None:
        for temporary in self._directory.glob(f"{TEMP_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if _is_given_up(temporary):
                    temporary.unlink()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PlaceError(f"{self._directory} cannot be {what}: {error.strerror or error}") from None


def _is_given_up(temporary: Path) -> bool:
    pid, _, rest = temporary.name.removeprefix(TEMP_PREFIX).partition(".")
    if rest.rpartition(".")[0] == socket.gethostname():
        return not Path("/proc", pid).exists()
    return time.time() - temporary.stat().st_mtime > STALE_S


def _write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    fd, size = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), 0
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            size += len(view)
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    return size


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class ObjectPlace:
    """A prefix of an object store. `fs` is an fsspec file system; its errors are whatever its library raises."""

    def __init__(self, fs: Any, prefix: str, where: str) -> None:
        self._fs, self._prefix, self.where = fs, prefix.rstrip("/"), where

    def sizes(self) -> dict[str, int]:
        """See `Place`."""
        with self._told("read"):
            self._fs.invalidate_cache()
            try:
                rows = self._fs.ls(self._prefix, detail=True)
            except FileNotFoundError:
                return {}
            return {row["name"].rpartition("/")[2]: int(row["size"]) for row in rows if row["type"] == "file"}

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """See `Place`."""
        size, path = 0, f"{self._prefix}/{name}"
        with self._told("written"):
            self._fs.makedirs(self._prefix, exist_ok=True)
            try:
                with self._fs.open(path, "wb") as file:
                    for part in parts:
                        size += len(memoryview(part).cast("B"))
                        file.write(part)
            except BaseException:  # what was written until then is an object by now
                with contextlib.suppress(OSError, ValueError):
                    self._fs.rm(path)
                raise
        return size

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """See `Place`."""
        with self._told("read"), self._fs.open(f"{self._prefix}/{name}", "rb") as file:
            yield file

    def remove(self, name: str) -> None:
        """See `Place`."""
        with self._told("written"), contextlib.suppress(FileNotFoundError):
            self._fs.rm(f"{self._prefix}/{name}")

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise PlaceError(f"{self.where} cannot be {what}: {error}") from None


def open_place(store: str, run_id: str) -> Place:
    """Where the run's saved stages lie in a store that is a path or a URL. `ValueError` where it is neither, or needs a package
    that is not here. Nothing is written or asked yet."""
    path = path_of_file_url(store) if is_url(store) else Path(store)
    if path is not None:
        return DirectoryPlace(path.expanduser() / run_id)
    scheme = store.partition("://")[0]
    if scheme not in OBJECT_STORES:
        raise ValueError(f"{scheme}: is not supported; use a path, file: or {', '.join(OBJECT_STORES)}")
    import fsspec

    try:
        fs, prefix = fsspec.core.url_to_fs(store)
    except ImportError as error:
        raise ValueError(f"{scheme}: needs a package that is not installed ({error})") from None
    return ObjectPlace(fs, f"{prefix}/{run_id}", f"{store}/{run_id}")
