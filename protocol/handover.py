"""Members that want to go, and what becomes of stages that nobody else holds: handed over, parked, or, where the time is too
short for a whole state, saved as weights alone. No step is opened meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.chain import Chain
from protocol.heirs import Heirs
from protocol.ids import Member, StateId
from protocol.learners import Learners, coarse
from protocol.manifest import Manifest
from protocol.sizes import human_bytes, need_bytes, state_bytes

MEASURED, MARGIN = 0.05, 1.1
"""A copy that is too slow is given up when it has been measured for this part of the notice, and needs so many times what is
left: a wrong guess costs the optimizer's moments, a late one the stage."""


@dataclass(frozen=True, slots=True)
class Short:
    """The heir of a stage, and the seconds that its leaver still has, which are too few for the whole state."""

    stage: int
    heir: Member
    left_s: float


class Handover:
    """Looks at the chain; keeps who wants to go, and what members said about stages that they were to make."""

    def __init__(self, manifest: Manifest, chain: Chain, learners: Learners) -> None:
        self.leaving: dict[Member, tuple[float, str]] = {}
        """Since when, and why."""
        self.made: set[tuple[int, Member, StateId]] = set()
        """Stages that were rebuilt since the last commit, and that somebody says to hold by now."""
        self.heirs = Heirs(manifest, chain)
        self._manifest, self._chain, self._learners = manifest, chain, learners

    def look(self) -> None:
        """Who is gone wants to go no more."""
        for member in [m for m in self.leaving if self._chain.member_of(m.peer) != m]:
            del self.leaving[member]
        if not self._chain.rollback:
            self.made &= {made for made in self.made if made[0] in self._chain.rebuilds}

    def stages(self) -> list[int]:
        """Stages whose only holders want to go: no step is opened until somebody else holds them."""
        stages = range(self._manifest.num_stages) if self.leaving else ()
        return [s for s in stages if self.is_whole(s) and all(x.member in self.leaving for x in self._chain.holders(s))]

    def heir(self, stage: int) -> Member | None:
        """Who copies the stage now."""
        return next((s.member for s in self._chain.seated(stage) if s.role == "learner"), None)

    def is_whole(self, stage: int) -> bool:
        """Does somebody hold the stage's newest state? After a rollback: do all that are to?"""
        holders = self._chain.holders(stage)
        if self._chain.rollback:
            return bool(holders) and all((stage, s.member, self._chain.state_ids[stage]) in self.made for s in holders)
        if stage not in self._chain.rebuilds:
            return bool(holders)
        return any((stage, s.member, self._chain.state_ids[stage]) in self.made for s in holders)

    def short_of_time(self, now: float) -> Short | None:
        """A stage whose heir will not have its whole state before its leaver must go, by what was measured."""
        for stage in self.stages():
            heir = self.heir(stage)
            if heir and self.heirs.can_compute(stage, heir) and stage not in self._chain.rebuilds and stage:
                left = self._time_left(stage, now)
                after_s = MEASURED * self._manifest.timing.leave_notice_s
                if self._learners.seconds_left(stage, heir, now, after_s) > MARGIN * left:
                    return Short(stage, heir, left)
        return None

    def _time_left(self, stage: int, now: float) -> float:
        since = min((self.leaving[s.member][0] for s in self._chain.holders(stage)), default=now)
        return max(0.0, since + self._manifest.timing.leave_notice_s - now)

    def waits(self, now: float) -> str:
        """Why no step can be opened though every stage has its state: some are handed over, or kept by a node that cannot
        compute them. '' if nothing of the kind."""
        handed = self.stages()
        told = [self._handover(stage, now) for stage in handed]
        told += [self._parking(stage) for stage in self.heirs.parked() if stage not in handed]
        return "waiting: " + "; ".join(told) if told else ""

    def _handover(self, stage: int, now: float) -> str:
        heir, left = self.heir(stage), self._time_left(stage, now)
        what = f"stage {stage} is handed over by a node that leaves"
        if heir is None:
            size = human_bytes(state_bytes(self._manifest, stage))
            return f"{what}, and no other has room for its {size}"
        return f"{what}, to {heir.peer[-8:]}{self._learners.progress(stage, heir)}, which has {coarse(left)} for it"

    def _parking(self, stage: int) -> str:
        where = ", ".join(s.member.peer[-8:] for s in self._chain.seated(stage) if s.role == "parked")
        what, heir = f"stage {stage} is parked at {where}", self.heir(stage)
        if heir:
            return f"{what}, from where {heir.peer[-8:]} copies it{self._learners.progress(stage, heir)}"
        need = human_bytes(need_bytes(self._manifest, stage))
        return f"{what}, which has no room to compute it, until a node with >= {need} joins"
