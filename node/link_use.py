"""How much of the time this node's link is busy, and the most that it carried."""

from __future__ import annotations

from node.ports import Clock

WINDOW_S = 1.0


class LinkUse:
    """Fed by the hooks of the transport. A link that is always sending is the bottleneck, whatever its speed: what waits for
    room (of the network, of the reader, of `--max-upload-mbit`) counts as being sent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_sending = 0
        self._since = self._busy_s = 0.0
        self._windows: dict[str, tuple[float, int]] = {}
        self.peaks: dict[str, float] = {}
        """Most bytes per second, by direction."""

    def on_sending(self, change: int) -> None:
        """+1: a payload begins to go out; -1: it is out, or will not go."""
        now = self._clock.monotonic()
        if self._num_sending:
            self._busy_s += now - self._since
        self._since, self._num_sending = now, self._num_sending + change
        assert self._num_sending >= 0, "what ends has begun"

    def on_bytes(self, direction: str, num_bytes: int) -> None:
        """So many bytes passed just now."""
        now = self._clock.monotonic()
        began, so_far = self._windows.get(direction, (now, 0))
        if now - began >= WINDOW_S:
            self.peaks[direction] = max(self.peaks.get(direction, 0.0), so_far / (now - began))
            began, so_far = now, 0
        self._windows[direction] = began, so_far + num_bytes

    @property
    def is_sending(self) -> bool:
        """Is a payload on its way out now?"""
        return self._num_sending > 0

    @property
    def sending_s(self) -> float:
        """Seconds so far in which at least one payload was on its way out."""
        return self._busy_s + (self._clock.monotonic() - self._since if self._num_sending else 0.0)
