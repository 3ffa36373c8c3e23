"""Every behaviour of a few nodes that decide records, up to a bound: breadth-first over states of the shipped machines.

What runs is `Acceptor`, `Candidate`, `Proposal`, `Chain` and `choose_voters`; this module only delivers and explores. A
letter stays deliverable until it can have no effect any more, once, often or never: so loss, delay, reordering and repetition
are all in. Any voter may find the coordinator silent at any moment. A crash is a restart: the node comes back as the next
incarnation, caught up with what it knew to be decided, with no memory of what it promised or held and without the letters that
were on their way to it; or it never speaks again.
Answers are taken in by quorums: whoever waits for more does the same later, as no letter is lost for good.

A node's state and a letter are hashed once, and are small integers then; what a node does with a letter is computed once.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from protocol.acceptor import Acceptor, Holding
from protocol.candidate import Candidate
from protocol.chain import Chain, choose_voters
from protocol.ids import ATTEMPTS_PER_TERM, NO_BALLOT, Ballot, Member, RecordId
from protocol.manifest import Manifest
from protocol.messages import Decide, Held, Prepare, Promise, Propose
from protocol.proposal import Proposal
from protocol.records import Commit, Record, Roster, Seating, StageResult, record_id

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


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far to look."""

    terms: int
    places: int
    """Records after the first Roster."""
    crashes: int
    rosters: bool = True
    """May a coordinator take members off the roster?"""
    stand: str = "abc"
    """Who may stand for the role."""


@dataclass(slots=True)
class Found:
    """What was seen."""

    states: int = 0
    decided: set[tuple[int, RecordId]] = field(default_factory=set)
    """(term, record)"""
    taken_over: set[tuple[int, RecordId]] = field(default_factory=set)
    """Those that were decided under another ballot than the one that they were made for."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a node did: its new state, what it sent to each node (bits), and the record that it decided (-1: none)."""

    node: int
    sent: tuple[int, ...]
    decided: int = -1


State = tuple[tuple[tuple[int, int], ...], int, int]
"""((node, its letters) of each node, records decided (bits), crashes left)"""


class Live:
    """A node's machines, made from its plain values; `freeze` gives those back."""

    def __init__(self, node: Node, chain: Chain) -> None:
        self.node, self.me = node, node.me
        self.chain = copy.copy(chain)
        self.chain._kept = copy.copy(chain._kept)
        self.records = list(node.records)
        self.acceptor = Acceptor()
        self.acceptor.promised, self.acceptor.holding = node.promised, node.holding
        self.acceptor._granted = node.granted
        self.ballot, self.leads = node.ballot, node.leads
        self.candidate: Candidate | None = None
        self.proposal: Proposal | None = None
        if node.ballot and not node.leads:
            self.candidate = Candidate(node.ballot, self.chain)
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
        )

    # ---- what a node does, as NodeState and Takeover do it ----

    def learn(self, record: Record) -> None:
        if record.parent == self.chain.head and not self.chain.fits(record):
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

    def stand(self) -> None:
        term = 1 + max(self.acceptor.promised.term, self.ballot.term if self.ballot else 0)
        self.ballot, self.leads, self.proposal = Ballot(term, self.me.peer), False, None
        self.candidate = Candidate(self.ballot, self.chain)
        self.ask()

    def ask(self) -> None:
        assert self.candidate
        if self.candidate.proposal:
            self.send("", self.candidate.proposal.ask())
            return
        for voter in self.chain.voters:
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

    def decide(self, proposal: Proposal) -> None:
        self.send("", Decide(proposal.ballot, proposal.record, ()))
        self.learn(proposal.record)

    def receive(self, sender: Member, message: Message) -> None:
        if isinstance(message, Prepare):
            if self.chain.member_of(sender.peer) == sender and self.acceptor.grant(message.ballot, sender):
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


