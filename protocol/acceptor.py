"""A voter's side of deciding a record: what it promised and what it holds for the next place in the chain."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import NO_BALLOT, Ballot, RecordId
from protocol.records import Record, Share, record_id


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

    def follow(self, ballot: Ballot) -> bool:
        """A coordinator speaks with `ballot`. False if a higher one was promised: the speaker is fenced."""
        if ballot < self.promised:
            return False
        self.promised = ballot
        return True

    def hold(self, ballot: Ballot, record: Record, shares: tuple[Share, ...]) -> bool:
        """Hold the record, in place of one of a lower ballot. One record per ballot and place: a second one is refused."""
        if not self.follow(ballot):
            return False
        held = self.holding
        if held and held.record.parent == record.parent and held.ballot == ballot:
            return held.id == record_id(record)
        self.holding = Holding(ballot, record, shares)
        return True

    def settled(self, head: RecordId) -> None:
        """`head` was decided: what was held for its place, or for an earlier one, is of no more use."""
        if self.holding and self.holding.record.parent != head:
            self.holding = None
