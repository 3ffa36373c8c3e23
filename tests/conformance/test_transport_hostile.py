"""Bytes that no node of ours sends, sent by a bare gRPC client: refused with a reason, counted, and nothing allocated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import psutil
import pytest
from grpc import aio

from node.ports import PeerError
from node.transport import swarm_pb2 as pb
from node.transport.bits import put_bits
from node.transport.checks import WireError
from node.transport.config import Answer, Closing, Hello, PayloadHead
from node.transport.frames import (
    MAX_HEAD_BYTES,
    MAX_LIGHT_BYTES,
    decode_answer,
    encode_chunk,
    encode_head,
    encode_hello,
    encode_message,
)
from node.transport.names import put_id, put_ids
from node.transport.stream import METHODS
from protocol.messages import RecordsWanted
from protocol.version import PROTOCOL_VERSION
from tests.conformance.transport_worlds import Node, World, header, note, on_grpc, run_real, until, within

MIB = 1 << 20


class Mallory:
    """Writes any bytes to a node's stream."""

    def __init__(self, node: Node, lane: Any) -> None:
        self.channel = aio.insecure_channel(node.transport.address, options=[("grpc.max_send_message_length", -1)])
        self.call: Any = self.channel.stream_stream(METHODS[lane])()

    async def say(self, *frames: bytes) -> tuple[list[Answer], grpc.StatusCode]:
        """(what the node answered, how the stream ended)"""
        answers: list[Answer] = []
        for frame in frames:
            await within(self.call.write(frame))
            if not answers:
                data = await within(self.call.read())
                if isinstance(data, bytes):
                    answers.append(decode_answer(data))
        try:
            while isinstance(data := await within(self.call.read()), bytes):
                answers.append(decode_answer(data))
        except aio.AioRpcError:
            pass
        return answers, await self.call.code()


async def attack(world: World, lane: str, *frames: bytes, **settings: Any) -> tuple[str, str, Node]:
    """(code and sentence of the refusal, the attacked node, which must be as well as before)."""
    b = await world.node("peer-b", **settings)
    mallory = Mallory(b, lane)
    answers, status = await mallory.say(*frames)
    await mallory.channel.close()
    assert isinstance(answers[-1], Closing), answers
    assert status not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    code, sentence = answers[-1].code, answers[-1].sentence
    assert b.transport.counts()[f"refused_{code}"] == 1
    assert b.transport.queues()["assembly_bytes"] == 0
    assert b.messages.empty() and b.payloads.empty() and b.pool.peak_bytes == 0
    a = await world.node("peer-a", known=(b,))
    a.transport.send("peer-b", note(1))
    await a.send_bytes(b, b"well")
    assert await b.message() == note(1)
    assert (await b.payload())[2] == b"well"
    return code, sentence, b


def frame(**fields: Any) -> bytes:
    return pb.LightFrame(envelope=pb.Envelope(**fields)).SerializeToString()


def wanted(head: bytes) -> bytes:
    return frame(records_wanted=pb.RecordsWanted(head=head))


def head(shape: tuple[int, ...], num_bytes: int, codec: str = "f32", leader: bytes = b"") -> bytes:
    """Unchecked, as an attacker would write it."""
    made = pb.BulkFrame(payload_head=pb.PayloadHead(codec=codec, shape=shape, num_bytes=num_bytes))
    known = pb.BulkFrame.FromString(encode_head(PayloadHead(header(1), "f32", (1,), 4)))
    made.payload_head.header.CopyFrom(known.payload_head.header)
    if leader:
        made.payload_head.header.reduce_header.ballot.peer = leader
    return made.SerializeToString()


def hello(peer: str, address: str = "") -> bytes:
    return encode_hello(Hello(PROTOCOL_VERSION, "run-1", peer, 1, address, "peer-b"))


HI = hello("mallory")
EMPTY_CHUNK = pb.BulkFrame(chunk=pb.Chunk()).SerializeToString()
DATA = memoryview(b"data")
BALLOT = pb.Ballot(term=1, peer=put_id("c", None))
LONG = "x" * 5000

