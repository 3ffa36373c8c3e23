"""Where the lab keeps what."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from node.ports import UnusableError


def warm_path(folder: Path, seed: int, swapped: bool, warm: int) -> Path:
    """Of the file of a warm state."""
    return folder / "warm" / f"seed-{seed}{'-swapped' if swapped else ''}-step-{warm}.safetensors"


def write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all. Raises `UnusableError(2)`."""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise UnusableError(2, f"cannot write {path} ({error.strerror}); free some space or choose another --work") from None
