"""A learner catches up over gRPC with TLS from two donors that train on: its state ends with their bits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from node.clock import SystemClock
from node.data.files import BlobFiles
from node.learning import Learner, Means
from node.payloads import HandlePool
from node.ports import Update
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
from tests.numerics.harness import RandomTokens, manifest_of

STAGE = 1
LEARNER = 2
"""Number of its key; the donors are 0 and 1."""
HEARTBEAT_S = 0.2
WITHIN_S = 40.0


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
    """Two donors and a learner, each with a port of its own."""

    def __init__(self, world: TlsWorld, manifest: Manifest) -> None:
        self.world, self.manifest = world, manifest
        self.donors = [Replica(number, manifest) for number in range(2)]
        self.node = NodeState(NodeConfig(manifest, Member(peer(LEARNER), 1), "me", "x:1", founder=False))
        self.executor = TorchExecutor(manifest, RandomTokens(manifest))
        self.learned: list[Learned] = []
        self.faults: list[tuple[str, str]] = []
        self.came = asyncio.Event()
        self.step = 0
        world.closers += [e.close for e in (self.executor, *(d.executor for d in self.donors))]

    async def begin(self) -> Learner:
        members = [Member(peer(number), 1) for number in range(3)]
        roles: list[Any] = ["active", "active", "learner"]
        seatings = tuple(Seating(STAGE, member, role) for member, role in zip(members, roles, strict=True))
        for state in (self.node, *(donor.state for donor in self.donors)):
            state.chain.append(Roster(state.chain.head, 0, seatings, (), tuple(members[:1])), ())
        for donor in self.donors:
            await donor.begin()
            config, library = TransportConfig("run-1", donor.peer, 1), donor.shelf.library()
            security = self.world.security(donor.peer)
            transport = await GrpcTransport.start(
                config, HandlePool(), self.world.group, self.world.rng, library, security=security
            )
            self.world.closers.insert(0, transport.close)
            self.world.publish(donor.peer, transport.address)
            self.node.bench.addresses[donor.peer] = transport.address
        self.world.publish(peer(LEARNER))
        size = (await self.executor.blank(STAGE)).num_elements
        means = Means(GrpcDonors(self.world.security(peer(LEARNER))), self.executor, ChainSyllabus(self.node), SystemClock())
        return Learner(STAGE, size, means, HEARTBEAT_S, self._tell, self._fault, range_elements=-(-size // 24))

    def _fault(self, name: str, reason: str) -> None:
        self.faults.append((name, reason))

    def _tell(self, event: LearningGoesOn | Learned) -> None:
        if isinstance(event, Learned):
            self.learned.append(event)
            self.came.set()

    async def train(self, learner: Learner) -> None:
        """One step of all stages at both donors; the learner hears of the commit before the donors have done it."""
        self.step += 1
        executors = [donor.executor for donor in self.donors]
        for microbatch in range(self.manifest.batch.num_microbatches):
            await run_microbatch(self.manifest, executors[microbatch % 2], self.step, microbatch)
        norms = {stage: await reduce(self.manifest, executors, stage) for stage in range(self.manifest.num_stages)}
        tokens = self.manifest.batch.tokens_per_step
        results = tuple(StageResult(stage, "sum", norm, "c") for stage, norm in norms.items())
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


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_the_copy_has_the_donors_bits_while_they_train_on(kind: str, seed: int) -> None:
    manifest = manifest_of(2, optimizer__kind=kind)

    async def case(swarm: Swarm, learner: Learner) -> None:
        for _ in range(8):
            await swarm.train(learner)
        copied = await swarm.newest_is_learned()
        assert copied.step == copied.optimizer_age == 8
        for _ in range(4):
            await swarm.train(learner)
            await swarm.newest_is_learned()
        learned = await swarm.newest_is_learned()
        mine, theirs = await swarm.executor.info(STAGE), await swarm.donors[1].executor.info(STAGE)
        assert mine == theirs
        assert (learned.digest, learned.step) == (mine.digest, 12)
        for section in ("weights", "exp_avg", "exp_avg_sq"):
            own = await swarm.executor.export(STAGE, section, 0, mine.num_elements)
            assert bytes(own) == bytes(await swarm.donors[0].executor.export(STAGE, section, 0, mine.num_elements)), section
        assert learned.donors == tuple(sorted(donor.peer for donor in swarm.donors)), "both gave a part"
        assert learner.num_replayed >= 4 * 24, "of the last steps only gradients came"
        assert learner.num_fetched >= 24
        assert not swarm.faults

    run(case, manifest, seed)


def test_one_donor_dies_amid_the_copy_and_the_other_one_finishes_it(seed: int) -> None:
    manifest = manifest_of(2)

    async def case(swarm: Swarm, learner: Learner) -> None:
        await swarm.train(learner)
        await swarm.newest_is_learned()
        await swarm.world.closers.pop(0)()
        for _ in range(3):
            await swarm.train(learner)
        learned = await swarm.newest_is_learned()
        assert (await swarm.executor.info(STAGE)) == (await swarm.donors[0].executor.info(STAGE))
        assert learned.step == 4
        assert {name for name, _ in swarm.faults} == {swarm.donors[1].peer}

    run(case, manifest, seed)


def run(case: Any, manifest: Manifest, seed: int) -> None:
    async def main() -> None:
        async with opened(TlsWorld, seed) as world:
            assert isinstance(world, TlsWorld)
            swarm = Swarm(world, manifest)
            learner = await swarm.begin()
            async with asyncio.TaskGroup() as group:
                learning = group.create_task(learner.run())
                await case(swarm, learner)
                learning.cancel()
            world.closers.append(world.settle)

    uvloop.run(main())
