"""A `World` for a thousand nodes and many hours: what would only say that nothing changed does not happen.

- Heartbeats are modelled per link: two that live hear each other (`LivesView`); who dies is silent from its last beat on. They
  are sent for real between nodes that look at the clock, so wherever somebody is missing, learns, joins, leads or stands.
- A node without such a reason sleeps: no ticks, until a message gives it one, or somebody dies whom it expects to hear.
- Once a heartbeat the members are looked at: whose heartbeat or repeated report would tell the coordinator anything new wakes.
- A reduce is one event per replica set; rosters are derived once (`SharedChain`); the directory tells who claims to lead.

Decisions, messages, payloads and computations are those of `World`. No node freezes here, and no link is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.nodes import NodeSpec, SimNode
from node.sim.shared import Lives, LivesView, Records, SharedChain
from protocol.commands import Introduce, Note, PublishLease, Release, SendMessage
from protocol.events import Event, LeasesSeen, MessageReceived, Tick
from protocol.ids import Member, PeerId
from protocol.manifest import Manifest
from protocol.messages import Contact, Heartbeat
from protocol.node_state import NodeConfig, NodeState
from protocol.records import Commit, Record, Share
from protocol.seat import SeatPhase

LOOK_S = 1.5
"""How often the directory is looked at by who has no seat, and"""
RARE_LOOK_S = 15.0
"""by everybody else."""
AWAKE_HEARTBEATS = 1.5
"""How long a node stays awake after its last reason, so that it beats once more."""
REPORTING = (SeatPhase.READY, SeatPhase.REDUCED)
"""Phases of a seat in which it repeats now and then what it reported."""
KEPT_PLACES = 200
KEPT_STEPS = 8
"""Who is so far behind works on none of them any more."""
FORGET_S = 600.0
"""How often it is forgotten when what arrived long ago did so."""
TOLD = ("recovered", "voided", "took_over", "forked", "digest_mismatch", "refused", "placed", "moved", "promoted", "suspected")


class SparseInvariants(Invariants):
    """Checks the same once per record and payload, and forgets what lies far back."""

    def __init__(self, manifest: Manifest, founder: Member) -> None:
        super().__init__(manifest, founder)
        self._bound: tuple[str, int] = ("", 0)
        self._seen: set[tuple[str, int]] = set()

    def after(self, node: SimNode) -> None:
        """See `Invariants`: the bound is made once per record."""
        book = self.payloads
        book.look(node)
        if book.grown is None:
            return
        if self._bound[0] != self.head:
            self._bound = self.head, max(1, len(self.place.active(0)))
        if book.count[book.grown] > 2 * self._manifest.max_in_flight * self._bound[1]:
            super().after(node)
        book.grown = None

    def _check_shares(self, commit: Commit, shares: tuple[Share, ...]) -> None:
        if commit.step < self.step:
            return  # a repetition: they were checked when it was decided
        key = commit.parent, len(shares)
        if key not in self._seen:
            self._seen.add(key)
            super()._check_shares(commit, shares)

    def _on_release(self, node: SimNode, command: Release) -> None:
        super()._on_release(node, command)
        if node.pool.owned.get(command.handle) == 1:
            self.payloads.forget(node, command.handle)

    def _append(self, record: Record, name: str) -> None:
        super()._append(record, name)
        while len(self.places) > KEPT_PLACES:
            del self.places[next(iter(self.places))]
        if isinstance(record, Commit):
            self._seen.clear()
            self.owners.forget(record.step - KEPT_STEPS)
            old = [key for key in self._noted if key[2][0] < record.step]
            for key in old:
                del self._noted[key]


class SparseState(NodeState):
    """The production decision object; no heartbeat of it goes to nodes that do not look at the clock."""

    looks: Callable[[PeerId], bool]

    def _listeners(self) -> Iterable[PeerId]:
        return filter(self.looks, super()._listeners())


class SparseWorld(World):
    """See the module."""

    watch: SparseInvariants

    def __init__(self, manifest: Manifest, rng: Any, network: Any, faults: Any, watch: SparseInvariants) -> None:
        super().__init__(manifest, rng, network, faults, watch, self._make)
        self.most_offset_s = 0.0
        self.lives = Lives(self.nodes)
        self.told: Counter[str] = Counter()
        self.rungs: Counter[str] = Counter()
        self.num_ticks = 0
        self._records = Records()
        self._asleep: dict[SimNode, None] = {}
        self._until: dict[SimNode, float] = {}
        self._claims: dict[PeerId, int] = {}
        self._dull: dict[SimNode, tuple[Any, ...]] = {}
        self._here: tuple[Any, ...] = ()
        """Where the coordinator stood when it was last looked at: one object as long as it stands there."""
        self._beat_s = manifest.timing.heartbeat_s
        self.works.copies.look_again_s = self._beat_s
        self._forgot_at = 0.0

    def _make(self, manifest: Manifest, spec: NodeSpec, address: str) -> NodeState:
        config = NodeConfig(manifest, spec.member, spec.name, address, spec.founder, spec.wished_stage, spec.memory_bytes)
        chain = SharedChain(manifest, spec.member if spec.founder else None, self._records)
        state = SparseState(config, chain, LivesView(manifest.timing.lapse_s, self.lives))
        state.looks = self._looks
        return state

    def _looks(self, peer: PeerId) -> bool:
        node = self.nodes.get(peer)
        return node is not None and not node.dead and node not in self._asleep

    # ---- who is awake ----

    def _boot(self, spec: NodeSpec) -> None:
        self.lives.silent.pop(spec.member.peer, None)
        super()._boot(spec)
        self._by_address.clear()  # everybody is found by name, and the dead by nobody

    def _tick(self, node: SimNode) -> None:
        reason = self._reason(node)
        if reason:
            self._until[node] = self.now + AWAKE_HEARTBEATS * self._beat_s
        if not reason and self.now > self._until.get(node, 0.0):
            self._asleep[node] = None
        else:
            self.post(self.now + self._beat_s / 4, node, self._tick, node)
        self.num_ticks += 1
        self.handle(node, Tick({}))

    def _reason(self, node: SimNode) -> bool:
        """Does the node look at the clock?"""
        state: Any = node.state
        if state.coordinator or state.takeover.candidate or state.departure.is_on or state.leader.retired:
            return True
        seats, held = state.chain.seats_of(node.spec.member), state.bench.seats
        if not seats or any(s.role == "learner" or s.stage not in held for s in seats):
            return True
        if any(seat.phase in (SeatPhase.LEARNING, SeatPhase.CREATING) for seat in held.values()):
            return True
        return bool(state.view.misses())

    def wake(self, node: SimNode) -> None:
        """It looks at the clock again."""
        if node in self._asleep and not node.dead:
            self._asleep.pop(node, None)
            self._until[node] = self.now + AWAKE_HEARTBEATS * self._beat_s
            self.post(self.now + self._beat_s / 4 * self.rng.random(), node, self._tick, node)

    def handle(self, node: SimNode, event: Event) -> None:
        """See `World`."""
        self._dull.pop(node, None)
        super().handle(node, event)
        if node in self._asleep and isinstance(event, MessageReceived) and self._reason(node):
            self.wake(node)

    def _die(self, node: SimNode, loud: bool) -> None:
        super()._die(node, loud)
        self._is_silent(node)

    def _exit(self, node: SimNode, command: Any) -> None:
        super()._exit(node, command)
        self._is_silent(node)

    def _is_silent(self, node: SimNode) -> None:
        """From its last beat on."""
        self.lives.silent[node.peer] = self.now - self._beat_s * self.rng.random()
        self._asleep.pop(node, None)
        self._until.pop(node, None)
        self._claims.pop(node.peer, None)
        self._dull.pop(node, None)
        self.works.copies.forget(node)
        for other in list(self._asleep):
            if other.state.view.misses():  # type: ignore[attr-defined]
                self.wake(other)

    # ---- heartbeats ----

    def _send_message(self, node: SimNode, command: SendMessage) -> None:
        if not isinstance(command.message, Heartbeat) or self._looks(command.peer):
            super()._send_message(node, command)

    def _receiver(self, node: SimNode, peer: PeerId) -> SimNode | None:
        return self.nodes.get(peer)

    def look_at_members(self) -> None:
        """Wake those whose heartbeat or repeated report would tell the coordinator something; once a heartbeat."""
        self.post(self.now + self._beat_s, None, self.look_at_members)
        if self.now - self._forgot_at > FORGET_S:
            self._forgot_at = self.now
            self.network.forget(self.now)
        for node in [n for n in (self.nodes[peer] for peer in list(self._claims)) if not n.dead]:
            coordinator = getattr(node.state, "coordinator", None)
            if coordinator:
                self._look_at(node, coordinator)

    def _look_at(self, node: SimNode, coordinator: Any) -> None:
        """Of whom nothing was news, nothing is until something happens to it, or to what news hangs on here."""
        head, ledger = node.state.chain.head, coordinator.ledger  # type: ignore[attr-defined]
        attempt = (ledger.step, ledger.attempt, ledger.amendment, len(ledger.started)) if ledger else ()
        here = node.peer, coordinator.ballot, coordinator.herald.serial, head, attempt
        if here == self._here:
            here = self._here
        self._here, nodes, dull = here, self.nodes, self._dull
        for peer, member in node.state.chain.by_peer.items():  # type: ignore[attr-defined]
            other = nodes[peer]
            if dull.get(other) is here or other not in self._asleep or other.spec.member != member:
                continue
            if self._is_news(other, coordinator, head, ledger):
                self.wake(other)
            elif self._stays_dull(other, coordinator.herald.serial):
                dull[other] = here

    def _stays_dull(self, node: SimNode, serial: int) -> bool:
        """Did it hear all that it was told, and does it repeat no report whose bytes are counted?"""
        state: Any = node.state
        if state.outlook.serial(state.ballot) != serial:
            return False
        return not self.traffic or all(seat.phase not in REPORTING for seat in state.bench.seats.values())

    def _is_news(self, node: SimNode, coordinator: Any, head: str, ledger: Any) -> bool:
        state: Any = node.state
        opened = state.bench.open
        if state.chain.head != head or state.ballot != coordinator.ballot:
            return True
        if coordinator.herald.misses(node.peer, state.ballot, state.outlook.serial(state.ballot), self.now):
            return True
        if ledger is None:
            return opened is not None and opened.step > state.chain.step
        if opened is None or not ledger.names(opened.step, opened.attempt) or opened.amendment < ledger.amendment:
            return True
        member = node.spec.member
        for stage, seat in state.bench.seats.items():
            if seat.phase is SeatPhase.READY and seat.state.role == "active":
                if (stage, member) not in ledger.ready or stage in ledger.started:
                    return True
                self._repeat(node, seat)
            elif seat.phase is SeatPhase.REDUCED:
                if (stage, member) not in ledger.reduced:
                    return True
                self._repeat(node, seat)
        return False

    def _repeat(self, node: SimNode, seat: Any) -> None:
        """Now and then the report would be said again, and change nothing."""
        if self.traffic and node.state.bench.is_due(seat.state.stage, self.now):  # type: ignore[attr-defined]
            self.traffic.note(node.peer, node.state.leader.peer, seat.report())  # type: ignore[attr-defined]

    # ---- directory, words ----

    def _introduce(self, node: SimNode, command: Introduce) -> None:
        """Everybody is found by name."""

    def _publish(self, node: SimNode, command: PublishLease) -> None:
        if command.coordinator:
            self._claims[node.peer] = command.ballot_term
        elif node.peer in self._claims:
            del self._claims[node.peer]

    def _look_up(self, node: SimNode) -> None:
        seated = bool(node.state.chain.seats_of(node.spec.member))  # type: ignore[attr-defined]
        self.post(self.now + (RARE_LOOK_S if seated else LOOK_S), node, self._look_up, node)
        if seated and not node.state.coordinator:  # type: ignore[attr-defined]
            return
        claims = sorted(((term, peer) for peer, term in self._claims.items() if peer != node.peer), reverse=True)
        rivals = tuple(Contact(peer, self.nodes[peer].address) for _, peer in claims)
        self.handle(node, LeasesSeen(rivals[0] if rivals else None, (), rivals))

    def running(self, stage: int) -> list[SimNode]:
        """See `World`: of those on the roster."""
        seated = [self.nodes[member.peer] for s, member in self.watch.place.seats if s == stage]
        return [node for node in seated if not node.dead and stage in node.seats]

    def tell(self, node: SimNode, what: str | Note) -> None:
        """Kept is what is rare."""
        if isinstance(what, Note):
            if what.type not in TOLD or (what.type == "voided" and node.state.coordinator is None):  # type: ignore[attr-defined]
                return
            self.told[what.type] += 1
            if what.type == "suspected":
                return  # of each that is lost by all that are next to it, again and again: that is not rare
            if what.type == "recovered":
                self.rungs[str(what.fields["rung"])] += 1
        elif what.startswith("says"):
            return
        super().tell(node, what)
