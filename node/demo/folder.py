"""Where a demo keeps its files: a temporary folder that goes with it, or the user's own with --keep."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.ports import UnusableError

PREFIX = "regrow-demo-"
MAX_PLACE_CHARS = 32


@dataclass(frozen=True, slots=True)
class Folders:
    """`files`: manifest, data, state directories. `scratch`: TMPDIR of the nodes, always temporary."""

    files: Path
    scratch: Path


@contextmanager
def demo_folders(keep: Path | None) -> Iterator[Folders]:
    """The folders; temporary ones are removed on the way out, and so are those of demos that were killed."""
    kept = _kept(keep) if keep is not None else None
    remove_stale()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_place()))
    scratch = folder / "tmp"
    scratch.mkdir()
    try:
        yield Folders(kept or folder, scratch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _place() -> str:
    """The temporary directory, or /tmp where its name is too long for sockets inside."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= MAX_PLACE_CHARS or not os.access("/tmp", os.W_OK) else "/tmp"


def remove_stale() -> None:
    """Remove folders that a killed demo of this user left behind."""
    for folder in Path(_place()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        try:
            mine = folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
        except OSError:
            continue
        if mine and pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _kept(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise UnusableError(2, f"--keep {folder}: {error.strerror}") from None
    if occupied:
        raise UnusableError(2, f"--keep {folder} is not empty; name a new folder")
    return folder.resolve()
