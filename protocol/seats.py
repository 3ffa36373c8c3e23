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
        self._peers = list(self.members)
        self._places = {peer: place for place, peer in enumerate(self._peers)}
        self.active = frozenset((s.stage, s.member.peer) for s in seatings if s.role == "active")
        self._active = {stage: [s for s in row if s.role == "active"] for stage, row in self._by_stage.items()}
        self._holders = {stage: [s for s in row if s.role != "learner"] for stage, row in self._by_stage.items()}
        self.held = frozenset(stage for stage, row in self._holders.items() if row)
        """Stages of which somebody has the whole state."""
        self._by_role: dict[Role, list[Seating]] = {}
        for seating in seatings:
            self._by_role.setdefault(seating.role, []).append(seating)
        self.busy = Counter(s.member for s in self._by_role.get("active", ()))
        """How many stages each member computes."""
        self.are_shared = any(count > 1 for count in self.busy.values())
        """Does somebody compute more than one?"""

    def at(self, stage: int) -> Sequence[Seating]:
        """Of one stage, in roster order."""
        return self._by_stage.get(stage, ())

    def active_at(self, stage: int) -> Sequence[Seating]:
        """Active replicas of one stage, in roster order."""
        return self._active.get(stage, ())

    def holders_at(self, stage: int) -> Sequence[Seating]:
        """Replicas of one stage with its whole state, in roster order."""
        return self._holders.get(stage, ())

    def around(self, peer: PeerId) -> list[PeerId]:
        """The peers before and after one on the roster: so everybody is watched by a second node."""
        peers, at = self._peers, self._places[peer]
        return [p for p in dict.fromkeys((peers[at - 1], peers[(at + 1) % len(peers)])) if p != peer]

    def in_role(self, role: Role) -> Sequence[Seating]:
        """Of whatever stage, in roster order."""
        return self._by_role.get(role, ())

    def of(self, member: Member) -> Sequence[Seating]:
        """Of one member."""
        return self._by_member.get(member, ())
