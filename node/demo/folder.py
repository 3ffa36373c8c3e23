"""Where a demo keeps its files: a temporary folder that goes with it, or the user's own with --keep."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.ports import UnusableError

PREFIX = "regrow-demo-"


@contextmanager
def demo_folder(keep: Path | None) -> Iterator[Path]:
    """The folder; a temporary one is removed on the way out, and so are those of demos that were killed."""
    if keep is not None:
        yield _kept(keep)
        return
    remove_stale()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale() -> None:
    """Remove folders that a killed demo of this user left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
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
