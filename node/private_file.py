"""Files with secrets: readable by their owner only, complete or absent, never replaced.

Errors are `UnusableError(2)` with one line that names the file and what to do.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from node.ports import UnusableError
from node.state_store import TEMP_PREFIX

MAX_BYTES = 64 * 1024
BAD_USE = 2


def unusable(path: Path, error: OSError, doing: str) -> UnusableError:
    """The one line for what the operating system refused."""
    return UnusableError(BAD_USE, f"cannot {doing} {path}: {error.strerror or error}")


def read_private(path: Path, what: str) -> bytes:
    """All bytes of the file. Refused: unreadable, empty, longer than 64 KiB, open to other users."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(MAX_BYTES + 1)
    except OSError as error:
        raise unusable(path, error, f"read the {what} file") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UnusableError(
            BAD_USE,
            f"the {what} file {path} is open to other users (mode {stat.S_IMODE(mode):o}): run `chmod 600 {path}`",
        )
    if not data:
        raise broken(path, what, "is empty")
    if len(data) > MAX_BYTES:
        raise broken(path, what, "is too long")
    return data


def broken(path: Path, what: str, how: str) -> UnusableError:
    """The one line for a file whose contents are lost."""
    return UnusableError(
        BAD_USE, f"the {what} file {path} {how}: restore it from a copy, or move it away to start with a new one"
    )


def create_private(path: Path, data: bytes, what: str) -> None:
    """A new file of mode 0600, on disk when this returns. Refused if there is something of that name."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{TEMP_PREFIX}{os.getpid()}-{path.name}-") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.link(file.name, path)
        sync_folder(path.parent)
    except FileExistsError:
        raise UnusableError(BAD_USE, f"the {what} file {path} exists already and is not replaced") from None
    except OSError as error:
        raise unusable(path, error, f"create the {what} file") from None


def sync_folder(folder: Path) -> None:
    """Put renames and new names in the folder on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
