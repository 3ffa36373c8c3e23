"""Token shards pass from peer to peer by digest, over real connections; the organiser's node and folder may be gone."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from node.data.files import BlobFiles
from node.data.lazy import LazyTokens
from node.payloads import HandlePool
from node.ports import Lease
from node.screen import Screen
from node.serving import Shelf
from node.shards import ShardBringer
from node.transport.channel import Plaintext
from node.transport.config import TransportConfig
from node.transport.fetch import Asker
from node.transport.grpc_transport import GrpcTransport
from protocol.manifest import Manifest, from_mapping
from tests.tools.clock import StepClock
from tests.tools.material import tiny


class Peer:
    """A node's data: what it has in files, serves to others and trains on."""

    def __init__(self, name: str, folder: Path, manifest: Manifest) -> None:
        self.name, self.clock = name, StepClock()
        self.blobs = BlobFiles(folder / name / "data")
        self.tokens = LazyTokens(manifest, self.blobs)
        self.screen = Screen(self.clock)
        self.transport: Any = None

    async def serve(self, group: asyncio.TaskGroup, stack: AsyncExitStack) -> None:
        library = Shelf(self.blobs).library()
        config = TransportConfig("run-1", self.name, 1)
        self.transport = await GrpcTransport.start(config, HandlePool(), group, Random(1), library)
        stack.push_async_callback(self.transport.close)

    @property
    def lease(self) -> Lease:
        return Lease(self.name, 1, "", self.transport.address, "", (0,), 0, False, False, 1e12)

    async def fetch_from(self, *peers: Peer) -> None:
        async def leases() -> list[Lease]:
            return [peer.lease for peer in peers]

        self.tokens.expect()
        await ShardBringer(self.tokens, Asker(Plaintext()), self.clock, self.screen).bring(leases)

    def microbatches(self) -> list[Any]:
        return [self.tokens.microbatch(step, m).tolist() for step in (1, 2) for m in range(4)]


@pytest.fixture
def manifests(tmp_path: Path) -> tuple[Manifest, Manifest]:
    """The same run as its organiser sees it, whose paths are real, and as everybody else does, on another machine."""
    (tmp_path / "organiser").mkdir()
    own = from_mapping(tiny(tmp_path / "organiser"))
    elsewhere = own.model_dump()
    for shard in (*elsewhere["data"]["train"], *elsewhere["data"]["validation"]):
        shard["sources"] = ["/nowhere/train.bin"]
    return own, from_mapping(elsewhere)


def test_from_a_peer_that_got_it_from_a_peer(manifests: tuple[Manifest, Manifest], tmp_path: Path) -> None:
    own, elsewhere = manifests
    organiser = Peer("peer-o", tmp_path, own)
    first, second = Peer("peer-a", tmp_path, elsewhere), Peer("peer-b", tmp_path, elsewhere)
    expected = organiser.microbatches()

    async def main() -> None:
        async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
            await organiser.serve(group, stack)
            await first.serve(group, stack)
            await first.fetch_from(organiser)
            await organiser.transport.close()
            shutil.rmtree(tmp_path / "organiser")
            shutil.rmtree(tmp_path / "peer-o")
            await second.fetch_from(organiser, first)

    uvloop.run(main())
    assert first.microbatches() == expected
    assert second.microbatches() == expected
    assert second.tokens.validation(0).shape == (2, 33)


def test_the_organisers_folder_goes_while_it_serves_and_trains(manifests: tuple[Manifest, Manifest], tmp_path: Path) -> None:
    own, elsewhere = manifests
    organiser, newcomer = Peer("peer-o", tmp_path, own), Peer("peer-a", tmp_path, elsewhere)
    expected = organiser.microbatches()
    shutil.rmtree(tmp_path / "organiser")

    async def main() -> None:
        async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
            await organiser.serve(group, stack)
            await newcomer.fetch_from(organiser)

    uvloop.run(main())
    assert organiser.microbatches() == expected
    assert newcomer.microbatches() == expected


def test_a_busy_peer_is_asked_again(manifests: tuple[Manifest, Manifest], tmp_path: Path) -> None:
    own, elsewhere = manifests
    organiser, newcomer = Peer("peer-o", tmp_path, own), Peer("peer-a", tmp_path, elsewhere)
    asked = 0

    async def main() -> None:
        async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
            await organiser.serve(group, stack)

            async def leases() -> list[Lease]:
                nonlocal asked
                asked += 1
                if asked == 3:  # until now it has nothing that it could give
                    await asyncio.to_thread(organiser.tokens.open)
                return [organiser.lease]

            newcomer.tokens.expect()
            await ShardBringer(newcomer.tokens, Asker(Plaintext()), newcomer.clock, newcomer.screen).bring(leases)

    uvloop.run(main())
    assert asked == 3
    assert newcomer.clock.now == 100.0 + 1.0 + 2.0
    assert newcomer.microbatches() == organiser.microbatches()
