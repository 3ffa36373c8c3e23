"""A payload is sent when the peer has it: what a broken connection took with it is sent again, and no receipt is believed that
cannot be true."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

from node.ports import PeerError
from node.transport.config import Answer, Receipt, Welcome
from node.transport.frames import encode_answer
from tests.conformance.transport_worlds import World, on_grpc, run_real, until, within
from tests.tools.relay import Faults, relay

BLACK_HOLE, DUMB = Faults(mode="blackhole"), Faults(mode="noreply")


@pytest.mark.parametrize(("fault", "times"), [(BLACK_HOLE, 1), (DUMB, 2)], ids=["lost on its way", "its receipt lost"])
def test_what_was_on_its_way_is_sent_again(fault: Faults, times: int, seed: int) -> None:
    run_real(lambda world: sent_again(world, fault, times), seed)


async def sent_again(world: World, fault: Faults, times: int) -> None:
    a, b = await world.node("peer-a"), await world.node("peer-b")
    with relay(b.transport.address) as link:
        a.transport.introduce("peer-b", link.address)
        await a.send_bytes(b, b"warm")
        assert (await b.payload())[2] == b"warm"
        await asyncio.to_thread(link.set, fault)
        before = link.counts().bytes["there"]
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(a.send_bytes(b, b"data"))
            if fault is BLACK_HOLE:
                await until(lambda: link.counts().buffered > 0)
            else:
                await until(lambda: link.counts().bytes["there"] > before and not b.payloads.empty())
            assert not sending.done(), "nobody has said that it arrived"
            assert await asyncio.to_thread(link.break_all) > 0
            await asyncio.to_thread(link.set, Faults())
            await within(sending)
        got = [(await b.payload())[2] for _ in range(times)]
        assert got == [b"data"] * times


@on_grpc
async def test_payloads_behind_a_broken_one_arrive_too(world: World) -> None:
    a, b = await world.node("peer-a"), await world.node("peer-b")
    with relay(b.transport.address) as link:
        a.transport.introduce("peer-b", link.address)
        await a.send_bytes(b, b"warm")
        await b.payload()
        await asyncio.to_thread(link.set, BLACK_HOLE)
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(a.send_bytes(b, number.to_bytes(4, "big")))
            await until(lambda: link.counts().buffered > 0)
            assert await asyncio.to_thread(link.break_all) > 0
            await asyncio.to_thread(link.set, Faults())
        assert sorted([(await b.payload())[2] for _ in range(10)]) == [number.to_bytes(4, "big") for number in range(10)]


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ((Receipt(2),), "it has 2 of 1 payloads"),
        ((Receipt(0),), "it has 0 of 1 payloads"),
        ((Welcome("peer-b", 1),), "it answered twice"),
    ],
)
def test_false_receipts_end_the_stream(answers: tuple[Answer, ...], sentence: str, seed: int) -> None:
    run_real(lambda world: false_receipts(world, answers, sentence), seed)


async def false_receipts(world: World, answers: tuple[Answer, ...], sentence: str) -> None:
    server = aio.server()

    async def bulk(_requests: Any, context: Any) -> None:
        await context.read()
        await context.write(encode_answer(Welcome("peer-b", 1)))
        await context.read()
        await context.read()
        for answer in answers:
            await context.write(encode_answer(answer))
        await context.read()

    handler = grpc.stream_stream_rpc_method_handler(bulk)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("regrow.v1.Streams", {"Bulk": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    a, b = await world.node("peer-a"), await world.node("peer-b")
    try:
        a.transport.introduce("peer-b", f"127.0.0.1:{port}")
        with pytest.raises(PeerError, match=sentence):
            await within(a.send_bytes(b, b"data"))
    finally:
        await server.stop(None)
