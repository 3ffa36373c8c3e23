"""What members are told of the chain by the coordinator: each decision, and what they lack of earlier ones."""

from __future__ import annotations

from protocol.chain import Chain
from protocol.commands import SendMessage
from protocol.fork import is_left_behind
from protocol.ids import Ballot, Member, PeerId, RecordId
from protocol.ledger import contacts_of
from protocol.messages import Decide
from protocol.records import Commit, Record, Share


class Teller:
    """`addresses`: where peers are reached, as the coordinator knows it at each moment."""

    def __init__(self, ballot: Ballot, me: PeerId, chain: Chain, addresses: dict[PeerId, str]) -> None:
        self._ballot, self._me, self._chain, self._addresses = ballot, me, chain, addresses

    def decision(self, peer: PeerId, record: Record, shares: tuple[Share, ...]) -> SendMessage:
        """Voters keep the shares, for those that ask for the record later; nobody else needs them once it is decided."""
        voters = {self._me, *(v.peer for v in self._chain.voters)}
        kept = shares if peer in voters else ()
        seated = [] if isinstance(record, Commit) else [s.member.peer for s in record.joins]
        contacts = contacts_of(list(dict.fromkeys(seated)), self._addresses)
        return SendMessage(peer, Decide(self._ballot, record, kept, contacts))

    def lacking(self, to: Member, head: RecordId) -> list[SendMessage]:
        """What was decided after `head`; where this node has not got all of it any more, where the chain stands. Whoever was
        left behind is told nothing."""
        peer, after = to.peer, self._chain.after(head)
        if is_left_behind(to, head, self._chain):
            return []
        if after is None and peer in self._chain.seen:
            contacts = contacts_of([m.peer for m in self._chain.members()], self._addresses)
            return [SendMessage(peer, self._chain.summary(self._ballot, contacts))]
        return [self.decision(peer, decided.record, decided.shares) for decided in after or ()]
