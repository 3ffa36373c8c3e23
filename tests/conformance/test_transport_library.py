"""Files by digest and ranges of a stage's state, asked for over a real connection without a node of one's own."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from grpc import aio

from node.payloads import HandlePool
from node.ports import PeerError
from node.transport import swarm_pb2 as pb
from node.transport import swarm_pb2_grpc
from node.transport.channel import Plaintext
from node.transport.config import Description, FetchRequest, HeldStage, Hooks, Library, TransportConfig
from node.transport.fetch import Asking, describe, fetch_blob, fetch_blob_to, fetch_manifest, fetch_range
from node.transport.grpc_transport import GrpcTransport
from protocol.version import PROTOCOL_VERSION
from tests.conformance.transport_worlds import World, on_grpc, until, within

MIB = 1 << 20
STATE = bytes(range(256)) * 40_000  # 2,560,000 elements: ten pieces


class Shelf:
    """What a test's node serves; counts what is asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[FetchRequest] = []
        self.moves_on_after = 1 << 62
        self.num_waiting = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def blob(self, digest: str, offset: int, size: int) -> bytes | None:
        self.num_waiting += 1
        await self.gate.wait()
        self.num_waiting -= 1
        return self.files[digest][offset : offset + size] if digest in self.files else None

    async def range(self, asked: FetchRequest) -> memoryview | None:
        self.asked.append(asked)
        if asked.stage != 3 or asked.state_id != "s1" or asked.first >= self.moves_on_after:
            return None
        return memoryview(STATE)[4 * asked.first : 4 * (asked.first + asked.count)]

    async def served_by(self, world: World, **settings: Any) -> str:
        library = Library(self.blob, self.range, lambda: (HeldStage(3, "s1", 7, len(STATE) // 4, "digest"),))
        config = TransportConfig("run-1", "peer-l", 2, **settings)
        transport = await GrpcTransport.start(config, HandlePool(), world.group, world.rng, library)
        world.closers.append(transport.close)
        return transport.address


@on_grpc
async def test_who_are_you(world: World) -> None:
    address = await Shelf().served_by(world)
    stages = (HeldStage(3, "s1", 7, len(STATE) // 4, "digest"),)
    assert await describe(address) == Description("run-1", "peer-l", 2, PROTOCOL_VERSION, stages)


@on_grpc
async def test_a_blob_comes_whole_and_verified(world: World) -> None:
    shelf, data, progress = Shelf(), world.rng.randbytes(3 * MIB + 5), list[int]()
    digest = blake3(data).hexdigest()
    shelf.files[digest] = data
    address = await shelf.served_by(world)
    asking = Asking(on_progress=lambda done, _: progress.append(done))
    assert await fetch_blob(address, digest, 8 * MIB, asking=asking) == data
    assert progress == [MIB, 2 * MIB, 3 * MIB, 3 * MIB + 5]


def test_a_blob_goes_to_a_file_that_is_complete_or_absent(tmp_path: Path, seed: int) -> None:
    async def case(world: World) -> None:
        shelf, data = Shelf(), b"x" * 100_000
        digest = blake3(data).hexdigest()
        shelf.files = {digest: data, "0" * 64: b"not what it says"}
        address = await shelf.served_by(world)
        await fetch_blob_to(tmp_path / "good", address, digest, MIB)
        with pytest.raises(PeerError, match=r"16 bytes\) is not 0000"):
            await fetch_blob_to(tmp_path / "bad", address, "0" * 64, MIB)
        assert (tmp_path / "good").read_bytes() == data
        assert [path.name for path in tmp_path.iterdir()] == ["good"]

    on_grpc(case)(seed)


@on_grpc
async def test_a_manifest_is_verified_by_its_sha256(world: World) -> None:
    shelf, manifest = Shelf(), b'{"name":"run"}'
    digest = hashlib.sha256(manifest).hexdigest()
    shelf.files = {digest: manifest, "0" * 64: manifest}
    address = await shelf.served_by(world)
    assert await fetch_manifest(address, digest) == manifest
    with pytest.raises(PeerError, match="is not 0000"):
        await fetch_manifest(address, "0" * 64)


@on_grpc
async def test_a_blob_over_the_askers_limit_is_not_taken(world: World) -> None:
    shelf, data = Shelf(), bytes(2 * MIB)
    digest = blake3(data).hexdigest()
    shelf.files[digest] = data
    with pytest.raises(PeerError, match=r"\(1000 bytes\) is not"):
        await fetch_blob(await shelf.served_by(world), digest, 1000)


@on_grpc
async def test_what_is_not_there_is_said(world: World) -> None:
    address = await Shelf().served_by(world)
    with pytest.raises(PeerError, match="this node does not have feed"):
        await fetch_blob(address, "feed", MIB)
    with pytest.raises(PeerError, match="does not hold stage 4 at s1"):
        await fetch_range(address, 4, "s1", "weights", 0, 10)


@on_grpc
async def test_a_range_comes_whole(world: World) -> None:
    shelf = Shelf()
    address = await shelf.served_by(world)
    assert await fetch_range(address, 3, "s1", "exp_avg", 5, 700_000) == STATE[20 : 4 * 700_005]
    assert {piece.section for piece in shelf.asked} == {"exp_avg"}
    assert max(piece.count for piece in shelf.asked) == MIB // 4
    assert await fetch_range(address, 3, "s1", "weights", 0, 0) == b""


@on_grpc
async def test_a_state_that_moves_on_amid_a_fetch_is_no_result(world: World) -> None:
    shelf = Shelf()
    shelf.moves_on_after = MIB // 2
    with pytest.raises(PeerError, match="does not hold stage 3 at s1"):
        await fetch_range(await shelf.served_by(world), 3, "s1", "weights", 0, 700_000)


@on_grpc
async def test_unknown_words_and_negative_places_are_refused(world: World) -> None:
    address = await Shelf().served_by(world)
    channel = await Plaintext().channel(address, "")
    stub = swarm_pb2_grpc.LibraryStub(channel)
    for request in (
        pb.FetchRequest(stage=3, state_id="s1", section="secrets", first=0, count=1),
        pb.FetchRequest(stage=3, state_id="s1", section="weights", first=-5, count=10),
    ):
        with pytest.raises(aio.AioRpcError, match="FetchRequest"):
            await within(stub.Fetch(request).read())
    await channel.close()


@on_grpc
async def test_only_so_many_are_served_at_once(world: World) -> None:
    shelf, data = Shelf(), b"data"
    digest = blake3(data).hexdigest()
    shelf.files[digest] = data
    shelf.gate.clear()
    address = await shelf.served_by(world, max_serves=2)
    async with asyncio.TaskGroup() as group:
        served = [group.create_task(fetch_blob(address, digest, MIB)) for _ in range(2)]
        await until(lambda: shelf.num_waiting == 2)
        with pytest.raises(PeerError, match="busy: 2 others are being served"):
            await fetch_blob(address, digest, MIB)
        shelf.gate.set()
    assert [task.result() for task in served] == [data, data]


@on_grpc
async def test_nobody_there_is_one_line(world: World) -> None:
    address = world.dead_address()
    with pytest.raises(PeerError, match=f"cannot get an answer from {address}: unavailable"):
        await describe(address)


@on_grpc
async def test_served_bytes_are_counted(world: World) -> None:
    counted: list[tuple[str, str, int]] = []
    shelf, data = Shelf(), bytes(1000)
    digest = blake3(data).hexdigest()
    shelf.files[digest] = data
    library = Library(shelf.blob, shelf.range)
    hooks = Hooks(on_bytes=lambda *what: counted.append(what))
    config = TransportConfig("run-1", "peer-l", 2)
    transport = await GrpcTransport.start(config, HandlePool(), world.group, world.rng, library, hooks)
    world.closers.append(transport.close)
    await fetch_blob(transport.address, digest, MIB)
    await fetch_range(transport.address, 3, "s1", "weights", 0, 10)
    assert counted == [("blob", "out", 1000), ("fetch", "out", 40)]
