"""What members are told of the chain by the coordinator: each decision, and what they lack of earlier ones."""

from __future__ import annotations

from collections.abc import Collection

from protocol.chain import Chain
from protocol.commands import SendMessage
from protocol.crediting import above_of
from protocol.fork import is_left_behind
from protocol.ids import Ballot, Member, PeerId, RecordId
from protocol.ledger import contacts_of
from protocol.manifest import TimingSection
from protocol.messages import Decide
from protocol.records import Commit, Record, Roster, Share
from protocol.view import View

RESEND_HEARTBEATS = 2.0
NEVER = -1e9


class Teller:
    """`addresses`: where peers are reached, as the coordinator knows it at each moment."""

    def __init__(
        self, ballot: Ballot, me: Member, chain: Chain, view: View, addresses: dict[PeerId, str], timing: TimingSection
    ) -> None:
        self._ballot, self._me, self._chain, self._view, self._addresses = ballot, me, chain, view, addresses
        self._heartbeat_s, self._lapse_s = timing.heartbeat_s, timing.lapse_s
        self._told_at: dict[PeerId, float] = {}
        self._asked_at: dict[PeerId, float] = {}
        self._parting: dict[PeerId, float] = {}
        """Who went in order by what was decided, and until when it is waited for to say that it knows."""

    # ---- decisions ----

    def decided(
        self, record: Record, shares: tuple[Share, ...], held: Collection[Member], leaving: Collection[Member], now: float
    ) -> list[SendMessage]:
        """Tell everybody who was or is on the roster, before the record is appended. Those that `held` it have its shares."""
        joined = [] if isinstance(record, Commit) else [s.member for s in record.joins]
        members, known = self._chain.members(), {voter.peer for voter in held}
        left = [s.member for s in record.leaves] if isinstance(record, Roster) else []
        self._parting |= {m.peer: now + self._lapse_s for m in left if m in leaving and m != self._me}
        out = []
        for peer in dict.fromkeys(m.peer for m in (*members, *joined)):
            self.told(peer, now)
            out.append(self._decision(peer, record, () if peer in known else shares))
        return out

    def _decision(self, peer: PeerId, record: Record, shares: tuple[Share, ...]) -> SendMessage:
        """Voters keep the shares, for those that ask for the record later; nobody else needs them once it is decided."""
        voters = {self._me.peer, *(v.peer for v in self._chain.voters)}
        kept = shares if peer in voters else ()
        seated = [] if isinstance(record, Commit) else [s.member.peer for s in record.joins]
        contacts = contacts_of(list(dict.fromkeys(seated)), self._addresses)
        above = () if kept else above_of(peer, record, shares, self._chain.manifest)
        return SendMessage(peer, Decide(self._ballot, record, kept, contacts, above))

    # ---- who lacks something ----

    def told(self, peer: PeerId, now: float) -> None:
        """The peer was told of a decision or an attempt: its heartbeats show that only after a while."""
        self._told_at[peer] = now

    def is_due(self, peer: PeerId, now: float) -> bool:
        """Was it told so long ago that it should know by now?"""
        return now - self._told_at.get(peer, NEVER) >= RESEND_HEARTBEATS * self._heartbeat_s

    def heard(self, from_: Member, head: RecordId, now: float) -> list[SendMessage]:
        """Its heartbeat names the newest record that it knows; it is told what it lacks."""
        if head == self._chain.head:
            self._parting.pop(from_.peer, None)
            return []
        self.told(from_.peer, now)
        return self._lacking(from_, head)

    def asked(self, by: Member, head: RecordId, now: float) -> list[SendMessage]:
        """It wants what came after `head`; it is answered once per heartbeat."""
        if now - self._asked_at.get(by.peer, NEVER) < self._heartbeat_s:
            return []
        self._asked_at[by.peer] = now
        return self._lacking(by, head)

    def _lacking(self, to: Member, head: RecordId) -> list[SendMessage]:
        """What was decided after `head`; where this node has not got all of it any more, where the chain stands. Whoever was
        left behind is told nothing."""
        peer, after = to.peer, self._chain.after(head)
        if is_left_behind(to, head, self._chain):
            return []
        if after is None and peer in self._chain.seen:
            contacts = contacts_of([m.peer for m in self._chain.members()], self._addresses)
            return [SendMessage(peer, self._chain.summary(self._ballot, contacts))]
        return [self._decision(peer, decided.record, decided.shares) for decided in after or ()]

    # ---- who knows ----

    def left(self, peer: PeerId) -> None:
        """It said goodbye."""
        self._parting.pop(peer, None)

    def is_caught_up(self, now: float) -> bool:
        """Has everybody that still lives said that it knows the head: members, and those that it lets go?"""
        members = all(m == self._me or self._view.lapsed(m.peer, now) or self._knows(m.peer) for m in self._chain.members())
        return members and not any(now < until for until in self._parting.values())

    def _knows(self, peer: PeerId) -> bool:
        news = self._view.news.get(peer)
        return news is not None and news.head == self._chain.head

    def forget_old(self, now: float) -> None:
        """What was told and asked so long ago that it does not matter any more."""
        self._told_at = {peer: at for peer, at in self._told_at.items() if not self.is_due(peer, now)}
        self._asked_at = {peer: at for peer, at in self._asked_at.items() if now - at < self._heartbeat_s}
        self._parting = {peer: until for peer, until in self._parting.items() if now < until}
