"""Going on without a quorum: who is still there, whether together they hold every stage or can make it again, and the record
that parts them from the rest.

What a minority held when it parted is not taken over: it cannot know whether a quorum holds it too, and a record that is
decided without a quorum of its parent's voters would stand beside what the others decide. The open step is run again.

A stage that none of them holds is rebuilt later as any lost one. But they may be the ones that are cut off: so a lineage that
parted *with a loss* counts it (`Chain.lossy_forks`), and ranks below all that lost less (`protocol.meeting`).
"""

from __future__ import annotations

from collections.abc import Collection

from protocol.chain import Chain, choose_voters
from protocol.ids import Ballot, Member, RecordId
from protocol.losses import promotions
from protocol.records import Record, Roster, is_fork
from protocol.view import View


def in_order(members: Collection[Member], chain: Chain, num_stages: int) -> list[Member]:
    """Those of the members that have a seat, in the order in which they stand for the role: active holders of stage 0 first,
    then of S1, of S_N, the rest, each by id."""
    order = {0: 0, 1: 1, num_stages - 1: 2}
    best: dict[Member, int] = {}
    for seating in chain.seatings:
        place = order.get(seating.stage, 3) if seating.role == "active" else 3
        best[seating.member] = min(place, best.get(seating.member, 3))
    return sorted((m for m in members if m in best), key=lambda m: (best[m], m))


def uncovered(chain: Chain, members: Collection[Member]) -> list[int]:
    """Stages whose whole state none of the members has."""
    return [s for s in range(len(chain.state_ids)) if all(x.member not in members for x in chain.holders(s))]


def unmakeable(chain: Chain, members: Collection[Member]) -> list[int]:
    """Of these stages none of the members has the whole state, and they cannot make it again: they have to wait for a holder. A
    stage that is itself being made is nobody's source: whoever is seated there may not have it yet.
    Under policy `checkpoint` everything is saved elsewhere."""
    lacking, manifest = uncovered(chain, members), chain.manifest
    if manifest.recovery.policy == "checkpoint":
        return []
    if manifest.recovery.policy == "none":
        return lacking
    sources = [s for s in range(1, manifest.num_stages) if s not in lacking and s not in chain.rebuilds]
    return [s for s in lacking if s == 0 or not (sources or manifest.redraws)]


def may_part(chain: Chain, stay: Collection[Member], heard: Collection[Member]) -> bool:
    """May `stay` go on by themselves? Not without a source for every stage; and no stage is made again of which a holder is
    heard, who only has not promised yet."""
    lacking = uncovered(chain, stay)
    return not unmakeable(chain, stay) and not any(x.member in heard for s in lacking for x in chain.holders(s))


def fork_roster(chain: Chain, ballot: Ballot, stay: Collection[Member], me: Member) -> Roster:
    """The record with which `stay` part from everybody else, `me` first among the voters."""
    seats = [s for s in chain.seatings if s.member in stay]
    leaves = tuple(s for s in chain.seatings if s.member not in stay)
    promoted = promotions(seats)
    voters = choose_voters([*seats, *promoted], me)
    return Roster(chain.head, chain.step, promoted, leaves, voters, ballot)


def parts_from(me: Member, record: Record, chain: Chain) -> bool:
    """Does the record part others from this node, which holds a stage? Then it begins a lineage of theirs, and is not for this
    node to learn. A learner has nothing to go on with, and may only have heard of its seat when it was lost already."""
    if not is_fork(record):
        return False
    mine = {s.stage for s in chain.seats_of(me) if s.role != "learner"}
    return bool(mine) and mine <= {s.stage for s in record.leaves if s.member == me}


def leaves_behind(member: Member, record: Record) -> bool:
    """Is it a record with which others parted from the member, though it held a stage? It lives on in another lineage."""
    return is_fork(record) and any(s.member == member and s.role != "learner" for s in record.leaves)


def is_left_behind(member: Member, head: RecordId, chain: Chain) -> bool:
    """Does the member stand at a place after which this lineage parted from it? It is not led from here, where it would wait
    for what it cannot learn; what it promised is another lineage's affair."""
    return any(leaves_behind(member, decided.record) for decided in chain.after(head) or ())


class Roll:
    """Who answers when everybody on the roster is called."""

    def __init__(self, me: Member, chain: Chain, view: View) -> None:
        self._me, self._chain, self._view = me, chain, view
        self.called_at: float | None = None

    @property
    def is_on(self) -> bool:
        """Is everybody being called?"""
        return self.called_at is not None

    def call(self, now: float) -> None:
        """Heartbeats go to everybody from now on (`NodeState` sends them), and answers count."""
        if self.called_at is None:
            self.called_at = now

    def end(self) -> None:
        """Nobody is called any more."""
        self.called_at = None

    def present(self, now: float) -> set[Member]:
        """This node, and those whose heartbeats came since they were called, and still come. Who lacks the state of its seats
        is no holder to wait for: it has begun anew, and may be unable to promise anything here."""
        began = now if self.called_at is None else self.called_at
        return {m for m in self._chain.members() if m == self._me or self._answers(m, began, now)}

    def _answers(self, member: Member, began: float, now: float) -> bool:
        return self._view.holds(member, now) and self._view.news[member.peer].at > began
