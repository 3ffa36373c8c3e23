"""Who wants a seat, and the first Roster that follows when every stage can be covered."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.copies import first_copies
from protocol.ids import Member, PeerId
from protocol.manifest import Manifest
from protocol.messages import Wish
from protocol.records import Seating
from protocol.sizes import fits, need_bytes

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
        self._gathered: Gathered | None = None
        """Of these wishes, if that was asked."""

    def enter(self, wish: Wish) -> bool:
        """Take in a wish for a stage; any other number means any stage. False where it is outdated or there is no room."""
        known = self.wishes.get(wish.member.peer)
        outdated = known is not None and wish.member.incarnation < known.member.incarnation
        if outdated or (known is None and len(self.wishes) >= MAX_WISHES):
            return False
        if known != wish:
            self.wishes[wish.member.peer], self._gathered = wish, None
        return True

    def leave(self, member: Member) -> None:
        """The member is gone."""
        known = self.wishes.get(member.peer)
        if known is not None and known.member == member:
            del self.wishes[member.peer]
            self._gathered = None

    def seat(self) -> Gathered:
        """Seats for everybody, wished stages first, the rest where most are missing and memory suffices, small ones first; none
        before all stages are covered."""
        self._gathered = self._gathered or self._seat()
        return self._gathered

    def _seat(self) -> Gathered:
        need = self._manifest.start_replicas
        rows: list[list[Member]] = [[] for _ in range(self._manifest.num_stages)]
        wishes = sorted(self.wishes.values(), key=lambda wish: wish.memory_bytes or math.inf)
        for wish in wishes:
            if 0 <= wish.stage < len(rows):
                rows[wish.stage].append(wish.member)
        for wish in wishes:
            room = [s for s in range(len(rows)) if fits(self._manifest, s, wish.memory_bytes, need)]
            if not 0 <= wish.stage < len(rows) and room:
                rows[min(room, key=lambda s: len(rows[s]))].append(wish.member)
        missing = [stage for stage, row in enumerate(rows) if len(row) < need]
        if missing:
            least = max(need_bytes(self._manifest, stage, need) for stage in missing)
            return Gathered((), _waiting(missing, sum(need - len(rows[s]) for s in missing), least))
        pinned = {wish.member for wish in wishes if 0 <= wish.stage < len(rows)}
        seatings = [Seating(s, member, "active", pinned=member in pinned) for s, row in enumerate(rows) for member in row]
        return Gathered((*seatings, *first_copies(self._manifest, rows)), "every stage has a node")


def _waiting(stages: list[int], nodes: int, least_bytes: int) -> str:
    which, many = ", ".join(map(str, stages)), len(stages) > 1
    need = "a node" if nodes == 1 else f"{nodes} more nodes"
    return f"waiting: stage{'s' if many else ''} {which} need{'' if many else 's'} {need} with >= {least_bytes / 1e9:.1f} GB"
