"""A voter's side of deciding a record: what it promised and what it holds for the next place in the chain."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from protocol.chain import Chain
from protocol.ids import NO_BALLOT, Ballot, Member, RecordId
from protocol.messages import Prepare, Promise, Proposed
from protocol.records import Record, Share, is_fork, record_id

MAX_PLACES = 1 << 14
"""Places at which a node remembers that it voted."""
MAX_TOLD = 4
"""Decided records in one message, to one that lacks them."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A proposed record that this voter holds."""

    ballot: Ballot
    record: Record
    shares: tuple[Share, ...]

    @property
    def id(self) -> RecordId:
        """Name of the record."""
        return record_id(self.record)


class Acceptor:
    """Holds at most one record: the one for the place after the head."""

    def __init__(self) -> None:
        self.promised: Ballot = NO_BALLOT
        self.holding: Holding | None = None
        self.floor: Ballot = NO_BALLOT
        """In a lineage that this node has left it promised to serve no lower one. It may follow a lower one, and votes not."""
        self._granted: Member | None = None
        self._voted: deque[RecordId] = deque(maxlen=MAX_PLACES)
        self._barred: frozenset[RecordId] = frozenset()

    def begin_anew(self) -> None:
        """The node leaves its lineage and forgets what it held. The same places and ballots may be open elsewhere, where it is
        a voter still: there it votes no more."""
        self.floor, self.promised = max(self.floor, self.promised), NO_BALLOT
        self.holding, self._granted = None, None
        self._barred = frozenset(self._voted)

    def may_vote(self, head: RecordId, ballot: Ballot) -> bool:
        """May this node promise or hold something for the place after `head`?"""
        return head not in self._barred and ballot >= self.floor

    def follow(self, ballot: Ballot) -> bool:
        """A coordinator speaks with `ballot`. False if a higher one was promised: the speaker is fenced."""
        if ballot < self.promised:
            return False
        self.promised = ballot
        return True

    def grant(self, ballot: Ballot, to: Member) -> bool:
        """A candidate asks for the promise to serve no lower ballot. A term is granted once, and to one life of a candidate, so
        that terms alone tell coordinators (and their attempts) apart; the same one may ask again."""
        again = ballot == self.promised and self._granted == to
        if ballot.term <= max(self.promised.term, self.floor.term) and not again:
            return False
        self.promised, self._granted = ballot, to
        return True

    def promise(self, asked: Prepare, chain: Chain) -> Promise:
        """The answer to a Prepare that was granted: where this voter stands, what it holds for the next place, and decided
        records that the candidate lacks."""
        assert self.promised == asked.ballot, f"{asked.ballot} was not granted, {self.promised} was"
        held = self.after(chain.head)
        left = (Proposed(held.ballot, held.record, held.shares),) if held else ()
        self._vote(chain.head)
        ahead = (chain.after(asked.head) or [])[:MAX_TOLD]
        return Promise(asked.ballot, chain.head, left, tuple(Proposed(asked.ballot, d.record, d.shares) for d in ahead))

    def hold(self, ballot: Ballot, record: Record, shares: tuple[Share, ...]) -> bool:
        """Hold the record, in place of one of a lower ballot. One record per ballot and place: a second one is refused. A
        Roster that forks is nobody's to hold: it would take the place of one that a quorum may need."""
        if is_fork(record) or not self.may_vote(record.parent, ballot) or not self.follow(ballot):
            return False
        held = self.holding
        if held and held.record.parent == record.parent and held.ballot == ballot:
            return held.id == record_id(record)
        self.holding = Holding(ballot, record, shares)
        self._vote(record.parent)
        return True

    def after(self, head: RecordId) -> Holding | None:
        """What this voter holds for the place after `head`: it may have been decided."""
        return self.holding if self.holding and self.holding.record.parent == head else None

    def _vote(self, head: RecordId) -> None:
        if not self._voted or self._voted[-1] != head:
            self._voted.append(head)

    def settled(self, head: RecordId) -> None:
        """`head` was decided: what was held for its place, or for an earlier one, is of no more use."""
        if self.holding and self.holding.record.parent != head:
            self.holding = None
