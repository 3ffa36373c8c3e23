"""A stated share of a link, for what may wait: a token bucket whose tokens are seconds of the link.

What moves a chunk occupies the link for as long as its bytes take; after it so much time passes that it had its share of the
whole. How long that is nobody has to tell: a chunk that comes while nothing else is on the way takes just that. One that waits
behind others' bytes, or for a donor that computes, takes longer, which is not its doing: the fastest of the last few chunks
says what the link carries. So over any time the bytes are at most that share of what the link carries, but for the first few of
a way, which are paid for once they have shown how fast it is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RECENT = 16
"""Chunks, so many that one of them met a free link; after as many a link that has become slower is known to be."""
FIRST = 4
"""Chunks of a way of which nothing is known: after each the link is left alone for as long as it took, no longer."""


@dataclass(slots=True)
class LinkSpeed:
    """Of the way from one node to another."""

    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Bytes per second of the last chunks."""
    _unpaid: int = 0
    """Bytes that came and were not charged yet."""

    def occupied_s(self, num_bytes: int, seconds: float) -> float:
        """A chunk took so long: for how long do it, and those before it that are not charged yet, occupy the link? 0 where that
        cannot be said yet."""
        self._rates.append(num_bytes / max(seconds, 1e-9))
        self._unpaid += num_bytes
        if len(self._rates) < FIRST:
            return 0.0
        unpaid, self._unpaid = self._unpaid, 0
        return unpaid / max(self._rates)


@dataclass(slots=True)
class LinkShare:
    """`share` in (0, 1]. Times are monotonic seconds."""

    share: float
    num_bytes: int = 0
    """Moved so far."""
    _free_at: float = 0.0

    def wait_s(self, now: float) -> float:
        """Until the next chunk may begin."""
        return max(0.0, self._free_at - now)

    def moved(self, num_bytes: int, began: float, now: float, speed: LinkSpeed) -> None:
        """A chunk was asked for at `began` and is here now; `speed`: of its way."""
        self.num_bytes += num_bytes
        took = max(0.0, now - began)
        occupied = speed.occupied_s(num_bytes, took)
        self._free_at = max(now, began + occupied / self.share) if occupied else now + took
