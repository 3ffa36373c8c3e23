"""A clock for unit tests that moves when it is told to."""

from __future__ import annotations


class StepClock:
    """`now` is both the monotonic and the wall time, in seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
