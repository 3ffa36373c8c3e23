"""When what nobody answers is said again: soon, for it may be lost, and then ever more seldom, for it is only waited for."""

from __future__ import annotations

from collections.abc import Hashable

FIRST_HEARTBEATS, LAST_HEARTBEATS = 2.0, 16.0


class Repeats:
    """By key: due `FIRST_HEARTBEATS` after it was said, and each time after twice as long, up to `LAST_HEARTBEATS`."""

    def __init__(self, heartbeat_s: float) -> None:
        self._first_s, self._last_s = FIRST_HEARTBEATS * heartbeat_s, LAST_HEARTBEATS * heartbeat_s
        self._next: dict[Hashable, tuple[float, float]] = {}
        """(when it is due, how long after the last time that is)"""

    def said(self, key: Hashable, now: float) -> None:
        """It is something new."""
        self._next[key] = now + self._first_s, self._first_s

    def is_due(self, key: Hashable, now: float) -> bool:
        """Is it to be said now? What never was is; and is taken as said then."""
        due, wait = self._next.get(key, (now, 0.0))
        if now < due:
            return False
        wait = min(max(self._first_s, 2 * wait), self._last_s)
        self._next[key] = now + wait, wait
        return True

    def forget(self, key: Hashable) -> None:
        """Something else is to be said under this key."""
        self._next.pop(key, None)

    def clear(self) -> None:
        """Nothing was said."""
        self._next.clear()
