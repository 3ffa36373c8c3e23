"""Which coordinator a node follows: the one that it learned of first, until somebody on the roster has taken over."""

from __future__ import annotations

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.ids import NO_BALLOT, Ballot, Member, PeerId
from protocol.messages import Heartbeat

MAX_TERM_AHEAD = 1 << 20
"""A ballot further ahead than this is no honest one: terms grow by one."""


class Leader:
    """`peer` is '' while none is known. Anybody may send any ballot, so a ballot counts only from the peer that the directory
    named, in the incarnation that this node met (a restarted coordinator has forgotten what it decided), or a higher one from
    a member on the roster: those speak as coordinator only after a quorum of voters has promised to follow them."""

    def __init__(self, acceptor: Acceptor, chain: Chain, founder: Member | None) -> None:
        self.peer: PeerId = founder.peer if founder else ""
        self.ballot: Ballot = Ballot(1, founder.peer) if founder else NO_BALLOT
        self.retired = ""
        """Why it leads no more though it lives; '' if it may lead."""
        self._incarnation = founder.incarnation if founder else None
        self._acceptor, self._chain = acceptor, chain

    def learn(self, peer: PeerId) -> None:
        """The directory names `peer`."""
        self.peer, self.ballot, self._incarnation, self.retired = peer, NO_BALLOT, None, ""

    def heard(self, peer: PeerId, incarnation: int) -> None:
        """`peer` said something, in this incarnation."""
        if peer != self.peer:
            return
        if self._incarnation is None:
            self._incarnation = incarnation
        if incarnation > self._incarnation:
            self.retired = "was restarted"

    def beats(self, peer: PeerId, beat: Heartbeat) -> None:
        """`peer` says where it stands. It may have been followed as a candidate, for a record that it found and decided, and
        have lost its own seat by that. What it said before it stood has a lower ballot."""
        if peer == self.peer and beat.aside and beat.ballot >= self.ballot:
            self.retired = "has stepped aside"

    def speaks(self, peer: PeerId, incarnation: int, ballot: Ballot) -> bool:
        """Is this the coordinator, with the highest ballot that was seen here?"""
        if ballot.peer != peer or not (peer == self.peer or self._succeeds(Member(peer, incarnation), ballot)):
            return False
        if not self._acceptor.follow(ballot):
            return False
        if ballot > self.ballot:
            self.peer, self.ballot, self._incarnation, self.retired = peer, ballot, incarnation, ""
        return incarnation == self._incarnation

    def _succeeds(self, member: Member, ballot: Ballot) -> bool:
        ahead = ballot.term - self.ballot.term
        return ballot > self.ballot and ahead <= MAX_TERM_AHEAD and self._chain.member_of(member.peer) == member
