"""A record on its way to be decided, in the hands of whoever proposed it."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.chain import is_quorum
from protocol.ids import Ballot, Member
from protocol.messages import Held, Propose
from protocol.records import Record, Share, record_id


@dataclass(slots=True)
class Proposal:
    """One record under one ballot, and the voters that said they hold it."""

    ballot: Ballot
    record: Record
    shares: tuple[Share, ...]
    opened_at: float = 0.0
    sent_at: float = 0.0
    held: set[Member] = field(default_factory=set)

    def ask(self) -> Propose:
        """What a voter is told."""
        return Propose(self.ballot, self.record, self.shares)

    def enter(self, member: Member, message: Held) -> None:
        """A voter holds something; under this ballot, and this record?"""
        if message.ballot == self.ballot and message.record == record_id(self.record):
            self.held.add(member)

    def is_decided(self, voters: tuple[Member, ...]) -> bool:
        """Does a quorum of the voters of its place hold it?"""
        return is_quorum(self.held, voters)
