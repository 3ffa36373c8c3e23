"""Every behaviour of a few nodes that decide records, up to a bound: breadth-first over states of the shipped machines.

What runs is `Acceptor`, `Candidate`, `Proposal`, `Chain` and `choose_voters`; this module only delivers and explores. A
letter stays deliverable until it can have no effect any more, once, often or never: so loss, delay, reordering and repetition
are all in. Any voter may find the coordinator silent at any moment, and any member that no quorum is left. A crash is a
restart: the node comes back as the next incarnation, caught up with what it knew to be decided, with no memory of what it
promised or held and without the letters that were on their way to it; or it never speaks again.
Answers are taken in by quorums: whoever waits for more does the same later, as no letter is lost for good.

What must hold: in each lineage one chain. A record that does not fork is decided by a quorum of its parent's voters, and at
most one such record after each parent; a Roster that forks seats only members that promised its ballot at its place, and who
hold every stage, or a block stage to make the others of where the policy does that.

A node's state and a letter are hashed once, and are small integers then; what a node does with a letter is computed once.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from protocol.chain import Chain, choose_voters
from protocol.ids import ATTEMPTS_PER_TERM, Ballot, Member, RecordId
from protocol.manifest import Manifest
from protocol.messages import Decide, Held, Prepare, Promise
from protocol.proposal import Proposal
from protocol.recipes import recipe, weights_of
from protocol.records import Commit, Rebuild, Record, Roster, Seating, StageResult, is_fork, record_id
from tests.tools.model_node import ForkError, Letter, Live, Node, copy_of


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far to look."""

    terms: int
    places: int
    """Records after the first Roster, those apart with which a lineage begins."""
    crashes: int
    rosters: bool = True
    """May a coordinator take members off the roster?"""
    stand: str = "abc"
    """Who may stand for the role."""
    fork: str = ""
    """Who may go on without a quorum."""
    vote: str = ""
    """Who only votes and is never told what was decided; the others then hear nothing but votes: so there may be five nodes."""
    anew: bool = False
    """Nobody crashes: so often somebody leaves its lineage instead, for what any other node knows."""


@dataclass(slots=True)
class Found:
    """What was seen."""

    states: int = 0
    decided: set[tuple[int, RecordId]] = field(default_factory=set)
    """(term, record)"""
    taken_over: set[tuple[int, RecordId]] = field(default_factory=set)
    """Those that were decided under another ballot than the one that they were made for."""
    forks: set[RecordId] = field(default_factory=set)
    lossy: set[RecordId] = field(default_factory=set)
    """Those forks that left a stage without a holder."""
    regrown: set[RecordId] = field(default_factory=set)
    """Rebuilds of such a stage."""
    rebuilt: set[tuple[int, RecordId]] = field(default_factory=set)
    """(term, Rebuild) of any stage."""
    rebuilt_over: set[tuple[int, RecordId]] = field(default_factory=set)
    """Those that were decided under the ballot of another node than the one that makes the stage."""
    rebuilt_amid: int = 0
    """States that one is decided in when somebody has restarted."""
    grown: set[RecordId] = field(default_factory=set)
    """Records of a lineage that forked, its first one apart."""
    parted: int = 0
    """States in which a record and a fork were decided after one parent."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a node did: its new state, what it sent to each node (bits), and the record that it decided (-1: none)."""

    node: int
    sent: tuple[int, ...]
    decided: int = -1


