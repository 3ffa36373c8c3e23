"""The memory of the device that computes, and its name for people."""

from __future__ import annotations

from collections.abc import Callable

import torch

from node.machine import available_memory
from node.stage.executor import usable_device
from protocol.sizes import human_bytes


def free_bytes(device: str) -> int:
    """What can be taken of the device's memory now (a CPU's: of the machine's); 0 where that is not told.

    Raises `UnusableError` for a device that this machine does not have."""
    found = usable_device(device)
    return torch.cuda.mem_get_info(found)[0] if found.type == "cuda" else available_memory()


def gpu_memory(device: str) -> Callable[[], tuple[int, int]] | None:
    """Reads (free, total) bytes of the GPU that computes; None where none does. Raises `UnusableError` as `free_bytes` does."""
    found = usable_device(device)
    return (lambda: torch.cuda.mem_get_info(found)) if found.type == "cuda" else None


def describe(device: str, num_threads: int) -> str:
    """`cpu, 4 threads`, or the GPU's name and memory. Raises `UnusableError` as `free_bytes` does."""
    found = usable_device(device)
    if found.type == "cpu":
        return f"cpu, {num_threads} thread{'' if num_threads == 1 else 's'}"
    about = torch.cuda.get_device_properties(found)
    return f"{found} ({about.name}, {human_bytes(about.total_memory)})"
