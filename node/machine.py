"""What this machine has left: memory that a new process may use, room on a disk."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_memory(proc: Path = Path("/proc"), cgroup: Path = CGROUP) -> int:
    """Bytes that can be taken without swapping, by the kernel's estimate and within the limits of the cgroups that this process
    is in; 0 where that is not told."""
    found = [_meminfo(proc / "meminfo"), *_cgroup_rooms(proc / "self/cgroup", cgroup)]
    known = [size for size in found if size is not None]
    return max(0, min(known)) if known else 0


def free_disk(path: Path) -> int:
    """Bytes that this user may still write where `path` is or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _meminfo(path: Path) -> int | None:
    for line in _lines(path):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_rooms(own: Path, root: Path) -> list[int]:
    """Of the process's cgroup (v2) and each one above it: limit minus use."""
    names = [line.removeprefix("0::") for line in _lines(own) if line.startswith("0::")]
    if not names:
        return []
    folder = root / names[0].strip("/")
    rooms = []
    while folder.is_relative_to(root):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            rooms.append(limit - used)
        folder = folder.parent
    return rooms


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None  # 'max': no limit


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
