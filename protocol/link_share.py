"""A stated share of a link, for what may wait: a token bucket whose tokens are seconds of the link.

What moves a chunk occupies the link for as long as it takes; after it so much time passes that it had its share of the whole.
So over any time the bytes are at most that share of what the link carries, and fewer where others use it too, for then a chunk
takes longer. No rate has to be measured or told.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    def moved(self, num_bytes: int, began: float, now: float) -> None:
        """A chunk occupied the link from `began` until now."""
        self.num_bytes += num_bytes
        seconds = max(0.0, now - began)
        self._free_at = now + seconds / self.share - seconds
