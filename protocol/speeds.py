"""How fast each replica computes, as measured, and the shares of the work that follow."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import Member
from protocol.records import Seating

NEWEST_WEIGHT = 0.5
LEAST_S, MOST_S = 1e-6, 1e6
"""What a replica says of itself is believed within these bounds, so that sums and shares of speeds stay finite."""
DEADBAND = 1.25
"""Replicas of a stage whose speeds differ by no more than this factor share equally, and shares stay as they are until a speed
differs by more from the one that they were made for: so that noise moves no work, and shares do not flutter."""


class Speeds:
    """Microbatches per second of each (stage, member). What was not measured yet counts as the mean of what was."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, Member], float] = {}
        self._used: dict[tuple[int, Member], float] = {}

    def measured(self, stage: int, member: Member, seconds_per_microbatch: float) -> None:
        """A replica reports how long a microbatch took it in a step; 0 = it had none."""
        if seconds_per_microbatch > 0:
            seconds_per_microbatch = min(max(seconds_per_microbatch, LEAST_S), MOST_S)
            key = stage, member
            before = self._seconds.get(key, seconds_per_microbatch)
            self._seconds[key] = (1 - NEWEST_WEIGHT) * before + NEWEST_WEIGHT * seconds_per_microbatch

    def keep(self, seatings: Sequence[Seating]) -> None:
        """Forget those that have no seat any more."""
        seated = {(s.stage, s.member) for s in seatings}
        self._seconds = {key: s for key, s in self._seconds.items() if key in seated}
        self._used = {key: s for key, s in self._used.items() if key in seated}

    def speed(self, stage: int, member: Member) -> float:
        """Microbatches per second, measured or presumed."""
        seconds = self._seconds.get((stage, member))
        if seconds is None:
            known = [s for (at, _), s in self._seconds.items() if at == stage] or list(self._seconds.values())
            seconds = sum(known) / len(known) if known else 1.0
        return 1.0 / seconds

    def throughput(self, seatings: Sequence[Seating]) -> float:
        """Microbatches per second of replicas of one stage together."""
        return sum(self.speed(s.stage, s.member) for s in seatings)

    def shares(self, active: Sequence[Seating]) -> list[float]:
        """Relative shares of the work of a stage's active replicas, in their order."""
        now = [self.speed(s.stage, s.member) for s in active]
        mean = sum(now) / len(now)
        if max(now) <= DEADBAND * min(now):
            now = [mean] * len(now)
        keys = [(s.stage, s.member) for s in active]
        used = [self._used.get(key) for key in keys]
        if any(u is None or not 1 / DEADBAND <= n / u <= DEADBAND for u, n in zip(used, now, strict=True)):
            self._used.update(zip(keys, now, strict=True))
        return [self._used[key] for key in keys]
