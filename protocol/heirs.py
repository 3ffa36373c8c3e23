"""Who takes the stage of a node that goes and that nobody else holds: at whom, and whether it is computed there or only kept.

A node that has room trains the stage on. Where nobody has, a neighbour *parks* it: it keeps the exact state at rest, which
takes less memory, and the run waits for a node that can compute it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from protocol.chain import Chain
from protocol.ids import Member, PeerId
from protocol.manifest import Manifest
from protocol.records import Role, Seating
from protocol.sizes import PROCESS_BYTES, passive_bytes, seat_bytes, state_bytes


class Heirs:
    """Looks at the chain. `memory`: bytes that each node lets the run use; 0 or missing = not known, and taken for enough."""

    def __init__(self, manifest: Manifest, chain: Chain) -> None:
        self.memory: dict[PeerId, int] = {}
        self._manifest, self._chain = manifest, chain

    # ---- room ----

    def left(self, member: Member, besides: int) -> int | None:
        """Bytes that the member's seats leave free, one at stage `besides` not counted; None = not known."""
        memory = self.memory.get(member.peer, 0)
        mine = [s for s in self._chain.seats_of(member) if s.stage != besides]
        return memory - PROCESS_BYTES - sum(map(self._takes, mine)) if memory else None

    def _takes(self, seating: Seating) -> int:
        if seating.role == "parked":
            return state_bytes(self._manifest, seating.stage)
        if seating.role == "passive":
            return passive_bytes(self._manifest, seating.stage)
        return seat_bytes(self._manifest, seating.stage, max(1, len(self._chain.active(seating.stage))))

    def can_compute(self, stage: int, member: Member, instead: int = -1) -> bool:
        """Is there room for training the stage alone, beside what the member holds already, or in place of a seat?"""
        left = self.left(member, stage if instead < 0 else instead)
        return left is None or left >= seat_bytes(self._manifest, stage)

    def can_keep(self, stage: int, member: Member) -> bool:
        """Is there room for the stage's state at rest?"""
        left = self.left(member, stage)
        return left is None or left >= state_bytes(self._manifest, stage)

    def can_copy(self, stage: int, member: Member) -> bool:
        """Is there room for a passive replica of the stage?"""
        left = self.left(member, stage)
        return left is None or left >= passive_bytes(self._manifest, stage)

    # ---- choice ----

    def choose(self, stage: int, spares: Sequence[Member], going: Collection[Member]) -> Member | None:
        """Who copies the stage of those that go: a node without a seat, else a replica that its own stage can spare, else
        whoever has fewest seats and most room; one that can compute it before one that can only keep it. None: nobody has the
        room."""
        if spares:
            return spares[0]
        staying = [m for m in self._chain.members() if m not in going]
        able = [m for m in staying if self.can_compute(stage, m)] or [m for m in staying if self.can_keep(stage, m)]
        return min(able, key=lambda m: (not self._is_spared(m, going), *self.burden(stage, m)), default=None)

    def _is_spared(self, member: Member, going: Collection[Member]) -> bool:
        """Do others compute whatever it computes?"""
        mine = [s for s in self._chain.seats_of(member) if s.role != "learner"]
        rows = [[x.member for x in self._chain.active(s.stage) if x.member not in (member, *going)] for s in mine]
        return all(s.role == "active" and not s.pinned and row for s, row in zip(mine, rows, strict=True))

    def burden(self, stage: int, member: Member) -> tuple[int, int, int, Member]:
        """Order of those that may take one more stage: fewest computed, most room, the nearest stage."""
        held = [s.stage for s in self._chain.seats_of(member)]
        counts = Counter(s.member for s in self._chain.seatings if s.role == "active")
        near = min((abs(x - stage) for x in held), default=self._manifest.num_stages)
        return counts[member], -(self.left(member, stage) or 0), near, member

    # ---- roles ----

    def role(self, learner: Seating, going: Collection[Member]) -> Role:
        """Of a learner that holds the newest state now. Where others compute the stage it has to prove itself first; who
        inherits it computes it at once, if there is room."""
        stage = learner.stage
        if any(s.member not in going for s in self._chain.active(stage)):
            return "passive"
        if not learner.pinned and not self.can_compute(stage, learner.member):
            return "parked"
        return "passive" if stage == 0 and self._chain.active(stage) else "active"

    def parked(self) -> list[int]:
        """Stages that nobody computes, and whose state is kept."""
        return [s for s in range(self._manifest.num_stages) if self._chain.holders(s) and not self._chain.active(s)]

    def unparked(self) -> tuple[Seating, ...]:
        """Kept seats that can be computed by now, where nobody else does or is about to. Whose room is not known waits."""
        found = []
        for stage in self.parked():
            row = self._chain.seated(stage)
            able = [s for s in row if self.memory.get(s.member.peer) and self.can_compute(stage, s.member)]
            if able and all(s.role == "parked" for s in row):
                found.append(able[0])
        return tuple(found)
