"""The cap on what a node sends, over real sockets and real time: never above it by more than a burst; control is never held."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest
import uvloop
from blake3 import blake3

from node.clock import SystemClock
from node.limits import Upload
from node.link_use import LinkUse
from node.payloads import HandlePool
from node.ports import Payload, TensorSpec
from node.transport.config import Direction, Hooks, Kind, Library, TransportConfig
from node.transport.fetch import Asking, fetch_blob
from node.transport.grpc_transport import GrpcTransport
from tests.conformance.transport_worlds import beat, header, until

MBIT = 40.0
BLOB = Random(7).randbytes(2_000_000)
PAYLOAD = bytes(1_600_000)


class Meter:
    """What left a node as payload, and when."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, int]] = []

    def note(self, kind: Kind, direction: Direction, num_bytes: int) -> None:
        if direction == "out" and kind not in ("heartbeat", "control"):
            self.sent.append((time.monotonic(), num_bytes))


async def blob(digest: str, offset: int, size: int) -> bytes | None:
    return BLOB[offset : offset + size]


async def opened(
    name: str, group: asyncio.TaskGroup, hooks: Hooks, pool: HandlePool | None = None, chunk_bytes: int = 1 << 20
) -> GrpcTransport:
    config = TransportConfig("run-1", name, 1, chunk_bytes=chunk_bytes)
    return await GrpcTransport.start(config, pool or HandlePool(), group, Random(1), Library(blobs=blob), hooks)


async def send(transport: GrpcTransport, pool: HandlePool) -> None:
    handle = pool.put(Payload(TensorSpec("f32", (len(PAYLOAD) // 4,)), memoryview(PAYLOAD)))
    try:
        await transport.send_payload("peer-b", header(1), handle)
    finally:
        pool.release(handle)


def test_payloads_and_files_together_stay_under_the_cap() -> None:
    """5 MB/s: the 3.6 MB beyond what a burst lets through cannot take less than their time, however fast the machine is."""
    meter, upload, pool = Meter(), Upload(SystemClock(), MBIT), HandlePool()
    use = LinkUse(SystemClock())
    received: list[bytes] = []

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            hooks = Hooks(on_bytes=meter.note, on_sending=use.on_sending, pace_out=upload.pace)
            a = await opened("peer-a", group, hooks, pool, chunk_bytes=upload.chunk_bytes)
            other = HandlePool()
            b = await opened("peer-b", group, Hooks(), other)
            b.on_payload(lambda _peer, _header, handle, size: (received.append(bytes(size)), other.release(handle))[0])
            a.introduce("peer-b", b.address)
            asking = Asking(peer="peer-a")
            digest = blake3(BLOB).hexdigest()
            async with asyncio.TaskGroup() as work:
                work.create_task(send(a, pool))
                work.create_task(send(a, pool))
                got = work.create_task(fetch_blob(a.address, digest, len(BLOB), asking=asking))
            assert got.result() == BLOB
            await until(lambda: len(received) == 2)
            await a.close()
            await b.close()

    uvloop.run(main())
    total = sum(size for _, size in meter.sent)
    assert total > len(BLOB) + 2 * len(PAYLOAD)
    first, last = meter.sent[0][0], meter.sent[-1][0]
    assert total <= upload.bytes_per_s * (last - first) + upload.burst_bytes + upload.chunk_bytes
    assert max(size for _, size in meter.sent) < upload.chunk_bytes + 100, "pieces too large to take turns"
    assert use.sending_s > 0
    assert not use.is_sending, "what began to go out has ended"


@pytest.mark.timeout(30)
def test_heartbeats_pass_while_payloads_are_held() -> None:
    async def main() -> None:
        gate, asked, beats, pool = asyncio.Event(), asyncio.Event(), asyncio.Queue[object](), HandlePool()

        async def hold(_: int) -> None:
            asked.set()
            await gate.wait()

        async with asyncio.TaskGroup() as group:
            a = await opened("peer-a", group, Hooks(pace_out=hold), pool)
            other = HandlePool()
            b = await opened("peer-b", group, Hooks(), other)
            b.on_message(lambda _peer, _incarnation, message: beats.put_nowait(message))
            b.on_payload(lambda _peer, _header, handle, _size: other.release(handle))
            a.introduce("peer-b", b.address)
            async with asyncio.TaskGroup() as work:
                work.create_task(send(a, pool))
                await asked.wait()
                for number in range(5):
                    a.send("peer-b", beat(number))
                    assert await beats.get() == beat(number)
                gate.set()
            await a.close()
            await b.close()

    uvloop.run(main())
