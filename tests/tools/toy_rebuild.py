"""A stage that is lost, neighbours that average it and a newcomer that makes it: real decisions, mixers and learner on virtual
time; weights of numpy, and links whose uplink and downlink are shared by all that goes over them.

Sizes are a 24th of a stage of 25M parameters over 100 Mbit/s, and so is the rate: times are those of the real one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from node.learning import Learner
from node.learning import Means as LearnerMeans
from node.mixing import MixedDonors, Mixer, RebuildSyllabus
from node.ports import NotHeldError, PeerError, SeatInfo, StateRange
from node.range_book import WEIGHT_BYTES
from node.sim.loop import VirtualClock, run_virtual
from protocol.commands import Command, MixAhead, Regrow, StopMixing
from protocol.events import Learned, LearningGoesOn
from protocol.ids import Member, PeerId, StateId
from protocol.messages import Contact
from protocol.recipes import recipe, weights_of
from protocol.records import Rebuild, Record, Roster, Seating
from protocol.sizes import stage_parameters
from tests.tools.core import LEAD, Core, a_manifest
from tests.unit.test_protocol_members import commit

LOST = 2
HEARTBEAT_S = 1.0
NUM_RANGES = 96
FRAME_BYTES = 4096
ONE_WAY_S = 0.02
REAL_S = 8.0
"""100 MB at 100 Mbit/s."""
NEWCOMER, SECOND = Member("new", 1), Member("second", 1)
HANDSHAKES = 6
"""One-way trips until a new connection carries anything."""


@dataclass
class Link:
    """One direction of a node's link: what goes over it goes in frames, in turns with what else does."""

    rate: float
    free_at: float = 0.0

    def carry(self, num_bytes: int, ready_at: float) -> float:
        """When the frame is through."""
        self.free_at = max(self.free_at, ready_at) + num_bytes / self.rate
        return self.free_at


@dataclass
class Executor:
    """Weights of the stages that a node holds."""

    weights: dict[int, np.ndarray]

    async def export(self, stage: int, section: str, first: int, count: int) -> memoryview:
        assert section == "weights"
        return memoryview(self.weights[stage][first : first + count].tobytes())

    async def mix(self, parts: list[Any], coefficients: list[float]) -> memoryview:
        scaled = [np.frombuffer(p, np.float32) * np.float32(c) for p, c in zip(parts, coefficients, strict=True)]
        return memoryview(sum(scaled[1:], start=scaled[0]).tobytes())

    async def adopt_range(self, stage: int, first: int, weights: memoryview, *moments: memoryview) -> None:
        assert not moments, "moments of zero are not sent"
        values = np.frombuffer(weights, np.float32)
        self.weights[stage][first : first + len(values)] = values

    async def adopted(self, stage: int, optimizer_age: int) -> SeatInfo:
        return SeatInfo(stage, len(self.weights[stage]), 0, optimizer_age, "digest")


@dataclass
class Node:
    """A node of the run and its links."""

    core: Core
    executor: Executor
    up: Link
    down: Link
    mixer: Mixer = field(init=False)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    dead: bool = False
    most_kept: int = 0


