"""One node of the exhaustive check: the shipped machines, made from plain values and given back as such."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

from protocol.acceptor import Acceptor, Holding
from protocol.candidate import Candidate
from protocol.chain import Chain
from protocol.fork import parts_from
from protocol.ids import NO_BALLOT, Ballot, Member, RecordId
from protocol.messages import Decide, Held, Prepare, Promise, Propose
from protocol.proposal import Proposal
from protocol.records import Record, record_id

Message = Decide | Held | Prepare | Promise | Propose


class ForkError(AssertionError):
    """Two records were decided after one parent, or one without a quorum that holds it."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message on its way. `to` '' = everybody."""

    sender: Member
    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Node:
    """All that a node has in memory, as plain values."""

    me: Member
    records: tuple[Record, ...]
    promised: Ballot = NO_BALLOT
    granted: Member | None = None
    holding: Holding | None = None
    ballot: Ballot | None = None
    """Under which it stands or leads."""
    leads: bool = False
    promises: tuple[tuple[Member, Promise], ...] = ()
    proposal: tuple[Record, frozenset[Member]] | None = None
    forks: bool = False
    """It stands, and is ready to go on without a quorum."""
    floor: Ballot = NO_BALLOT
    voted: tuple[RecordId, ...] = ()
    barred: frozenset[RecordId] = frozenset()
    """`voted` is kept only where somebody may begin anew."""


def copy_of(chain: Chain) -> Chain:
    """One that grows apart from it."""
    new = copy.copy(chain)
    new._kept = copy.copy(chain._kept)
    new.state_ids, new.generations = list(chain.state_ids), list(chain.generations)
    new.rebuilds, new.regained = dict(chain.rebuilds), dict(chain.regained)
    return new


