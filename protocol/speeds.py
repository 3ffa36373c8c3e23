"""How fast each replica computes, as measured, and how much of a step's work it is given therefore.

A replica that becomes slower loses work at once; one that becomes faster is believed from its second report on, since to give
too much costs a step far more than to give too little. Who is too slow for even one microbatch gets none, and one on trial
from time to time: nothing else would show that it is fast again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.assignment import quotas
from protocol.ids import Member
from protocol.records import Seating

NEWEST_WEIGHT = 0.5
LEAST_S, MOST_S = 1e-6, 1e6
"""What a replica says of itself is believed within these bounds, so that sums and shares of speeds stay finite."""
DEADBAND = 1.25
"""Replicas of a stage whose speeds differ by no more than this factor share equally, and shares stay as they are until a speed
differs by more from the one that they were made for: so that noise moves no work, and shares do not flutter."""
JUMP = 1.5
"""By this factor a report is no noise: it is not averaged with what was before."""
TRIAL_PATIENCE = 10.0
"""A replica without work gets a microbatch when it has had none for so many times as long as one took it: trials that show
nothing new cost the run at most a tenth of its time."""


@dataclass(slots=True)
class Known:
    """Of one replica."""

    seconds: float | None = None
    """Per microbatch; None = it had none yet."""
    faster: float = 0.0
    """The last report said that it is so much faster; it takes two."""
    used: float | None = None
    """Microbatches per second for which the present shares were made."""
    idle_since: float | None = None
    """Since when it was given no work; None = it has some."""

    def enter(self, seconds: float) -> None:
        """One more report."""
        faster, self.faster = self.faster, 0.0
        if self.seconds is None or seconds > JUMP * self.seconds:
            self.seconds = seconds
        elif JUMP * seconds >= self.seconds:
            self.seconds = (1 - NEWEST_WEIGHT) * self.seconds + NEWEST_WEIGHT * seconds
        elif faster:
            self.seconds = max(faster, seconds)
        else:
            self.faster = seconds


class Speeds:
    """Microbatches per second of each (stage, member). What was not measured yet counts as the mean of what was."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Member], Known] = {}
        self._kept: Sequence[Seating] | None = None
        """The roster of which those that have no seat were forgotten last."""

    def _of(self, stage: int, member: Member) -> Known:
        return self._known.setdefault((stage, member), Known())

    def measured(self, stage: int, member: Member, seconds_per_microbatch: float) -> None:
        """A replica reports how long a microbatch took it in a step; 0 = it had none."""
        if seconds_per_microbatch > 0:
            self._of(stage, member).enter(min(max(seconds_per_microbatch, LEAST_S), MOST_S))

    def keep(self, seatings: Sequence[Seating]) -> None:
        """Forget those that have no seat any more. Another roster is another list."""
        if seatings is self._kept:
            return
        self._kept = seatings
        seated = {(s.stage, s.member) for s in seatings}
        self._known = {key: pace for key, pace in self._known.items() if key in seated}

    def speed(self, stage: int, member: Member) -> float:
        """Microbatches per second, measured or presumed."""
        pace = self._known.get((stage, member))
        if pace and pace.seconds:
            return 1.0 / pace.seconds
        known = [p.seconds for (at, _), p in self._known.items() if p.seconds and at == stage]
        known = known or [p.seconds for p in self._known.values() if p.seconds]
        return len(known) / sum(known) if known else 1.0

    def throughput(self, seatings: Sequence[Seating]) -> float:
        """Microbatches per second of replicas of one stage together."""
        return sum(self.speed(s.stage, s.member) for s in seatings)

    def makespan_s(self, active: Sequence[Seating], num_microbatches: int) -> float:
        """How long the replica that ends last computes, if these share a step's microbatches by their speeds."""
        speeds = [self.speed(s.stage, s.member) for s in active]
        return max(n / speed for n, speed in zip(quotas(num_microbatches, speeds), speeds, strict=True))

    def shares(self, active: Sequence[Seating]) -> list[float]:
        """Relative speeds of a stage's active replicas by which its work is dealt, in their order."""
        now = [self.speed(s.stage, s.member) for s in active]
        mean = sum(now) / len(now)
        if max(now) <= DEADBAND * min(now):
            now = [mean] * len(now)
        paces = [self._of(s.stage, s.member) for s in active]
        stale = any(p.used is None or not 1 / DEADBAND <= n / p.used <= DEADBAND for p, n in zip(paces, now, strict=True))
        for pace, speed in zip(paces, now, strict=True):
            pace.used = speed if stale or pace.used is None else pace.used
        return [pace.used or mean for pace in paces]

    def deal(self, active: Sequence[Seating], num_microbatches: int, now: float) -> list[int]:
        """How many of a step's microbatches each of a stage's active replicas gets, in their order."""
        shares, known = self.shares(active), [self._of(s.stage, s.member) for s in active]
        counts = quotas(num_microbatches, shares)
        tried = next((i for i, count in enumerate(counts) if not count and _is_due(known[i], now)), None)
        if tried is not None:
            counts[max(range(len(counts)), key=lambda i: (counts[i] / shares[i], i))] -= 1
            counts[tried] = 1
        for about, count in zip(known, counts, strict=True):
            about.idle_since = None if count else now if about.idle_since is None else about.idle_since
        return counts


def _is_due(known: Known, now: float) -> bool:
    """Is it time for a trial? At once where the last one went well."""
    waited = known.seconds and known.idle_since is not None and now - known.idle_since >= TRIAL_PATIENCE * known.seconds
    return bool(waited or known.faster)
