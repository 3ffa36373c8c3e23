"""Which coordinator a node follows: the one that it learned of first, until somebody on the roster has taken over."""

from __future__ import annotations

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.ids import NO_BALLOT, Ballot, Member, PeerId

MAX_TERM_AHEAD = 1 << 20
"""A ballot further ahead than this is no honest one: terms grow by one."""


class Leader:
    """`peer` is '' while none is known. Anybody may send any ballot, so a ballot counts only from the peer that the directory
    named, in the incarnation that this node met (a restarted coordinator has forgotten what it decided), or a higher one from
    a member on the roster: those speak as coordinator only after a quorum of voters has promised to follow them."""

    def __init__(self, acceptor: Acceptor, chain: Chain, founder: Member | None) -> None:
        self.peer: PeerId = founder.peer if founder else ""
        self.ballot: Ballot = Ballot(1, founder.peer) if founder else NO_BALLOT
        self.restarted = False
        self._incarnation = founder.incarnation if founder else None
        self._acceptor, self._chain = acceptor, chain

    def learn(self, peer: PeerId) -> None:
        """The directory names `peer`."""
        self.peer, self.ballot, self._incarnation, self.restarted = peer, NO_BALLOT, None, False

    def heard(self, peer: PeerId, incarnation: int) -> None:
        """`peer` said something, in this incarnation."""
        if peer != self.peer:
            return
        if self._incarnation is None:
            self._incarnation = incarnation
        self.restarted |= incarnation > self._incarnation

    def speaks(self, peer: PeerId, incarnation: int, ballot: Ballot) -> bool:
        """Is this the coordinator, with the highest ballot that was seen here?"""
        if ballot.peer != peer or not (peer == self.peer or self._succeeds(Member(peer, incarnation), ballot)):
            return False
        if not self._acceptor.follow(ballot):
            return False
        if ballot > self.ballot:
            self.peer, self.ballot, self._incarnation, self.restarted = peer, ballot, incarnation, False
        return incarnation == self._incarnation

    def _succeeds(self, member: Member, ballot: Ballot) -> bool:
        ahead = ballot.term - self.ballot.term
        return ballot > self.ballot and ahead <= MAX_TERM_AHEAD and self._chain.member_of(member.peer) == member
