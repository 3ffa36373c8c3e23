"""A roster in order: who is seated, by stage and by member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from protocol.ids import Member, PeerId
from protocol.records import Role, Seating


class Seats:
    """Made once for each roster; does not change."""

    def __init__(self, seatings: Sequence[Seating] = ()) -> None:
        self.members: dict[PeerId, Member] = {}
        """Everybody on the roster, once, in roster order."""
        self._by_stage: dict[int, list[Seating]] = {}
        self._by_member: dict[Member, list[Seating]] = {}
        for seating in seatings:
            self.members[seating.member.peer] = seating.member
            self._by_stage.setdefault(seating.stage, []).append(seating)
            self._by_member.setdefault(seating.member, []).append(seating)
        self.active = frozenset((s.stage, s.member.peer) for s in seatings if s.role == "active")
        self._active = {stage: [s for s in row if s.role == "active"] for stage, row in self._by_stage.items()}
        self._by_role: dict[Role, list[Seating]] = {}
        for seating in seatings:
            self._by_role.setdefault(seating.role, []).append(seating)
        self.busy = Counter(s.member for s in self._by_role.get("active", ()))
        """How many stages each member computes."""

    def at(self, stage: int) -> Sequence[Seating]:
        """Of one stage, in roster order."""
        return self._by_stage.get(stage, ())

    def active_at(self, stage: int) -> Sequence[Seating]:
        """Active replicas of one stage, in roster order."""
        return self._active.get(stage, ())

    def in_role(self, role: Role) -> Sequence[Seating]:
        """Of whatever stage, in roster order."""
        return self._by_role.get(role, ())

    def of(self, member: Member) -> Sequence[Seating]:
        """Of one member."""
        return self._by_member.get(member, ())
