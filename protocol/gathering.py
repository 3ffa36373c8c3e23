"""Who wants a seat, and the first Roster that follows when every stage can be covered."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Member, PeerId
from protocol.manifest import Manifest
from protocol.messages import Wish
from protocol.placement import copy_candidates, wanted_copies
from protocol.records import Seating

MAX_WISHES = 4096


@dataclass(frozen=True, slots=True)
class Gathered:
    """Seats for the first roster (empty while nodes are missing), and the sentence that says why."""

    seatings: tuple[Seating, ...]
    sentence: str


class Gathering:
    """Wishes by peer; a newer incarnation's replaces an older one's."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.wishes: dict[PeerId, Wish] = {}

    def enter(self, wish: Wish) -> bool:
        """Take in a wish for a stage; any other number means any stage. False where it is outdated or there is no room."""
        known = self.wishes.get(wish.member.peer)
        outdated = known is not None and wish.member.incarnation < known.member.incarnation
        if outdated or (known is None and len(self.wishes) >= MAX_WISHES):
            return False
        self.wishes[wish.member.peer] = wish
        return True

    def leave(self, member: Member) -> None:
        """The member is gone."""
        known = self.wishes.get(member.peer)
        if known is not None and known.member == member:
            del self.wishes[member.peer]

    def seat(self) -> Gathered:
        """Seats for everybody, wished stages first, the rest where most are missing; none before all stages are covered."""
        need = self._manifest.start_replicas
        rows: list[list[Member]] = [[] for _ in range(self._manifest.num_stages)]
        wishes = list(self.wishes.values())
        for wish in wishes:
            if 0 <= wish.stage < len(rows):
                rows[wish.stage].append(wish.member)
        for wish in wishes:
            if not 0 <= wish.stage < len(rows):
                min(rows, key=len).append(wish.member)
        missing = [stage for stage, row in enumerate(rows) if len(row) < need]
        if missing:
            return Gathered((), _waiting(missing, sum(need - len(rows[s]) for s in missing)))
        pinned = {wish.member for wish in wishes if 0 <= wish.stage < len(rows)}
        seatings = [Seating(s, member, "active", pinned=member in pinned) for s, row in enumerate(rows) for member in row]
        copies = copy_candidates(rows)[: wanted_copies(self._manifest)]
        return Gathered((*seatings, *(Seating(0, member, "passive") for member in copies)), "every stage has a node")


def _waiting(stages: list[int], nodes: int) -> str:
    which = ", ".join(map(str, stages))
    return f"waiting: stage{'s' if len(stages) > 1 else ''} {which} need{'' if len(stages) > 1 else 's'} {nodes} more node" + (
        "s" if nodes > 1 else ""
    )