State = tuple[tuple[tuple[int, int], ...], int, int]
"""((node, its letters) of each node, records decided (bits), crashes left)"""


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
        self._forks = self._all_rebuilds = 0
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
            known = copy_of(self._chain(records[:-1]))
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
            if is_fork(record):
                self._forks |= 1 << known
            if isinstance(record, Rebuild):
                self._all_rebuilds |= 1 << known
            same = [n for n, parent in self._parents.items() if parent == record.parent and not self._forks & 1 << n]
            for number in same if not is_fork(record) else ():
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
                if letter.to in ("", member.peer) and member.peer != live.me.peer and self._gets_through(letter, member):
                    sent[place] |= 1 << number
            if isinstance(letter.message, Decide):
                assert decided < 0, "one answer decides one record"
                decided = self._record_number(letter.message.record)
                self._check_quorum(before, live, letter.message, group)
        return Effect(self._node_id(live.freeze()), tuple(sent), decided)

    def _gets_through(self, letter: Letter, to: Member) -> bool:
        between = (letter.sender.peer in self._bounds.vote) != (to.peer in self._bounds.vote)
        return not self._bounds.vote or (between and not isinstance(letter.message, Decide))

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
        live = Live(plain, self._chain(plain.records), self._bounds.anew)
        for letter in group:
            live.receive(letter.sender, letter.message)
        return self._after(live, plain, group)

    def _own(self, plain: Node) -> Iterator[Live]:
        """What a node does without being told."""
        chain = self._chain(plain.records)
        term = max(plain.promised.term, plain.ballot.term if plain.ballot else 0)
        if chain.member_of(plain.me.peer) == plain.me and term < self._bounds.terms:
            for forks in self._ways_to_stand(plain, chain):
                live = Live(plain, chain, self._bounds.anew)
                live.stand(forks)
                yield live
        if plain.forks:
            live = Live(plain, chain, self._bounds.anew)
            if live.fork():
                yield live
        if plain.leads and plain.proposal is None and len(plain.records) <= self._bounds.places + self._num_forks(plain):
            for record in self._proposals(plain, chain):
                live = Live(plain, chain, self._bounds.anew)
                assert live.ballot
                live.proposal = Proposal(live.ballot, record, ())
                live.send("", live.proposal.ask())
                yield live

    def _ways_to_stand(self, plain: Node, chain: Chain) -> Iterator[bool]:
        """Ready to go on without a quorum, or not."""
        if plain.me.peer in self._bounds.stand and plain.me in chain.voters:
            yield False
        if plain.me.peer in self._bounds.fork:
            yield True

    def _num_forks(self, plain: Node) -> int:
        return sum(is_fork(record) for record in plain.records)

    def _proposals(self, plain: Node, chain: Chain) -> Iterator[Record]:
        assert plain.ballot
        attempt = ATTEMPTS_PER_TERM * (plain.ballot.term - 1) + 1
        if not chain.empty_stages():
            results = tuple(StageResult(s, "d", 1.0) for s in range(self._manifest.num_stages))
            tokens = self._manifest.batch.tokens_per_step
            yield Commit(chain.head, chain.step + 1, attempt, results, 1.0, tokens)
        yield from self._rebuilds(plain.me, chain)
        for gone in chain.members() if self._bounds.rosters else ():
            if gone != plain.me:
                leaves = tuple(s for s in chain.seatings if s.member == gone)
                stay = [s for s in chain.seatings if s.member != gone]
                yield Roster(chain.head, chain.step, (), leaves, choose_voters(stay, plain.me))

    def _rebuilds(self, me: Member, chain: Chain) -> Iterator[Record]:
        """Of each stage that nobody holds, where the policy does that: at the coordinator."""
        whole = [s for s in range(self._manifest.num_stages) if chain.holders(s)]
        weights = weights_of(chain.squared_norms, self._manifest.batch.tokens_per_step, self._manifest)
        for stage in chain.empty_stages() if self._manifest.recovery.policy != "none" else ():
            made = recipe(stage, whole, chain.state_ids, weights, self._manifest)
            if made.sources:
                joins = (Seating(stage, me, "active", chain.generations[stage] + 1),)
                voters = choose_voters([*chain.seatings, *joins], me)
                yield Rebuild(chain.head, chain.step, stage, joins[0].generation, made.sources, joins, voters)

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
                self.found.parted += bool(bit) and self._is_parted(effect.decided, decided)
                self.found.rebuilt_amid += bool(bit & self._all_rebuilds) and crashes < self._bounds.crashes
                if after != nodes or decided | bit != decided:
                    yield after, decided | bit, crashes
            for again in self._lives_again(nodes, place) if crashes else ():
                fresh = (self._node_id(again), letters if self._bounds.anew else 0)
                yield (*nodes[:place], fresh, *nodes[place + 1 :]), decided, crashes - 1

    def _lives_again(self, nodes: tuple[tuple[int, int], ...], place: int) -> Iterator[Node]:
        """As the next incarnation; or as the same one, that has begun anew."""
        plain = self._node_at[nodes[place][0]]
        if not self._bounds.anew:
            yield Node(Member(plain.me.peer, plain.me.incarnation + 1), plain.records)
            return
        for records in sorted({self._node_at[n].records for n, _ in nodes} - {plain.records}, key=len):
            yield Live(plain, self._chain(plain.records), True).begin_anew(records)

    def _is_parted(self, number: int, decided: int) -> bool:
        """Is there a fork beside this record, or another record beside this fork?"""
        same = sum(1 << n for n, parent in self._parents.items() if parent == self._parents[number] and n != number)
        mine = bool(self._forks & 1 << number)
        return bool(decided & same & (~self._forks if mine else self._forks))

    def _deliver(self, nodes: tuple[tuple[int, int], ...], place: int, effect: Effect) -> tuple[tuple[int, int], ...]:
        after = list(nodes)
        after[place] = (effect.node, nodes[place][1])
        for i, bits in enumerate(effect.sent):
            if bits or i == place:
                node, letters = after[i]
                after[i] = (node, self._sweep(node, letters | bits))
        return tuple(after)

    def _check_fork(self, before: Node, decide: Decide, chain: Chain) -> None:
        """All that it seats have promised, at its place, and they hold every stage, or what it can be made of."""
        roster = decide.record
        assert isinstance(roster, Roster)
        stay = {s.member for s in chain.seatings} - {s.member for s in roster.leaves}
        promised = {m for m, promise in before.promises if (promise.ballot, promise.head) == (decide.ballot, roster.parent)}
        if not stay | set(roster.voters) <= promised or roster.forked != decide.ballot:
            raise ForkError(f"forked with {stay}, and {promised} promised")
        held = {s.stage for s in chain.seatings if s.member in stay}
        lost = set(range(self._manifest.num_stages)) - held
        can_make = self._manifest.recovery.policy != "none" and 0 in held and len(held) > 1
        if lost and not can_make:
            raise ForkError(f"{stay} forked and hold no stage of {lost}")
        self.found.forks.add(record_id(roster))
        if lost:
            self.found.lossy.add(record_id(roster))

    def _check_quorum(self, before: Node, live: Live, decide: Decide, group: list[Letter]) -> None:
        """Those whose word the decision rests on are a quorum of the voters of its place, by a count of our own."""
        record, name = decide.record, record_id(decide.record)
        records = list(before.records)
        while records and record_id(records[-1]) != record.parent:
            records.pop()
        if is_fork(record):
            self._check_fork(before, decide, self._chain(tuple(records)))
            return
        if any(is_fork(r) for r in records):
            self.found.grown.add(name)
        voters = self._chain(tuple(records)).voters
        holds = {x.sender for x in group if isinstance(x.message, Held) and x.message.record == name}
        if live.held_now or (before.holding and (before.holding.ballot, before.holding.id) == (decide.ballot, name)):
            holds.add(live.me)
        holds &= set(voters)
        if not (2 * len(holds) > len(voters) or (2 * len(holds) == len(voters) and voters[0] in holds)):
            raise ForkError(f"decided with {len(holds)} of {len(voters)} voters")
        self.found.decided.add((decide.ballot.term, name))
        if isinstance(record, Rebuild):
            self.found.rebuilt.add((decide.ballot.term, name))
            if record.joins[0].member.peer != decide.ballot.peer:
                self.found.rebuilt_over.add((decide.ballot.term, name))
        if isinstance(record, Rebuild) and any(record_id(r) in self.found.lossy for r in records):
            self.found.regrown.add(name)
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
