"""A swarm of `NodeState`s on one event heap: no event loop, no bytes, no waiting; thousands of seeds a minute.

The world is a function of its random generator: latency, rates, speeds, duplicates and faults are drawn from it. It carries out
commands as the runtime does, late and in another order where the ports allow it, and shows each command and each outcome to
the invariants.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from node.sim.faults import Faults, Strike
from node.sim.invariants import Invariants
from node.sim.network import Network
from node.sim.nodes import MakeState, NodeSpec, SimNode
from node.sim.traffic import Traffic
from node.sim.work import Works
from protocol.commands import (
    Command,
    Connect,
    Exit,
    Introduce,
    Note,
    PublishLease,
    Release,
    Say,
    SendMessage,
    SendPayload,
)
from protocol.events import CommandFailed, Event, LeasesSeen, MessageReceived, PayloadArrived, Tick
from protocol.ids import Member, PeerId, RecordId
from protocol.manifest import Manifest
from protocol.messages import Message, PipeHeader

DIRECTORY_DELAY_S = (0.2, 2.0)
DIRECTORY_POLL_S = (0.5, 2.5)
FLUSH_S = 0.05
"""What a crashed process had handed to its kernel less than this long ago may be lost."""


class World:
    """The heap, the nodes, and what the commands do. See the module."""

    def __init__(
        self,
        manifest: Manifest,
        rng: random.Random,
        network: Network,
        faults: Faults,
        watch: Invariants,
        make_state: MakeState,
        wire: Callable[[Any], Any] | None = None,
    ) -> None:
        self.manifest = manifest
        self.rng = rng
        self.network = network
        self.faults = faults
        self.watch = watch
        self.now = 0.0
        self.num_events = 0
        self.num_unreachable = 0
        self.directory_down_until = 0.0
        """World time until which no look-up is answered."""
        self.directory_parts = False
        """Does who cannot reach a peer not find its lease either?"""
        self.num_lookups_failed = 0
        self.most_offset_s = 1e6
        """Nodes' clocks differ by up to so much."""
        self.nodes: dict[PeerId, SimNode] = {}
        width = 4 if manifest.wire.activations == "f32" else 2
        self.payload_bytes = manifest.batch.tokens_per_microbatch * manifest.model.hidden_size * width
        self.story: list[tuple[float, str, str | Note]] = []
        self.traffic: Traffic | None = None
        """Counts bytes, where somebody wants to know."""
        self._make_state = make_state
        self._wire = wire
        self._heap: list[tuple[float, int, SimNode | None, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._by_address: dict[str, SimNode] = {}
        self._leases: dict[PeerId, tuple[int, SimNode, PublishLease]] = {}
        self._num_published = 0
        self.works = Works(self)
        self._do: dict[type, Callable[[SimNode, Any], None]] = {
            SendMessage: self._send_message,
            SendPayload: self._send_payload,
            Release: lambda node, command: node.pool.release(command.handle),
            Introduce: self._introduce,
            Connect: lambda _node, _command: None,
            PublishLease: self._publish,
            Note: self._note,
            Say: self._say,
            Exit: self._exit,
            **self.works.commands,
        }

    # ---- the heap ----

    def post(self, at: float, node: SimNode | None, call: Callable[..., None], *args: Any) -> None:
        """Call at a time; what belongs to a dead node is dropped, to a frozen one kept until it thaws."""
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, node, call, args))

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let time pass until the condition holds (True) or for at most `limit_s` (False)."""
        end, heap, pop = self.now + limit_s, self._heap, heapq.heappop
        while heap:
            if heap[0][0] > end:
                break
            self.now, _, node, call, args = pop(heap)
            self.num_events += 1
            if node is not None:
                if node.dead:
                    continue
                if node.frozen:
                    node.backlog.append((call, args))
                    continue
            call(*args)
            if until():
                return True
        self.now = end
        return False

    def handle(self, node: SimNode, event: Event) -> None:
        """Let the node decide about the event and carry out what follows."""
        commands = node.state.handle(event, node.clock(self.now))
        if commands:
            self._execute(node, commands)
        self.watch.after(node)

    def _execute(self, node: SimNode, commands: Iterable[Command]) -> None:
        if self.faults.armed:
            self._execute_under_fire(node, deque(commands))
            return
        checks, do = self.watch.checks, self._do
        for command in commands:
            if node.dead:
                return
            kind = type(command)
            if kind in checks:
                checks[kind](node, command)
            do[kind](node, command)

    def _execute_under_fire(self, node: SimNode, pending: deque[Command]) -> None:
        while pending and not node.dead:
            strike = self.faults.strike(pending[0], lambda stage: self.rank(node, stage)) if self.faults.armed else None
            if strike:
                self._strike(node, strike, pending)
                return
            command = pending.popleft()
            self.watch.command(node, command)
            self._do[type(command)](node, command)

    # ---- nodes ----

    def boot(self, spec: NodeSpec, at: float) -> None:
        """Start a node at a time."""
        self.post(at, None, self._boot, spec)

    def _boot(self, spec: NodeSpec) -> None:
        rng, member = self.rng, spec.member
        address = f"{member.peer}.sim:{1000 + member.incarnation}"
        offset_s = rng.uniform(0.0, self.most_offset_s)
        node = SimNode(spec, self._make_state(self.manifest, spec, address), address, offset_s)
        self.nodes[member.peer] = node
        self._by_address[address] = node
        self.tell(node, "starts")
        self._publish(node, PublishLease((), int(spec.founder), spec.founder))
        self._tick(node)
        self.post(self.now + rng.uniform(*DIRECTORY_POLL_S), node, self._look_up, node)

    def rank(self, node: SimNode, stage: int) -> int:
        """The node's place among the active replicas of the stage; -1 if it is none."""
        active, member = self.watch.place.active(stage), node.spec.member
        return active.index(member) if member in active else -1

    def alive(self) -> list[SimNode]:
        """Nodes that run, frozen ones included, sorted by peer."""
        return [node for _, node in sorted(self.nodes.items()) if not node.dead]

    def running(self, stage: int) -> list[SimNode]:
        """Nodes that run and have something of the stage."""
        return [node for node in self.nodes.values() if not node.dead and not node.frozen and stage in node.seats]

    def tell(self, node: SimNode, what: str | Note) -> None:
        """One line for the story."""
        self.story.append((self.now, repr(node), what))

    def _tick(self, node: SimNode) -> None:
        now, pace = self.now, node.pace
        self.post(now + self.manifest.timing.heartbeat_s / 4 / pace, node, self._tick, node)
        self.handle(node, Tick({peer: (now - at) * pace for peer, at in node.heard.items()}))

    # ---- faults ----

    def hit(self, node: SimNode, strike: Strike) -> None:
        """Something happens to a node now, between two of its events."""
        self._strike(node, strike, deque())

    def _strike(self, node: SimNode, strike: Strike, pending: deque[Command]) -> None:
        self.tell(node, f"FAULT {strike}")
        if strike.kind == "freeze":
            node.frozen = True
            node.backlog.append((self._execute, (node, list(pending))))
            if strike.for_s:
                self.post(self.now + strike.for_s, None, self._thaw, node, strike.forgetful)
            return
        self._die(node, strike.loud)
        if strike.kind == "restart":
            member = replace(node.spec.member, incarnation=node.spec.member.incarnation + 1)
            self.boot(replace(node.spec, member=member, founder=False), self.now + strike.for_s)

    def _die(self, node: SimNode, loud: bool) -> None:
        node.dead, node.died_at, node.loud = True, self.now, loud
        self.watch.died(node)
        if loud:
            self.works.died(node)

    def reaches(self, node: SimNode, member: Member, stage: int, lineage: RecordId) -> bool:
        """Does the member live, in this lineage, with a seat at the stage, and was the link to it not cut for some lapses? It
        knows no other faults."""
        other, since = self.nodes.get(member.peer), self.now - 3 * self.manifest.timing.lapse_s
        if other is None or other.dead or other.frozen or other.spec.member != member:
            return False
        links = (node.peer, member.peer), (member.peer, node.peer)
        state: Any = other.state
        holds = state.chain.lineage == lineage and stage in state.bench.seats
        return holds and not any(cut.takes(*link, since, self.now) for cut in self.faults.weather.cuts for link in links)

    def _thaw(self, node: SimNode, forgetful: bool) -> None:
        if node.dead:
            return
        self.tell(node, "thaws")
        node.frozen = False
        backlog, node.backlog = list(node.backlog), deque()
        rest = [e for e in backlog if e[0] == self._execute]
        ticks = [e for e in backlog if e[0] == self._tick][:1]
        lost = (self._arrive, self._deliver) if forgetful else ()
        others = [e for e in backlog if e[0] not in (self._execute, self._tick, *lost)]
        ordered = rest + (ticks + others if self.rng.random() < 0.5 else others + ticks)
        for index, (call, args) in enumerate(ordered):
            self.post(self.now + 1e-6 * index, node, call, *args)

    # ---- messages ----

    def _introduce(self, node: SimNode, command: Introduce) -> None:
        node.addresses[command.peer] = command.address

    def _send_message(self, node: SimNode, command: SendMessage) -> None:
        receiver = self._receiver(node, command.peer)
        if receiver is None:
            self.num_unreachable += 1
            return
        message = self._wire(command.message) if self._wire else command.message
        if self.traffic:
            self.traffic.note(node.peer, receiver.peer, command.message)
        for at in self.network.control(node.peer, receiver.peer, self.now):
            self.post(at, receiver, self._deliver, receiver, node, message)

    def _receiver(self, node: SimNode, peer: PeerId) -> SimNode | None:
        if peer == node.peer:
            return node
        found = self._by_address.get(node.addresses.get(peer, ""))
        return found if found and found.peer == peer else None

    def _deliver(self, node: SimNode, sender: SimNode, message: Message) -> None:
        if self._was_lost(sender):
            return
        node.heard[sender.peer] = self.now
        self.handle(node, MessageReceived(sender.peer, sender.spec.member.incarnation, message))

    def _was_lost(self, sender: SimNode) -> bool:
        return sender.dead and sender.exit is None and self.now > sender.died_at + FLUSH_S * self.rng.random()

    def _send_payload(self, node: SimNode, command: SendPayload) -> None:
        receiver = self._receiver(node, command.peer)
        node.pool.hold(command.handle)
        if receiver is None or (receiver.dead and receiver.loud):
            self.post(self.now + 0.01 + 0.1 * self.rng.random(), node, self._send_failed, node, command)
            return
        if receiver.dead:
            deadline_s = 2 * self.manifest.timing.lapse_s
            self.post(self.now + deadline_s, node, self._send_failed, node, command)
            return
        if receiver is node:
            self.post(self.now, node, self._arrive, node, node, command.header, command.handle)
            return
        patience_s = 2 * self.manifest.timing.lapse_s
        sent = self.network.payload(node.peer, receiver.peer, self.now, self.payload_bytes, patience_s)
        if sent.failed:
            self.post(sent.at, node, self._send_failed, node, command)
            return
        self.post(sent.at, node, node.pool.let_go, command.handle)
        header = self._wire(command.header) if self._wire else command.header
        for at in sent.arrivals:
            self.post(at, receiver, self._arrive, receiver, node, header, 0)

    def _send_failed(self, node: SimNode, command: SendPayload) -> None:
        node.pool.let_go(command.handle)
        header = command.header
        stage = header.route.hops[header.hop].stage
        where = (stage, header.step, header.attempt, header.route.microbatch)
        failed = CommandFailed(*where, command.peer, "unreachable", unsent=True)
        self.handle(node, failed)

    def _arrive(self, node: SimNode, sender: SimNode, header: PipeHeader, handle: int) -> None:
        if self._was_lost(sender):
            return
        node.heard[sender.peer] = self.now
        if handle:
            node.pool.let_go(handle)
        handle = node.pool.give(handle)
        self.watch.payload(node, handle, (header.step, header.attempt))
        self.handle(node, PayloadArrived(sender.peer, header, handle, self.payload_bytes))

    # ---- directory, words, end ----

    def _publish(self, node: SimNode, command: PublishLease) -> None:
        visible = self.now + self.rng.uniform(*DIRECTORY_DELAY_S)
        self._num_published += 1
        self.post(visible, None, self._show, self._num_published, node, command)

    def _show(self, number: int, node: SimNode, command: PublishLease) -> None:
        """A later claim is never replaced by an earlier one, though both be of one instant: who wins the role claims it right
        after the seats that he is left with."""
        if number > self._leases.get(node.peer, (0,))[0]:
            self._leases[node.peer] = number, node, command

    def _look_up(self, node: SimNode) -> None:
        self.post(self.now + self.rng.uniform(*DIRECTORY_POLL_S), node, self._look_up, node)
        if self.now < self.directory_down_until:
            self.num_lookups_failed += 1
            return
        valid = [
            (other, lease)
            for _, (_, other, lease) in sorted(self._leases.items())
            if other is not node and other.peer != node.peer and not lease.leaving and self._is_valid(node, other)
        ]
        claims = [(lease.ballot_term, other.peer, other) for other, lease in valid if lease.coordinator]
        claims.sort(key=lambda claim: claim[:2], reverse=True)
        rivals = tuple(other.contact for _, _, other in claims)
        others = tuple(other.contact for other, _ in valid)
        self.handle(node, LeasesSeen(rivals[0] if rivals else None, others, rivals))

    def _is_valid(self, node: SimNode, other: SimNode) -> bool:
        """Does the node find the other's lease, and is it not over by its own clock?"""
        if not other.dead and not self.directory_parts:
            return True
        if self.directory_parts and self.network.parted((other.peer, node.peer), self.now):
            return False
        lease_s = self.manifest.timing.lease_s + other.spec.skew_s - node.spec.skew_s
        return not other.dead or self.now < other.died_at + lease_s

    def _note(self, node: SimNode, command: Note) -> None:
        if command.type not in ("accumulated", "reduced"):
            self.tell(node, command)

    def _say(self, node: SimNode, command: Say) -> None:
        node.says = command.sentence
        self.tell(node, f"says: {command.sentence}")

    def _exit(self, node: SimNode, command: Exit) -> None:
        self.tell(node, f"exits with {command.code}: {command.sentence}")
        node.exit = command
        node.dead, node.died_at = True, self.now
        self.watch.exited(node)