class World:
    """See the module. `replicas`: holders of each stage; `second`: a stage that the holder of S1 has a seat of too."""

    def __init__(self, num_block_stages: int = 3, replicas: int = 1, second: int = 0) -> None:
        shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": num_block_stages}
        model = {"vocab_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 8} | shape
        policy = {"policy": "checkfree", "embedding_copies": 0}
        self.manifest = a_manifest(num_block_stages, model=model, recovery=policy)
        self.size = stage_parameters(self.manifest, LOST)
        self.range_elements = -(-self.size // NUM_RANGES)
        self.rate = WEIGHT_BYTES * self.size / REAL_S
        rng = np.random.default_rng(7)
        self.weights = {s: rng.standard_normal(self.size, np.float32) for s in range(1, num_block_stages + 1)}
        self.seatings = self._seatings(num_block_stages, replicas, second)
        peers = dict.fromkeys([*(s.member.peer for s in self.seatings), NEWCOMER.peer, SECOND.peer])
        self.nodes = {peer: self._node(peer) for peer in peers}
        self.learned: list[tuple[float, Learned]] = []
        self.bytes_to: Counter[PeerId] = Counter()
        self.visits: Counter[PeerId] = Counter()
        self._changed = asyncio.Event()

    def _seatings(self, num_block_stages: int, replicas: int, second: int) -> list[Seating]:
        members = [(s, Member(f"p{s}.{r}", 1)) for s in range(1, num_block_stages + 1) for r in range(replicas)]
        members += [(second, Member("p1.0", 1))] if second else []
        return [Seating(0, LEAD, "active"), *(Seating(s, member, "active") for s, member in members)]

    def _node(self, peer: PeerId) -> Node:
        core = Core(self.manifest, peer, self.seatings)
        commit(core.state.chain, self.manifest)
        for stage, seat in core.state.bench.seats.items():
            seat.state.state_id, seat.state.step = core.state.chain.state_ids[stage], 1
        core.state.bench.addresses = {s.member.peer: "x:1" for s in self.seatings if s.member.peer != peer}
        held = {s.stage for s in self.seatings if s.member.peer == peer and s.stage}
        executor = Executor({stage: self.weights[stage] for stage in held})
        return Node(core, executor, Link(self.rate), Link(self.rate))

    # ---- decisions ----

    def decide(self, record: Record) -> None:
        """Everybody who lives learns it, and does what follows."""
        for node in self.nodes.values():
            if not node.dead:
                self._do(node, node.core.decide(record))
                node.mixer.wake()

    def _do(self, node: Node, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, MixAhead):
                self.cancel(node, command.stage)
                node.tasks[command.stage] = self.group.create_task(node.mixer.begin(command).run())
            elif isinstance(command, StopMixing):
                self.cancel(node, command.stage)
                node.mixer.stop(command.stage)
            elif isinstance(command, Regrow):
                self.cancel(node, -command.stage)
                node.tasks[-command.stage] = self.group.create_task(self._learner(node, command).run())

    def cancel(self, node: Node, key: int) -> None:
        """What the node does ahead of a stage, or (negative) to make it."""
        task = node.tasks.pop(key, None)
        if task:
            task.cancel()

    def lose(self, *peers: PeerId) -> None:
        """They die, and the roster goes on without them."""
        for peer in peers:
            self.kill(peer)
        chain = self.some_chain()
        leaves = tuple(s for s in chain.seatings if s.member.peer in peers)
        self.decide(Roster(chain.head, chain.step, (), leaves, (LEAD,)))

    def kill(self, peer: PeerId) -> None:
        """The others do not know yet."""
        node = self.nodes[peer]
        node.dead = True
        for task in node.tasks.values():
            task.cancel()

    def kept(self) -> int:
        """Bytes that are averaged and kept, at all that live."""
        return sum(node.mixer.num_bytes for node in self.nodes.values() if not node.dead)

    def some_chain(self) -> Any:
        return self.nodes[LEAD.peer].core.state.chain

    def rebuild(self, stage: int = LOST, at: Member = NEWCOMER) -> Rebuild:
        """The record by which a stage is made, as the coordinator proposes it."""
        chain = self.some_chain()
        whole = [s for s in range(self.manifest.num_stages) if chain.holders(s) and s not in chain.rebuilds]
        weights = weights_of(chain.squared_norms, self.manifest.batch.tokens_per_step, self.manifest)
        made = recipe(stage, whole, chain.state_ids, weights, self.manifest)
        generation = chain.generations[stage] + 1
        joins = (Seating(stage, at, "active", generation),)
        return Rebuild(chain.head, chain.step, stage, generation, made.sources, joins, (LEAD,))

    def _learner(self, node: Node, command: Regrow) -> Learner:
        state, stage = node.core.state, command.stage
        node.executor.weights[stage] = np.zeros(self.size, np.float32)
        me = state.config.member.peer
        donors = MixedDonors(Visits(self, me), node.mixer, me, command.state_id, node.mixer.vectors)
        syllabus = RebuildSyllabus(state, stage, command.state_id, command.sources, self.range_elements)
        e: Any = node.executor
        means = LearnerMeans(donors, e, syllabus, VirtualClock(), True, WEIGHT_BYTES, syllabus.rank)
        return Learner(stage, self.size, means, HEARTBEAT_S, self._tell, self._on_fault, self.range_elements)

    def _on_fault(self, error: PeerError) -> None:
        self.faults.append((error.peer, error.reason))

    def _tell(self, event: Learned | LearningGoesOn) -> None:
        if isinstance(event, Learned):
            self.learned.append((self.now(), event))
            self._changed.set()

    async def is_made(self, times: int = 1, within_s: float = 60.0) -> float:
        """Until so many stages were made; the time."""
        async with asyncio.timeout(within_s):
            while len(self.learned) < times:
                self._changed.clear()
                await self._changed.wait()
        return self.learned[-1][0]

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def mixed(self, record: Rebuild) -> np.ndarray:
        """What the stage must be."""
        parts = [self.weights[s.stage] * np.float32(s.coefficient) for s in record.sources]
        return np.asarray(sum(parts[1:], start=parts[0]))

    # ---- time ----

    def run(self, script: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            self.faults: list[tuple[str, str]] = []
            async with asyncio.TaskGroup() as self.group:
                for peer, node in self.nodes.items():
                    e: Any = node.executor
                    visits = Visits(self, peer)
                    node.mixer = Mixer(node.core.state, e, visits, VirtualClock(), lambda *_: self.range_elements)
                await script()
                for node in self.nodes.values():
                    for task in node.tasks.values():
                        task.cancel()

        run_virtual(main(), limit_s=600.0)

    async def send(self, sender: Node, receiver: Node, num_bytes: int) -> float:
        """An answer goes over both links, after what is on them already; when all of it will be there."""
        arrived = self.now()
        for at in range(0, num_bytes, FRAME_BYTES):
            size = min(FRAME_BYTES, num_bytes - at)
            sent = sender.up.carry(size, self.now())
            arrived = receiver.down.carry(size, sent + ONE_WAY_S)
            await asyncio.sleep(sent - self.now())
            if sender.dead:
                raise PeerError(sender.core.state.config.member.peer, "is gone")
        return arrived


@dataclass
class Visits:
    """`Neighbours` of one node."""

    world: World
    me: PeerId

    @asynccontextmanager
    async def visit(self, contact: Contact) -> AsyncIterator[Visited]:
        self.world.visits[contact.peer] += 1
        await asyncio.sleep(HANDSHAKES * ONE_WAY_S)
        if self.world.nodes[contact.peer].dead:
            raise PeerError(contact.peer, "connection refused")
        yield Visited(self.world, self.me, contact.peer)


@dataclass
class Visited:
    """A node as another one sees it; answers to it come one after another."""

    world: World
    me: PeerId
    peer: PeerId
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def weights_range(self, stage: int, state_id: StateId, first: int, count: int) -> memoryview:
        await asyncio.sleep(ONE_WAY_S)
        node = self._node()
        if node.core.state.bench.seats[stage].state.state_id != state_id:
            raise NotHeldError(self.peer, "does not hold that")
        data = await node.executor.export(stage, "weights", first, count)
        await self._bring(data)
        return data

    async def mixed_range(self, stage: int, state_id: StateId, first: int, count: int, num_words: int) -> StateRange:
        await asyncio.sleep(ONE_WAY_S)
        node = self._node()
        found = await node.mixer.mixed_range(stage, state_id, first, count)
        node.most_kept = max(node.most_kept, node.mixer.num_bytes)
        if found is None:
            raise NotHeldError(self.peer, "does not hold that")
        await self._bring(memoryview(found.data))
        return found

    def _node(self) -> Node:
        node = self.world.nodes[self.peer]
        if node.dead:
            raise PeerError(self.peer, "is gone")
        return node

    async def _bring(self, data: memoryview) -> None:
        async with self.turn:
            arrives = await self.world.send(self._node(), self.world.nodes[self.me], data.nbytes)
        await asyncio.sleep(arrives - self.world.now())
        self.world.bytes_to[self.me] += data.nbytes
