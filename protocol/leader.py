"""Which coordinator a node follows. In a swarm whose coordinator does not change that is the one it learned of first."""

from __future__ import annotations

from protocol.acceptor import Acceptor
from protocol.ids import NO_BALLOT, Ballot, Member, PeerId


class Leader:
    """`peer` is '' while none is known. Anybody may send any ballot, so a ballot counts only from the peer that the directory
    named, in the incarnation that this node met: a restarted coordinator has forgotten what it decided."""

    def __init__(self, acceptor: Acceptor, founder: Member | None) -> None:
        self.peer: PeerId = founder.peer if founder else ""
        self.ballot: Ballot = Ballot(1, founder.peer) if founder else NO_BALLOT
        self.restarted = False
        self._incarnation = founder.incarnation if founder else None
        self._acceptor = acceptor

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
        if peer != self.peer or ballot.peer != peer or not self._acceptor.follow(ballot):
            return False
        if ballot > self.ballot:
            self.ballot, self._incarnation, self.restarted = ballot, incarnation, False
        return incarnation == self._incarnation
