"""Payloads in this node's memory: reference-counted handles, and the size of a tensor on the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass

from node.ports import Payload, TensorSpec

ITEM_BYTES = {"f32": 4, "bf16": 2}
"""Size of one element of each wire codec."""


def encoded_bytes(spec: TensorSpec) -> int:
    """Size of a tensor in its codec's form. `ValueError` for an unknown codec or an impossible shape."""
    if spec.codec not in ITEM_BYTES:
        raise ValueError(f"unknown codec {spec.codec!r}")
    if not 1 <= len(spec.shape) <= 8 or min(spec.shape) < 1:
        raise ValueError(f"impossible shape {list(spec.shape[:8])}")
    return math.prod(spec.shape) * ITEM_BYTES[spec.codec]


@dataclass(slots=True)
class _Entry:
    payload: Payload
    holds: int


class HandlePool:
    """The `PayloadPool` of a node. Handles are positive and never used twice; a dead one is our defect."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._last = 0
        self._num_bytes = 0
        self._peak_bytes = 0

    def put(self, payload: Payload) -> int:
        """A new handle with one hold."""
        self._last += 1
        self._entries[self._last] = _Entry(payload, 1)
        self._num_bytes += payload.data.nbytes
        self._peak_bytes = max(self._peak_bytes, self._num_bytes)
        return self._last

    def get(self, handle: int) -> Payload:
        """The payload; the handle must be live."""
        return self._live(handle).payload

    def hold(self, handle: int) -> None:
        """One more hold."""
        self._live(handle).holds += 1

    def release(self, handle: int) -> None:
        """One hold less; the last one frees the bytes."""
        entry = self._live(handle)
        entry.holds -= 1
        if not entry.holds:
            del self._entries[handle]
            self._num_bytes -= entry.payload.data.nbytes

    def _live(self, handle: int) -> _Entry:
        entry = self._entries.get(handle)
        assert entry is not None, f"payload handle {handle} is not live (handles so far: {self._last})"
        return entry

    @property
    def num_live(self) -> int:
        """Handles with a hold; 0 when all work is done."""
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        return self._num_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes ever held at once."""
        return self._peak_bytes
