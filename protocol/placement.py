"""Where a node is needed: the stage for a newcomer, and moves between stages."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.chain import Chain
from protocol.copies import is_copy
from protocol.manifest import Manifest
from protocol.messages import Kept, Wish
from protocol.records import Seating
from protocol.sizes import fits
from protocol.speeds import Speeds

MAX_LEARNERS = 4
"""Per stage at once: their donors train meanwhile."""
GAIN = 1.25
"""A replica moves only where the slowest stage becomes faster by this factor: hysteresis."""


class Placement:
    """Looks at chain and speeds, changes nothing."""

    def __init__(self, manifest: Manifest, chain: Chain, speeds: Speeds) -> None:
        self._manifest, self._chain, self._speeds = manifest, chain, speeds

    def stage_for(self, wish: Wish, more: Sequence[Seating]) -> int | None:
        """The stage for a newcomer: the one it asks for, else an empty one, else one of which it has the newest state, else the
        slowest; None where there is no room. `more`: seats that are being granted."""
        stages = range(self._manifest.num_stages)
        asked = [wish.stage] if wish.stage in stages else list(stages)
        free = [s for s in asked if self._has_room(s, more) and self._fits(wish, s, more)]
        has = {s for s in free if self.kept_by(wish, s)}
        return min(free, key=lambda s: (bool(self._serving(s, more)), s not in has, *self.strength(s, more), s), default=None)

    def kept_by(self, wish: Wish, stage: int) -> Kept | None:
        """The stage's newest state, if a node without a seat says that it kept it."""
        newest = self._chain.state_ids[stage]
        return next((k for k in wish.kept if (k.stage, k.state_id) == (stage, newest)), None)

    def _serving(self, stage: int, more: Sequence[Seating]) -> list[Seating]:
        """Who computes, or will."""
        seated = [*self._chain.seated(stage), *(s for s in more if s.stage == stage)]
        return [s for s in seated if s.role != "parked" and not is_copy(s, self._chain)]

    def _has_room(self, stage: int, more: Sequence[Seating]) -> bool:
        serving = self._serving(stage, more)
        learners = sum(s.role == "learner" for s in serving)
        return len(serving) < self._manifest.batch.num_microbatches and learners < MAX_LEARNERS

    def _fits(self, wish: Wish, stage: int, more: Sequence[Seating]) -> bool:
        """A user who names a stage has been told what it needs."""
        return wish.stage == stage or fits(self._manifest, stage, wish.memory_bytes, 1 + len(self._serving(stage, more)))

    def strength(self, stage: int, more: Sequence[Seating]) -> tuple[float, int]:
        """(microbatches per second of those that serve this stage alone, number of all that serve it)."""
        serving = self._serving(stage, more)
        own = [s for s in serving if self._chain.num_computed(s.member) <= 1]
        return round(self._speeds.throughput(own), 6), len(serving)

    def move(self) -> tuple[Seating, Seating] | None:
        """(seat given up, seat taken) of a replica that helps more elsewhere; never a stage's last active one."""
        stages = range(self._manifest.num_stages)
        if not all(is_copy(s, self._chain) for s in self._chain.in_role("learner")):
            return None
        power = {s: self._speeds.throughput(self._serving(s, ())) for s in stages}
        slow = min(stages, key=lambda s: (power[s], s))
        best: tuple[float, Seating] | None = None
        for stage in stages:
            active = self._chain.active(stage)
            free = [s for s in active if not s.pinned and s.member not in {x.member for x in self._chain.seated(slow)}]
            if stage == slow or len(active) < 2 or not free or not self._has_room(slow, ()):
                continue
            mover = free[-1]
            after = min(power[stage] - self._speeds.speed(stage, mover.member), power[slow] + self._newcomer(slow, mover))
            if after >= GAIN * power[slow] and (best is None or after > best[0]):
                best = after, mover
        if best is None:
            return None
        mover = best[1]
        return mover, Seating(slow, mover.member, "learner", self._chain.generations[slow])

    def _newcomer(self, stage: int, mover: Seating) -> float:
        """What the mover would add: as fast at the new stage as it is at the old one, compared with its present peers."""
        peers = self._chain.active(mover.stage)
        mean = self._speeds.throughput(peers) / len(peers)
        active = self._chain.active(stage)
        other = self._speeds.throughput(active) / len(active) if active else mean
        return other * self._speeds.speed(mover.stage, mover.member) / mean
