"""Replicas of a stage that train, served over gRPC with TLS, and a node that learns the stage from them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvloop

from node.clock import SystemClock
from node.data.files import BlobFiles
from node.learning import Learner, Means
from node.payloads import HandlePool
from node.ports import PeerError, Update
from node.serving import Shelf
from node.stage.executor import TorchExecutor
from node.syllabus import ChainSyllabus
from node.transport.config import TransportConfig
from node.transport.donors import GrpcDonors
from node.transport.grpc_transport import GrpcTransport
from protocol.events import Applied, Learned, LearningGoesOn, SeatCreated
from protocol.ids import Member
from protocol.manifest import Manifest
from protocol.node_state import NodeConfig, NodeState
from protocol.records import Commit, Roster, Seating, StageResult
from protocol.schedule import gradient_scale, learning_rate
from protocol.seat import Seat, SeatPhase, SeatState
from tests.conformance.tls_world import TlsWorld, peer
from tests.conformance.transport_worlds import opened
from tests.numerics.chain import reduce, run_microbatch
from tests.numerics.harness import RandomTokens
from tests.tools.relay import Relay

STAGE = 1
LEARNER = 4
"""Number of its key; the donors are 0 and so on."""
NUM_RANGES = 24
HEARTBEAT_S = 0.2
WITHIN_S = 40.0
PROGRESS_S = 3.0
"""A donor that brings nothing for so long is given up."""


class Replica:
    """A donor: an executor with all stages, a decision object that knows the roster, and what it serves."""

    def __init__(self, number: int, manifest: Manifest) -> None:
        self.peer = peer(number)
        self.executor = TorchExecutor(manifest, RandomTokens(manifest))
        self.state = NodeState(NodeConfig(manifest, Member(self.peer, 1), self.peer, "x:1", founder=False))
        self.shelf = Shelf(BlobFiles(Path("nowhere"), []))

    async def begin(self) -> None:
        for stage in range(self.state.config.manifest.num_stages):
            await self.executor.create(stage)
        self.shelf.fill(self.state, self.executor)
        info = await self.executor.info(STAGE)
        state = SeatState(STAGE, "active", 0, self.state.chain.state_ids[STAGE], info.digest)
        seat = self.state.bench.seats[STAGE] = Seat(state, self.peer, 1, 8)
        seat.phase = SeatPhase.IDLE
        self.shelf.observe(SeatCreated(STAGE, info.digest, info.state_bytes))
        await self.executor.keep_gradients(STAGE, 2)

    async def apply(self, stage: int, update: Update, commit: Commit) -> None:
        """As the runtime does it: the update, then what it leads to."""
        info = await self.executor.apply(stage, update)
        if stage == STAGE:
            self.state.chain.append(commit, ())
            state_id = self.state.chain.state_ids[STAGE]
            self.shelf.observe(Applied(STAGE, commit.step, state_id, info.digest, info.optimizer_age, 0.1))


class Swarm:
    """Donors and a learner, each with a port of its own; the donors are reached over `links` where there are any."""

    def __init__(self, world: TlsWorld, manifest: Manifest, num_donors: int = 2, links: Sequence[Relay] = ()) -> None:
        self.world, self.manifest, self.links = world, manifest, links
        self.donors = [Replica(number, manifest) for number in range(num_donors)]
        self.transports: list[GrpcTransport] = []
        self.reports: list[LearningGoesOn] = []
        self.node = NodeState(NodeConfig(manifest, Member(peer(LEARNER), 1), "me", "x:1", founder=False))
        self.executor = TorchExecutor(manifest, RandomTokens(manifest))
        self.learned: list[Learned] = []
        self.faults: list[tuple[str, str]] = []
        self.came = asyncio.Event()
        self.group: asyncio.TaskGroup
        self.learning: asyncio.Task[None]
        self.step = 0
        world.closers += [e.close for e in (self.executor, *(d.executor for d in self.donors))]

    async def begin(self) -> Learner:
        members = [Member(donor.peer, 1) for donor in self.donors]
        seatings = (
            *(Seating(STAGE, member, "active") for member in members),
            Seating(STAGE, self.node.config.member, "learner"),
        )
        for state in (self.node, *(donor.state for donor in self.donors)):
            state.chain.append(Roster(state.chain.head, 0, seatings, (), tuple(members[:1])), ())
        for number, donor in enumerate(self.donors):
            await donor.begin()
            config, library = TransportConfig("run-1", donor.peer, 1), donor.shelf.library()
            security = self.world.security(donor.peer)
            transport = await GrpcTransport.start(
                config, HandlePool(), self.world.group, self.world.rng, library, security=security
            )
            self.world.closers.insert(0, transport.close)
            self.world.publish(donor.peer, transport.address)
            self.transports.append(transport)
            if self.links:
                self.links[number].aim(transport.address)
            self.node.bench.addresses[donor.peer] = self.links[number].address if self.links else transport.address
        self.world.publish(peer(LEARNER))
        return await self.learner()

    async def next_life(self) -> Learner:
        """The learner dies, and begins again with nothing."""
        self.learning.cancel()
        await asyncio.wait([self.learning])
        learner = await self.learner()
        self.learning = self.group.create_task(learner.run())
        return learner

    async def learner(self) -> Learner:
        """A new one, with a blank seat."""
        info = await self.executor.blank(STAGE)
        size, self.state_bytes = info.num_elements, info.state_bytes
        donors = GrpcDonors(self.world.security(peer(LEARNER)), progress_s=PROGRESS_S)
        means = Means(donors, self.executor, ChainSyllabus(self.node), SystemClock())
        return Learner(STAGE, size, means, HEARTBEAT_S, self._tell, self._fault, range_elements=-(-size // NUM_RANGES))

    def _fault(self, error: PeerError) -> None:
        self.faults.append((error.peer, error.reason))

    def _tell(self, event: LearningGoesOn | Learned) -> None:
        if isinstance(event, Learned):
            self.learned.append(event)
            self.came.set()
        else:
            self.reports.append(event)

    async def train(self, learner: Learner) -> None:
        """One step of all stages at all donors; the learner hears of the commit before the donors have done it."""
        self.step += 1
        executors = [donor.executor for donor in self.donors]
        for microbatch in range(self.manifest.batch.num_microbatches):
            await run_microbatch(self.manifest, executors[microbatch % len(executors)], self.step, microbatch)
        norms = {stage: await reduce(self.manifest, executors, stage) for stage in range(self.manifest.num_stages)}
        tokens = self.manifest.batch.tokens_per_step
        results = tuple(StageResult(stage, "sum", norm) for stage, norm in norms.items())
        commit = Commit(self.node.chain.head, self.step, 1, results, 8.0, tokens)
        self.node.chain.append(commit, ())
        learner.wake()
        rate = learning_rate(self.manifest.optimizer, self.step, self.manifest.last_step)
        for donor in self.donors:
            for stage in norms:
                await donor.apply(stage, Update(gradient_scale(self.manifest, tokens, norms, stage), rate), commit)

    async def newest_is_learned(self) -> Learned:
        async with asyncio.timeout(WITHIN_S):
            while not (self.learned and self.learned[-1].state_id == self.node.chain.state_ids[STAGE]):
                self.came.clear()
                await self.came.wait()
        return self.learned[-1]


Case = Callable[[Swarm, Learner], Awaitable[None]]


def run(case: Case, manifest: Manifest, seed: int, num_donors: int = 2, links: Sequence[Relay] = ()) -> None:
    """Let the learner learn while the case goes on; in its end nothing is left."""

    async def main() -> None:
        async with opened(TlsWorld, seed) as world:
            assert isinstance(world, TlsWorld)
            swarm = Swarm(world, manifest, num_donors, links)
            learner = await swarm.begin()
            async with asyncio.TaskGroup() as group:
                swarm.group, swarm.learning = group, group.create_task(learner.run())
                await case(swarm, learner)
                swarm.learning.cancel()
            world.closers.append(world.settle)

    uvloop.run(main())
