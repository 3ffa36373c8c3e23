"""A peer with a valid key and a lease, and nothing good in mind, at a real swarm: well-formed nonsense on every stream.

What single messages may do is tried for thousands of them in `tests/sim/test_liars.py`; here the same lies go through TLS,
gRPC and the runtime, with payloads of NaN and requests to the library. Without a seat the peer changes nothing: no step is
voided, nobody is lost, losses stay finite. In a run by invitation it would not get so far (`test_trust.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from node.certificates import papers_of
from node.directory import HivemindDirectory
from node.identity import load_or_create
from node.payloads import HandlePool
from node.ports import Lease, Payload, PeerError, TensorSpec
from node.transport.checks import MAX_INT, WireError
from node.transport.config import TransportConfig
from node.transport.fetch import Asker, Asking, fetch_blob, fetch_range
from node.transport.grpc_transport import GrpcTransport
from node.transport.tls import Tls
from protocol.events import LeasesSeen, MessageReceived
from protocol.ids import Member
from protocol.invite import parse
from protocol.manifest import from_mapping
from protocol.messages import Contact, Goodbye, Leave, RecordsWanted, Wish
from protocol.node_state import NodeConfig, NodeState
from tests.integration.ends import end_all_at_once, observer
from tests.tools.lies import Liar
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm

pytestmark = pytest.mark.timeout(240)
NUM_LIES, STEPS = 1500, 4
LIMIT_S = 90.0


async def anybody(_peer: str) -> bool:
    return True


async def test_lies_of_a_guest(tmp_path: Path, seed: int) -> None:
    with swarm(tmp_path) as made:
        path = write_manifest(tmp_path, max_steps=100_000, num_block_stages=1, evaluation__every_steps=3)
        await asyncio.to_thread(made.launch, path, 1)
        await asyncio.to_thread(made.wait_step, 2, LIMIT_S)
        invite = made.running(made.nodes[0]).invite
        async with observer(invite, tmp_path / "mallory") as directory, asyncio.TaskGroup() as group:
            mallory = await Mallory.enter(made, directory, tmp_path / "mallory", group, Random(seed))
            try:
                await mallory.learn_the_truth()
                before = made.status(made.nodes[0])["step"]
                await mallory.lie()
                await mallory.ask_for_nonsense()
                await asyncio.to_thread(made.wait_step, before + STEPS, LIMIT_S)
            finally:
                await mallory.transport.close()
        for node in made.nodes:
            assert made.events(node, "voided") == [], made.situation()
            assert made.events(node, "lost") == [], made.situation()
            assert all(math.isfinite(event["value"]) for event in made.events(node, "loss", "validation"))
            assert {row["peer"] for row in made.status(node)["roster"]} == {made.running(n).peer for n in made.nodes}
        assert len(mallory.sent) > 20, mallory.sent
        assert end_all_at_once(made.nodes) == [0, 0]


class Mallory:
    """Follows the run like a node that has no seat, and lies about it."""

    def __init__(self, state: NodeState, transport: GrpcTransport, asker: Asker, nodes: list[Contact], rng: Random) -> None:
        self.state, self.transport, self.asker, self.nodes, self.rng = state, transport, asker, nodes, rng
        self.pool = HandlePool()
        self.sent: Counter[str] = Counter()

    @classmethod
    async def enter(
        cls, made: Swarm, directory: HivemindDirectory, folder: Path, group: asyncio.TaskGroup, rng: Random
    ) -> Mallory:
        identity, told = load_or_create(folder), parse(made.running(made.nodes[0]).invite)
        asker = Asker(Tls(papers_of(identity.key), anybody))
        pool, config = HandlePool(), TransportConfig(told.run_id, identity.peer, 1)
        transport = await GrpcTransport.start(config, pool, group, rng, security=asker.security)
        loop = asyncio.get_running_loop()
        claims_all = Lease(identity.peer, 1, "", transport.address, "", (0, 1), 2**53, True, False, time.time() + 600)
        await directory.publish(claims_all)
        nodes = [Contact(made.running(node).peer, made.running(node).grpc) for node in made.nodes]
        manifest = from_mapping(json.loads(await asker.manifest(nodes[0], told.manifest_digest)))
        state = NodeState(NodeConfig(manifest, Member(identity.peer, 1), "", transport.address, False, -1))
        state.handle(LeasesSeen(nodes[0], tuple(nodes)), loop.time())
        mallory = cls(state, transport, asker, nodes, rng)
        mallory.pool = pool
        for node in nodes:
            transport.introduce(node.peer, node.address)
        transport.on_message(lambda peer, inc, message: _none(state.handle(MessageReceived(peer, inc, message), loop.time())))
        transport.on_payload(lambda _peer, _header, handle, _size: pool.release(handle))
        return mallory

    async def learn_the_truth(self) -> None:
        """Ask for all records until the roster is known."""
        async with asyncio.timeout(LIMIT_S):
            while not self.state.chain.members():
                self.transport.send(self.nodes[0].peer, RecordsWanted(self.state.chain.head))
                await asyncio.sleep(0.1)

    async def lie(self) -> None:
        liar = Liar(self.rng, self.state.config.member, self.state)
        for number in range(NUM_LIES):
            to = self.rng.choice(self.nodes).peer
            if number % 10 == 0:
                await self._payload(to, liar)
                continue
            message = liar.message()
            if not (isinstance(message, Wish | Goodbye | Leave) and message.member == liar.me):
                with contextlib.suppress(WireError):  # too large for a frame
                    self.transport.send(to, message)
                    self.sent[type(message).__name__] += 1

    async def _payload(self, to: str, liar: Liar) -> None:
        values = np.full((2, 32, 16), np.nan, dtype="<f4")
        handle = self.pool.put(Payload(TensorSpec("f32", values.shape), memoryview(values.tobytes())))
        try:
            await self.transport.send_payload(to, liar.header(), handle)
            self.sent["payload"] += 1
        except (PeerError, WireError):
            self.sent["refused payload"] += 1
        finally:
            self.pool.release(handle)

    async def ask_for_nonsense(self) -> None:
        for node in self.nodes:
            asking = Asking(security=self.asker.security, peer=node.peer)
            for stage, first, count in ((0, 0, MAX_INT >> 3), (0, MAX_INT, 1), (MAX_INT, 0, 1), (1, -1, 5)):
                states: list[Any] = [self.state.chain.state_ids[0], "x" * 4096, ""]
                with pytest.raises(PeerError):
                    await fetch_range(node.address, stage, self.rng.choice(states), "weights", first, count, asking)
            for digest, size in (("0" * 64, MAX_INT), ("../../etc/passwd", 1000), ("", 1), ("x" * 4096, 1)):
                with pytest.raises(PeerError):
                    await fetch_blob(node.address, digest, size, asking=asking)


def _none(_: object) -> None:
    return None