class Live:
    """A node's machines, made from its plain values; `freeze` gives those back."""

    def __init__(self, node: Node, chain: Chain, remembers: bool = False) -> None:
        self._remembers = remembers
        self.node, self.me = node, node.me
        self.chain = copy_of(chain)
        self.records = list(node.records)
        self.acceptor = Acceptor()
        self.acceptor.promised, self.acceptor.holding = node.promised, node.holding
        self.acceptor._granted = node.granted
        self.acceptor.floor, self.acceptor._barred = node.floor, node.barred
        self.acceptor._voted.extend(node.voted)
        self.ballot, self.leads = node.ballot, node.leads
        self.candidate: Candidate | None = None
        self.proposal: Proposal | None = None
        if node.ballot and not node.leads:
            self.candidate = Candidate(node.ballot, self.chain, self._all() if node.forks else frozenset())
            self.candidate.promises = dict(node.promises)
            self.candidate.proposal = self._proposal()
        elif node.ballot:
            self.proposal = self._proposal()
        self.sent: list[Letter] = []
        self.held_now = False
        self._own: deque[Message] = deque()

    def _proposal(self) -> Proposal | None:
        if self.node.proposal is None or self.node.ballot is None:
            return None
        record, held = self.node.proposal
        return Proposal(self.node.ballot, record, (), held=set(held))

    def _all(self) -> frozenset[Member]:
        return frozenset(self.chain.members())

    def freeze(self) -> Node:
        proposal = self.candidate.proposal if self.candidate else self.proposal
        promises = sorted(self.candidate.promises.items(), key=lambda item: item[0]) if self.candidate else []
        kept = (proposal.record, frozenset(proposal.held)) if proposal else None
        acceptor = self.acceptor
        return Node(
            self.me,
            tuple(self.records),
            acceptor.promised,
            acceptor._granted,
            acceptor.holding,
            self.ballot,
            self.leads,
            tuple(promises),
            kept,
            bool(self.candidate and self.candidate.forks),
            acceptor.floor,
            tuple(sorted({*acceptor._voted})) if self._remembers else (),
            acceptor._barred,
        )

    def begin_anew(self, records: tuple[Record, ...]) -> Node:
        """It leaves its lineage and takes in another node's chain."""
        self.acceptor.begin_anew()
        self.records, self.ballot, self.leads, self.candidate, self.proposal = list(records), None, False, None, None
        return self.freeze()

    # ---- what a node does, as NodeState and Takeover do it ----

    def learn(self, record: Record) -> None:
        if record.parent == self.chain.head and not self.chain.fits(record) and not parts_from(self.me, record, self.chain):
            self.acceptor.settled(self.chain.append(record, ()))
            self.records.append(record)

    def send(self, to: str, message: Message) -> None:
        """What a node says to itself it hears at once, as in `NodeState`."""
        if to in ("", self.me.peer):
            self._own.append(message)
        if to != self.me.peer:
            self.sent.append(Letter(self.me, to, message))

    def settle(self) -> None:
        while self._own:
            self.receive(self.me, self._own.popleft())

    def retire(self, ballot: Ballot) -> None:
        """Somebody else's higher ballot is served here from now on."""
        if self.ballot and ballot.peer != self.me.peer and ballot > self.ballot:
            self.ballot, self.leads, self.candidate, self.proposal = None, False, None, None

    def stand(self, forks: bool = False) -> None:
        floor = self.acceptor.floor.term
        term = 1 + max(self.acceptor.promised.term, floor, self.ballot.term if self.ballot else 0)
        self.ballot, self.leads, self.proposal = Ballot(term, self.me.peer), False, None
        self.candidate = Candidate(self.ballot, self.chain, self._all() if forks else frozenset())
        self.ask()

    def ask(self) -> None:
        assert self.candidate
        if self.candidate.proposal:
            self.send("", self.candidate.proposal.ask())
            return
        for voter in dict.fromkeys([*self.chain.voters, *sorted(self.candidate.forks)]):
            self.send(voter.peer, self.candidate.prepare(voter))

    def go_on(self) -> None:
        candidate = self.candidate
        assert candidate
        before, head = candidate.proposal, self.chain.head
        while decided := candidate.advance():
            self.decide(decided)
        if candidate.has_won:
            self.leads, self.candidate = True, None
        elif self.chain.head != head or candidate.proposal is not before:
            self.ask()

    def fork(self) -> bool:
        """Part from the rest, if those that promised can."""
        roster = self.candidate.fork(self.me, wait=False) if self.candidate else None
        if roster is None or self.ballot is None:
            return False
        self.learn(roster)
        self.leads, self.candidate = True, None
        self.send("", Decide(self.ballot, roster, ()))
        return True

    def decide(self, proposal: Proposal) -> None:
        self.send("", Decide(proposal.ballot, proposal.record, ()))
        self.learn(proposal.record)

    def receive(self, sender: Member, message: Message) -> None:
        if isinstance(message, Prepare):
            votes = self.chain.member_of(sender.peer) == sender and self.acceptor.may_vote(self.chain.head, message.ballot)
            if votes and self.acceptor.grant(message.ballot, sender):
                self.retire(message.ballot)
                for told in message.decided:
                    self.learn(told.record)
                self.send(sender.peer, self.acceptor.promise(message, self.chain))
        elif isinstance(message, Propose):
            if not self.chain.fits(message.record) and self.acceptor.hold(message.ballot, message.record, ()):
                self.retire(message.ballot)
                self.held_now |= sender == self.me
                self.send(sender.peer, Held(message.ballot, record_id(message.record)))
        elif isinstance(message, Decide):
            if self.acceptor.follow(message.ballot):
                self.retire(message.ballot)
                self.learn(message.record)
        elif isinstance(message, Promise) and self.candidate:
            for told in self.candidate.on_promise(sender, message):
                self.learn(told.record)
            self.go_on()
        elif isinstance(message, Held):
            self.receive_held(sender, message)

    def receive_held(self, sender: Member, message: Held) -> None:
        if self.candidate:
            self.candidate.on_held(sender, message)
            self.go_on()
        elif self.proposal:
            self.proposal.enter(sender, message)
            if self.proposal.is_decided(self.chain.voters):
                proposal, self.proposal = self.proposal, None
                self.decide(proposal)