class Explorer:
    """All states that are reachable within the bounds, each once."""

    def __init__(self, manifest: Manifest, seatings: tuple[Seating, ...], bounds: Bounds) -> None:
        self._manifest, self._bounds = manifest, bounds
        self._members = list(dict.fromkeys(s.member for s in seatings))
        self._chains: dict[tuple[Record, ...], Chain] = {(): Chain(manifest, self._members[0])}
        self._node_at: list[Node] = []
        self._nodes: dict[Node, int] = {}
        self._letter_at: list[Letter] = []
        self._letters: dict[Letter, int] = {}
        self._records: dict[RecordId, int] = {}
        self._parents: dict[int, RecordId] = {}
        self._rivals: list[int] = []
        self._answers = 0
        self._useful: dict[tuple[int, int], bool] = {}
        self._swept: dict[tuple[int, int], int] = {}
        self._alone: dict[int, list[Effect]] = {}
        self._answered: dict[tuple[int, int], list[Effect]] = {}
        self._single: dict[tuple[int, int], Effect] = {}
        self.found = Found()
        voters = choose_voters(list(seatings), self._members[0])
        self._first = Roster(self._chains[()].head, 0, seatings, (), voters)

    # ---- tables ----

    def _chain(self, records: tuple[Record, ...]) -> Chain:
        known = self._chains.get(records)
        if known is None:
            before = self._chain(records[:-1])
            known = copy.copy(before)
            known._kept = copy.copy(before._kept)
            known.append(records[-1], ())
            self._chains[records] = known
        return known

    def _node_id(self, node: Node) -> int:
        known = self._nodes.setdefault(node, len(self._node_at))
        if known == len(self._node_at):
            self._node_at.append(node)
        return known

    def _letter_id(self, letter: Letter) -> int:
        known = self._letters.setdefault(letter, len(self._letter_at))
        if known == len(self._letter_at):
            self._letter_at.append(letter)
            if isinstance(letter.message, Held) or (isinstance(letter.message, Promise) and not letter.message.decided):
                self._answers |= 1 << known
        return known

    def _record_number(self, record: Record) -> int:
        """Also learns which decided records it would fork from."""
        name = record_id(record)
        known = self._records.setdefault(name, len(self._records))
        if known == len(self._rivals):
            self._rivals.append(0)
            self._parents[known] = record.parent
            same = [n for n, parent in self._parents.items() if parent == record.parent]
            for number in same:
                self._rivals[number] = sum(1 << other for other in same if other != number)
        return known

    def _sweep(self, node: int, letters: int) -> int:
        """The letters that may still have an effect on the node."""
        known = self._swept.get((node, letters))
        if known is None:
            known = sum(1 << i for i in _bits(letters) if self._is_useful(node, i))
            self._swept[node, letters] = known
        return known

    def _is_useful(self, node: int, letter: int) -> bool:
        known = self._useful.get((node, letter))
        if known is None:
            plain, message = self._node_at[node], self._letter_at[letter].message
            if isinstance(message, Promise):
                known = message.ballot == plain.ballot and not plain.leads
            elif isinstance(message, Held):
                known = message.ballot == plain.ballot
            else:
                past = not isinstance(message, Prepare) and message.record.parent in [r.parent for r in plain.records]
                known = not past and (message.ballot >= plain.promised or self._does_something(node, letter))
            self._useful[node, letter] = known
        return known

    def _does_something(self, node: int, letter: int) -> bool:
        effect = self._told(self._node_at[node], [self._letter_at[letter]])
        return effect.node != node or any(effect.sent)

    # ---- one node ----

    def _after(self, live: Live, before: Node, group: list[Letter]) -> Effect:
        live.settle()
        sent, decided = [0] * len(self._members), -1
        for letter in live.sent:
            number = self._letter_id(letter)
            for place, member in enumerate(self._members):
                if letter.to in ("", member.peer) and member.peer != live.me.peer:
                    sent[place] |= 1 << number
            if isinstance(letter.message, Decide):
                assert decided < 0, "one answer decides one record"
                decided = self._record_number(letter.message.record)
                self._check_quorum(before, live, letter.message, group)
        return Effect(self._node_id(live.freeze()), tuple(sent), decided)

    def _effects_of(self, node: int, letters: int) -> Iterator[Effect]:
        """All that a node may do next, with these letters in front of it."""
        plain = self._node_at[node]
        if node not in self._alone:
            self._alone[node] = [self._after(live, plain, []) for live in self._own(plain)]
        yield from self._alone[node]
        answers = letters & self._answers
        if (node, answers) not in self._answered:
            groups = _groups(plain, [self._letter_at[i] for i in _bits(answers)])
            self._answered[node, answers] = [self._told(plain, group) for group in groups]
        yield from self._answered[node, answers]
        for letter in _bits(letters & ~self._answers):
            known = self._single.get((node, letter))
            if known is None:
                known = self._single[node, letter] = self._told(plain, [self._letter_at[letter]])
            yield known

    def _told(self, plain: Node, group: list[Letter]) -> Effect:
        live = Live(plain, self._chain(plain.records))
        for letter in group:
            live.receive(letter.sender, letter.message)
        return self._after(live, plain, group)

    def _own(self, plain: Node) -> Iterator[Live]:
        """What a node does without being told."""
        chain = self._chain(plain.records)
        term = max(plain.promised.term, plain.ballot.term if plain.ballot else 0)
        may = plain.me.peer in self._bounds.stand and plain.me in chain.voters
        if may and chain.member_of(plain.me.peer) == plain.me and term < self._bounds.terms:
            live = Live(plain, chain)
            live.stand()
            yield live
        if plain.leads and plain.proposal is None and len(plain.records) <= self._bounds.places:
            for record in self._proposals(plain, chain):
                live = Live(plain, chain)
                assert live.ballot
                live.proposal = Proposal(live.ballot, record, ())
                live.send("", live.proposal.ask())
                yield live

    def _proposals(self, plain: Node, chain: Chain) -> Iterator[Record]:
        assert plain.ballot
        attempt = ATTEMPTS_PER_TERM * (plain.ballot.term - 1) + 1
        if not chain.empty_stages():
            results = tuple(StageResult(s, "d", 1.0, "c") for s in range(self._manifest.num_stages))
            tokens = self._manifest.batch.tokens_per_step
            yield Commit(chain.head, chain.step + 1, attempt, results, 1.0, tokens)
        for gone in chain.members() if self._bounds.rosters else ():
            if gone != plain.me:
                leaves = tuple(s for s in chain.seatings if s.member == gone)
                stay = [s for s in chain.seatings if s.member != gone]
                yield Roster(chain.head, chain.step, (), leaves, choose_voters(stay, plain.me))

    # ---- all nodes ----

    def explore(self, limit: int) -> Found:
        """Visit every state; raises `ForkError` where the invariant breaks. There must be at most `limit`."""
        first = self._begin()
        seen = {first}
        queue = deque([first])
        while queue:
            for after in self._successors(queue.popleft()):
                if after not in seen:
                    seen.add(after)
                    queue.append(after)
            assert len(seen) <= limit, f"more than {limit} states"
        self.found.states = len(seen)
        return self.found

    def _begin(self) -> State:
        """The founder leads, and everybody knows the first Roster."""
        ballot = Ballot(1, self._members[0].peer)
        nodes = [Node(m, (self._first,), ballot) for m in self._members]
        nodes[0] = replace(nodes[0], ballot=ballot, leads=True)
        return tuple((self._node_id(node), 0) for node in nodes), 0, self._bounds.crashes

    def _successors(self, state: State) -> Iterator[State]:
        nodes, decided, crashes = state
        for place, (node, letters) in enumerate(nodes):
            for effect in self._effects_of(node, letters):
                after = self._deliver(nodes, place, effect)
                bit = 1 << effect.decided if effect.decided >= 0 else 0
                if bit and decided & self._rivals[effect.decided]:
                    raise ForkError("two records are decided after one parent")
                if after != nodes or decided | bit != decided:
                    yield after, decided | bit, crashes
            if crashes:
                plain = self._node_at[node]
                again = Node(Member(plain.me.peer, plain.me.incarnation + 1), plain.records)
                fresh = (self._node_id(again), 0)
                yield (*nodes[:place], fresh, *nodes[place + 1 :]), decided, crashes - 1

    def _deliver(self, nodes: tuple[tuple[int, int], ...], place: int, effect: Effect) -> tuple[tuple[int, int], ...]:
        after = list(nodes)
        after[place] = (effect.node, nodes[place][1])
        for i, bits in enumerate(effect.sent):
            if bits or i == place:
                node, letters = after[i]
                after[i] = (node, self._sweep(node, letters | bits))
        return tuple(after)

    def _check_quorum(self, before: Node, live: Live, decide: Decide, group: list[Letter]) -> None:
        """Those whose word the decision rests on are a quorum of the voters of its place, by a count of our own."""
        record, name = decide.record, record_id(decide.record)
        records = list(before.records)
        while records and record_id(records[-1]) != record.parent:
            records.pop()
        voters = self._chain(tuple(records)).voters
        holds = {x.sender for x in group if isinstance(x.message, Held) and x.message.record == name}
        if live.held_now or (before.holding and (before.holding.ballot, before.holding.id) == (decide.ballot, name)):
            holds.add(live.me)
        holds &= set(voters)
        if not (2 * len(holds) > len(voters) or (2 * len(holds) == len(voters) and voters[0] in holds)):
            raise ForkError(f"decided with {len(holds)} of {len(voters)} voters")
        self.found.decided.add((decide.ballot.term, name))
        if isinstance(record, Commit) and record.attempt // ATTEMPTS_PER_TERM + 1 != decide.ballot.term:
            self.found.taken_over.add((decide.ballot.term, name))


def _groups(plain: Node, letters: list[Letter]) -> Iterator[list[Letter]]:
    if plain.ballot is None:
        return
    if plain.proposal is not None:
        name = record_id(plain.proposal[0])
        yield [
            x for x in letters if isinstance(x.message, Held) and (x.message.ballot, x.message.record) == (plain.ballot, name)
        ]
    if not plain.leads and plain.proposal is None:
        promises = [x for x in letters if isinstance(x.message, Promise) and x.message.ballot == plain.ballot]
        for size in range(1, len(promises) + 1):
            for group in itertools.combinations(promises, size):
                if len({x.sender for x in group}) == size:
                    yield list(group)


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        bits ^= low
        yield low.bit_length() - 1