ATTACKS: dict[str, tuple[str, str, str, tuple[bytes, ...]]] = {
    "garbage instead of a hello": ("light", "frame", "no LightFrame", (b"\xff" * 100,)),
    "message instead of a hello": ("light", "order", "begins with a Hello", (encode_message(note(1)),)),
    "chunk instead of a hello": ("bulk", "order", "begins with a Hello", (encode_chunk(0, DATA),)),
    "huge hello": ("light", "size", "at most 16384", (b"\x0a" * 20_000,)),
    "long name": ("light", "value", "at most 4096 characters", (pb.LightFrame(hello=pb.Hello(peer=LONG)).SerializeToString(),)),
    "own name": (
        "light",
        "peer",
        "no peer that could",
        (hello("peer-b"),),
    ),
    "no name": ("light", "peer", "no peer that could", (hello(""),)),
    "address with port 0": (
        "light",
        "value",
        "port 0",
        (hello("m", "h:0"),),
    ),
    "no address": (
        "light",
        "value",
        "HOST:PORT",
        (hello("m", "nonsense"),),
    ),
    "second hello": ("light", "order", "only envelopes", (HI, HI)),
    "second hello, bulk": ("bulk", "order", "only payload heads", (HI, HI)),
    "garbage": ("light", "frame", "no LightFrame", (HI, b"\xff\xfe")),
    "garbage, bulk": ("bulk", "frame", "no BulkFrame", (HI, b"\xff\xfe")),
    "empty frame": ("light", "order", "only envelopes", (HI, b"")),
    "unknown kind of message": ("light", "frame", "does not know", (HI, frame())),
    "message too large": ("light", "size", str(MAX_LIGHT_BYTES), (HI, b"\x12" * (MAX_LIGHT_BYTES + 1))),
    "missing part": ("light", "frame", "Heartbeat.ballot is missing", (HI, frame(heartbeat=pb.Heartbeat()))),
    "long string": ("light", "value", "RecordsWanted.head", (HI, wanted(put_id(LONG, None)))),
    "two ids for one": ("light", "value", "RecordsWanted.head", (HI, wanted(put_ids(("a", "b"), None)))),
    "an id that is cut off": ("light", "value", "RecordsWanted.head", (HI, wanted(b"\x01half"))),
    "an id of no kind": ("light", "value", "RecordsWanted.head", (HI, wanted(b"\x06" * 17))),
    "a name that nobody told": ("light", "value", "name 3 of 0", (HI, wanted(b"\x13"))),
    "a name told twice": (
        "light",
        "value",
        "tells the name 'h' again",
        (HI, frame(open_step=pb.OpenStep(ballot=BALLOT, watch=put_ids(("h", "h"), None)))),
    ),
    "a name by number in a payload": ("bulk", "value", "where none are told", (HI, head((1,), 4, leader=b"\x10"))),
    "unknown word": (
        "light",
        "value",
        "Standing.phase is 'on strike'",
        (HI, frame(standing=pb.Standing(ballot=BALLOT, phase="on strike"))),
    ),
    "not a number": (
        "light",
        "value",
        "ReduceReady.seconds_per_microbatch is nan",
        (
            HI,
            frame(reduce_ready=pb.ReduceReady(ballot=BALLOT, microbatches=put_bits("1"), seconds_per_microbatch=float("nan"))),
        ),
    ),
    "negative step": ("light", "value", "Heartbeat.step", (HI, frame(heartbeat=pb.Heartbeat(ballot=BALLOT, step=-2)))),
    "no bitmap": (
        "light",
        "value",
        "ReduceReady.microbatches",
        (HI, frame(reduce_ready=pb.ReduceReady(ballot=BALLOT, microbatches=b"\x02\x01"))),
    ),
    "endless list": (
        "light",
        "value",
        "more than 8192 ids",
        (HI, frame(open_step=pb.OpenStep(ballot=BALLOT, watch=b"\x30" * 8193))),
    ),
    "columns of two lengths": (
        "light",
        "value",
        "StartReduce.contacts is not a list",
        (HI, frame(start_reduce=pb.StartReduce(ballot=BALLOT, contacts=pb.ContactRows(peer=b"\x30" * 2, address=b"\x00\x00")))),
    ),
    "a role that is none": (
        "light",
        "value",
        "SeatWork.role: 9 is no Role",
        (HI, frame(open_step=pb.OpenStep(ballot=BALLOT, seats=[pb.SeatWork(role=9)]))),  # type: ignore[arg-type]
    ),
    "chunk without head": ("bulk", "order", "without a payload head", (HI, encode_chunk(0, DATA))),
    "head too large": ("bulk", "size", str(MAX_HEAD_BYTES), (HI, b"\x12" * (MAX_HEAD_BYTES + 1))),
    "size and shape differ": ("bulk", "size", "has 40 bytes, not 44", (HI, head((10,), 44))),
    "a tebibyte": ("bulk", "size", "at most 1073741824", (HI, head((1 << 38,), 1 << 40))),
    "product overflows": ("bulk", "size", "bytes, not 0", (HI, head((1 << 62, 1 << 62), 0))),
    "negative shape": ("bulk", "value", "impossible shape", (HI, head((-1, -1), 4))),
    "no shape": ("bulk", "value", "impossible shape", (HI, head((), 4))),
    "too many dimensions": ("bulk", "value", "impossible shape", (HI, head((1,) * 9, 4))),
    "unknown codec": ("bulk", "value", "PayloadHead.codec", (HI, head((1,), 8, "f64"))),
    "head within a payload": ("bulk", "order", "after 0 of 40", (HI, head((10,), 40), head((10,), 40))),
    "chunk at another place": (
        "bulk",
        "order",
        "at 8, expected at 0",
        (HI, head((10,), 40), encode_chunk(8, DATA)),
    ),
    "empty chunk": (
        "bulk",
        "order",
        "a chunk of 0 bytes",
        (HI, head((10,), 40), EMPTY_CHUNK),
    ),
    "too much": ("bulk", "size", "44 bytes for a payload of 40", (HI, head((10,), 40), encode_chunk(0, memoryview(bytes(44))))),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_refused(name: str, seed: int) -> None:
    lane, code, words, frames = ATTACKS[name]

    async def case(world: World) -> None:
        refused, sentence, _ = await attack(world, lane, *frames)
        assert (refused, words in sentence) == (code, True), sentence

    run_real(case, seed)


@on_grpc
async def test_a_huge_claim_costs_no_memory(world: World) -> None:
    before = psutil.Process().memory_info().rss
    await attack(world, "bulk", HI, head((1 << 28,), 1 << 30), head((1,), 4), max_assembly_bytes=1 << 31)
    await attack_again(world, lambda: head((1 << 38,), 1 << 40))
    assert psutil.Process().memory_info().rss - before < 64 * MIB


async def attack_again(world: World, make: Callable[[], bytes]) -> None:
    b = await world.node("peer-b")
    for _ in range(20):
        mallory = Mallory(b, "bulk")
        answers, _ = await mallory.say(HI, make())
        await mallory.channel.close()
        assert isinstance(answers[-1], Closing)
    assert b.transport.counts()["refused_size"] == 20


@on_grpc
async def test_payloads_half_received_share_one_budget(world: World) -> None:
    """Ten claims of 8 MiB against 32 MiB: four are let in, the others refused, and room comes back when streams end."""
    b = await world.node("peer-b", max_assembly_bytes=32 * MIB)
    opened: list[Mallory] = []
    for number in range(4):
        mallory = Mallory(b, "bulk")
        opened.append(mallory)
        await mallory.call.write(hello(f"m{number}"))
        await mallory.call.write(head((2 * MIB,), 8 * MIB))
    await until(lambda: b.transport.queues()["assembly_bytes"] == 32 * MIB)
    late = Mallory(b, "bulk")
    answers, status = await late.say(HI, head((2 * MIB,), 8 * MIB))
    assert isinstance(answers[-1], Closing)
    assert (answers[-1].code, status) == ("memory", grpc.StatusCode.RESOURCE_EXHAUSTED)
    for mallory in (*opened, late):
        await mallory.channel.close()
    await until(lambda: b.transport.queues()["assembly_bytes"] == 0)


@on_grpc
async def test_a_payload_that_never_goes_on_is_given_up(world: World) -> None:
    code, sentence, _ = await attack(world, "bulk", HI, head((10,), 40), progress_s=0.2)
    assert (code, sentence) == ("stalled", "no chunk came for 0.2 s")


@on_grpc
async def test_a_stream_without_a_hello_is_given_up(world: World) -> None:
    b = await world.node("peer-b", dial_s=0.2)
    mallory = Mallory(b, "light")
    answer = decode_answer(await within(mallory.call.read()))
    assert answer == Closing("stalled", "no Hello came for 0.2 s")
    await mallory.channel.close()


@on_grpc
async def test_a_frame_over_grpcs_limit_does_not_get_in(world: World) -> None:
    b = await world.node("peer-b")
    mallory = Mallory(b, "bulk")
    await mallory.call.write(HI)
    await mallory.call.read()
    await mallory.call.write(bytes(9 * MIB))
    with pytest.raises(aio.AioRpcError) as caught:
        await within(mallory.call.read())
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await mallory.channel.close()
    a = await world.node("peer-a", known=(b,))
    await a.send_bytes(b, b"well")
    assert (await b.payload())[2] == b"well"


@on_grpc
async def test_too_many_peers_are_refused(world: World) -> None:
    b = await world.node("peer-b", max_peers=2)
    crowd = [await world.node(f"peer-{number}", known=(b,)) for number in range(4)]
    for number, node in enumerate(crowd):
        node.transport.send("peer-b", note(number))
        assert await b.message() == note(number)
    assert len(b.transport.heard()) == 2
    late = await world.node("peer-late", known=(b,))
    late.transport.send("peer-b", note(9))
    with pytest.raises(PeerError, match="4 streams are open here already"):
        await late.send_bytes(b, bytes(8))
    assert late.refused == [], "a full node is no word of the run"


@on_grpc
async def test_a_defect_in_a_handler_ends_the_group(world: World) -> None:
    """What is not a peer's fault is not swallowed by gRPC."""
    a = await world.node("peer-a")

    async def lives() -> None:
        async with asyncio.TaskGroup() as group:
            inner = type(world)(group, 1)
            b = await inner.node("peer-b", known=(a,))
            b.transport.on_message(lambda *_: 1 // 0)
            a.transport.send("peer-b", note(1))
            try:
                await asyncio.Event().wait()
            finally:
                await b.transport.close()

    with pytest.raises(ExceptionGroup) as caught:
        await within(lives())
    assert caught.group_contains(ZeroDivisionError)


def test_what_no_peer_would_accept_is_not_encoded() -> None:
    with pytest.raises(WireError, match=r"RecordsWanted\.head"):
        encode_message(RecordsWanted(LONG))


@on_grpc
async def test_a_caller_that_hangs_up_at_once_harms_nobody(world: World) -> None:
    b = await world.node("peer-b")
    for frames in ((), (HI,), (b"\xff",), (HI, b"\xff"), (HI, head((10,), 40))):
        for lane in ("light", "bulk"):
            for _ in range(5):
                mallory = Mallory(b, lane)
                for frame in frames:
                    await mallory.call.write(frame)
                mallory.call.cancel()
                await mallory.channel.close()
    a = await world.node("peer-a", known=(b,))
    await a.send_bytes(b, b"well")
    assert (await b.payload())[2] == b"well"
    await until(lambda: b.transport.queues()["assembly_bytes"] == 0)
