"""How many requests to keep in flight at one donor: so many that the next answer is on its way when one has come, and no more.

The product of round trip and rate, as BBR has it: the shortest time that an answer took, times the rate, is what is on its way
while a lone request waits; one more than that keeps the link busy. Where answers come slower because more are asked for, the
rate stays, and so does the number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_IN_FLIGHT = 2
"""While one is on its way back the next one is on its way there."""
RECENT_S = 1.0
"""The rate that counts here is that of about so long: a connection begins slowly."""
MAX_IN_FLIGHT = 4
"""12 MiB of state: 40 MB/s over links of 150 ms one way. A donor serves eight requests at once, of all who ask."""


MAX_HELD = 2 * MAX_IN_FLIGHT
"""Requests whose answers are on their way or have yet to be put in place."""


@dataclass(slots=True)
class Flight:
    """One request. Both may be called more than once."""

    pace: Pace
    landed: bool = False
    is_over: bool = False

    def land(self, now: float) -> None:
        """The answer is here, or there will be none."""
        if not self.landed:
            self.landed = True
            self.pace.end(now)

    def over(self, now: float) -> None:
        """Nothing is held of it any more."""
        self.land(now)
        self.pace.num_held -= not self.is_over
        self.is_over = True


@dataclass(slots=True)
class Pace:
    """Of one donor. Times in seconds of one monotonic clock."""

    num_bytes: int = 0
    num_answers: int = 0
    in_flight: int = 0
    num_held: int = 0
    _most: int = MAX_IN_FLIGHT
    _busy_s: float = 0.0
    _recent_bytes: float = 0.0
    _recent_s: float = 0.0
    _waited_s: float = 0.0
    _shortest_s: float = math.inf
    _since: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second of the time in which it was asked for something; 0 where nothing came yet."""
        return self.num_bytes / self._busy_s if self.num_bytes and self._busy_s > 0 else 0.0

    @property
    def answer_s(self) -> float:
        """How long an answer takes, on the average; 0 where none came yet."""
        return self._waited_s / self.num_answers if self.num_answers else 0.0

    @property
    def has_room(self) -> bool:
        """Is one more request of use?"""
        return self.in_flight < min(self._most, self._wanted()) and self.num_held < MAX_HELD

    def _wanted(self) -> int:
        if not self.num_bytes:
            return MIN_IN_FLIGHT
        rate = self._recent_bytes / self._recent_s if self._recent_s > 0 else self.rate
        answers = self._shortest_s * rate * self.num_answers / self.num_bytes
        return max(MIN_IN_FLIGHT, 1 + math.ceil(answers))

    def ask(self, now: float) -> Flight:
        """A request goes out."""
        if not self.in_flight:
            self._since = now
        self.in_flight += 1
        self.num_held += 1
        return Flight(self)

    def end(self, now: float) -> None:
        """A request has ended, well or not (`Flight.land`)."""
        self._busy_s += now - self._since
        self._recent_s += now - self._since
        self._since = now
        if self._recent_s > 2 * RECENT_S:
            self._recent_bytes, self._recent_s = self._recent_bytes / 2, self._recent_s / 2
        self.in_flight -= 1

    def answered(self, num_bytes: int, seconds: float) -> None:
        """It ended well: so much came, so long after it was asked for."""
        self.num_bytes += num_bytes
        self.num_answers += 1
        self._recent_bytes += num_bytes
        self._waited_s += seconds
        self._shortest_s = min(self._shortest_s, max(seconds, 1e-6))

    def yields(self) -> bool:
        """The donor was too busy for a request that now ends. True if asking it for less will do: others are in flight."""
        others = self.in_flight - 1
        if others:
            self._most = min(self._most, others)
        return others > 0
