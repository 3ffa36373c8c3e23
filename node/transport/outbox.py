"""What waits for a light stream to one peer, and how long to wait between two tries to open one. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Outbox(Generic[T]):
    """A bounded queue; heartbeats overtake the rest and are the first to be dropped, oldest first."""

    limit: int
    dropped_heartbeats: int = 0
    dropped_messages: int = 0
    _heartbeats: deque[T] = field(default_factory=deque)
    _others: deque[T] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._heartbeats) + len(self._others)

    def put(self, item: T, is_heartbeat: bool) -> None:
        """Append; when full, the oldest heartbeat goes, or else the new item."""
        if len(self) >= self.limit:
            if not self._heartbeats:
                self._count_drop(is_heartbeat)
                return
            self._heartbeats.popleft()
            self.dropped_heartbeats += 1
        (self._heartbeats if is_heartbeat else self._others).append(item)

    def _count_drop(self, is_heartbeat: bool) -> None:
        if is_heartbeat:
            self.dropped_heartbeats += 1
        else:
            self.dropped_messages += 1

    def pop(self) -> T | None:
        """The next item to send, None if there is none."""
        if self._heartbeats:
            return self._heartbeats.popleft()
        return self._others.popleft() if self._others else None


@dataclass(slots=True)
class Backoff:
    """Doubling waits, each somewhere between half and all of its size so that peers do not march in step."""

    first_s: float
    last_s: float
    rng: Random
    _next_s: float = 0.0

    def reset(self) -> None:
        """The last try was good."""
        self._next_s = 0.0

    def after_failure(self) -> float:
        """Seconds to wait now."""
        size = self._next_s or self.first_s
        self._next_s = min(2 * size, self.last_s)
        return size * (0.5 + 0.5 * self.rng.random())
