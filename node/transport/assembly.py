"""Putting payloads together from their chunks, without trusting any of them. Pure: no stream, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from node.payloads import encoded_bytes
from node.ports import Payload, TensorSpec
from node.transport.checks import WireError
from node.transport.config import PayloadHead


def checked_bytes(head: PayloadHead, max_bytes: int) -> int:
    """Size of the announced payload. Raises `WireError` where its numbers do not agree or do not fit."""
    try:
        expected = encoded_bytes(TensorSpec(head.codec, head.shape))
    except ValueError as error:
        raise WireError("value", str(error)) from None
    if head.num_bytes != expected:
        raise WireError("size", f"{head.codec} of shape {list(head.shape)} has {expected} bytes, not {head.num_bytes}")
    if expected > max_bytes:
        raise WireError("size", f"a payload of {expected} bytes; at most {max_bytes} are allowed")
    return expected


@dataclass(slots=True)
class Budget:
    """Bytes of payloads half received, over all streams of a node."""

    limit: int
    used: int = 0

    def take(self, num_bytes: int) -> None:
        """Reserve. Raises `WireError`."""
        if self.used + num_bytes > self.limit:
            raise WireError(
                "memory",
                f"{self.used} bytes of payloads are arriving already; {num_bytes} more exceed {self.limit}",
            )
        self.used += num_bytes

    def give(self, num_bytes: int) -> None:
        """Return what was taken."""
        self.used -= num_bytes


class Assembly:
    """The payloads of one stream, one after the other. All errors are `WireError` and end the stream."""

    def __init__(self, budget: Budget, max_payload_bytes: int) -> None:
        self._budget = budget
        self._max_bytes = max_payload_bytes
        self._head: PayloadHead | None = None
        self._buffer = memoryview(b"")
        self._filled = 0

    @property
    def head(self) -> PayloadHead | None:
        """The payload that is on its way; None between two of them."""
        return self._head

    def begin(self, head: PayloadHead) -> None:
        """A head arrived: memory is taken only once its numbers agree and fit."""
        if self._head is not None:
            raise WireError("order", f"a new payload after {self._filled} of {self._head.num_bytes} bytes")
        expected = checked_bytes(head, self._max_bytes)
        self._budget.take(expected)
        self._head, self._filled = head, 0
        self._buffer = memoryview(bytearray(expected))

    def add(self, position: int, data: memoryview) -> tuple[PayloadHead, Payload] | None:
        """A chunk arrived; returns the payload with its last one."""
        if self._head is None:
            raise WireError("order", "a chunk without a payload head")
        end = self._filled + len(data)
        if position != self._filled or not len(data):
            raise WireError("order", f"a chunk of {len(data)} bytes at {position}, expected at {self._filled}")
        if end > self._head.num_bytes:
            raise WireError("size", f"chunks of {end} bytes for a payload of {self._head.num_bytes}")
        self._buffer[self._filled : end] = data
        self._filled = end
        if end < self._head.num_bytes:
            return None
        head, payload = self._head, Payload(TensorSpec(self._head.codec, self._head.shape), self._buffer)
        self.drop()
        return head, payload

    def drop(self) -> None:
        """Forget what is half received; the stream is at an end (or the payload complete)."""
        if self._head is not None:
            self._budget.give(self._head.num_bytes)
        self._head, self._buffer, self._filled = None, memoryview(b""), 0
