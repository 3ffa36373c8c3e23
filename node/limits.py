"""What a volunteer allows: memory, upload rate, bytes in all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from node.ports import Clock
from protocol.sizes import human_bytes

UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4} | {
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
BURST_S = 0.25
"""What an idle line may send at once, in seconds of its rate; a chunk takes no longer than that, so that streams take turns."""
MIN_CHUNK_BYTES = 4096


def parse_size(text: str) -> int:
    """Bytes of '4GB', '512 MiB', '1.5g'. Raises `ValueError`."""
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]i?)b?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is no size; write it as 4GB or 512MiB")
    return int(float(found[1]) * UNITS[found[2].lower()])


class Upload:
    """A token bucket over all that this node sends as payload: never more than `bytes_per_s` x time + one burst.

    Turns are given in the order of asking. Control messages and heartbeats do not ask.
    """

    def __init__(self, clock: Clock, mbit_per_s: float) -> None:
        self.bytes_per_s = mbit_per_s * 1e6 / 8
        self.chunk_bytes = max(MIN_CHUNK_BYTES, int(self.bytes_per_s * BURST_S) // 4 * 4)
        """Chunks should not be larger: each passes as a whole."""
        self.burst_bytes = max(self.chunk_bytes, int(self.bytes_per_s * BURST_S))
        self._clock = clock
        self._paid_until = clock.monotonic() - self.burst_bytes / self.bytes_per_s

    async def pace(self, num_bytes: int) -> None:
        """Returns when so many bytes may be sent. A turn that is cancelled is lost."""
        now = self._clock.monotonic()
        earliest = now - self.burst_bytes / self.bytes_per_s
        self._paid_until = max(self._paid_until, earliest) + num_bytes / self.bytes_per_s
        if self._paid_until > now:
            await self._clock.sleep(self._paid_until - now)


@dataclass(slots=True)
class Allowance:
    """Counts bytes of all streams since the start of the process. `on_spent` is called once, with a sentence, at the limit."""

    limit_bytes: int
    """0 = no limit."""
    on_spent: Callable[[str], None]
    received: int = 0
    sent: int = 0
    _told: bool = False

    def note(self, direction: str, num_bytes: int) -> None:
        """So many bytes went `in` or `out`."""
        if direction == "in":
            self.received += num_bytes
        else:
            self.sent += num_bytes
        if self.limit_bytes and not self._told and self.received + self.sent >= self.limit_bytes:
            self._told = True
            self.on_spent(f"the limit of {human_bytes(self.limit_bytes)} (--max-gb) is reached")


class Limits:
    """The limits of one node, as its streams and its life need them."""

    def __init__(self, clock: Clock, max_upload_mbit: float, max_gb: float) -> None:
        self._upload = Upload(clock, max_upload_mbit) if max_upload_mbit else None
        self.allowance = Allowance(round(max_gb * 1e9), self._on_spent)
        self._spent = asyncio.Event()
        self._sentence = ""

    @property
    def pace_out(self) -> Callable[[int], Awaitable[None]] | None:
        """For the hooks of the transport; None = no cap."""
        return self._upload.pace if self._upload else None

    @property
    def upload_bytes_per_s(self) -> float | None:
        """Most that is sent as payload; None = no cap."""
        return self._upload.bytes_per_s if self._upload else None

    def chunk_bytes(self, most: int) -> int:
        """Size of chunks: `most`, or less where the upload is capped."""
        return min(most, self._upload.chunk_bytes) if self._upload else most

    async def spent(self) -> str:
        """Waits until no more bytes are allowed; returns why the node leaves."""
        await self._spent.wait()
        return self._sentence

    def _on_spent(self, sentence: str) -> None:
        self._sentence = sentence
        self._spent.set()
