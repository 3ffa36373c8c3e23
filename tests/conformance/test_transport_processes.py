"""The real transport against other processes: killed, stopped, and many times over."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from node.ports import PeerError
from tests.conformance.transport_worlds import Node, World, header, note, on_grpc, run_real, until, within

MIB = 1 << 20
ROOT = Path(__file__).parents[2]
CLOSE_LIMIT_S = 10.0
pytestmark = pytest.mark.usefixtures("no_orphans")


@asynccontextmanager
async def receiver(a: Node, name: str = "peer-b") -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that answers `a`'s messages and takes its payloads slowly."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.conformance.transport_receiver", name), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        address = (await within(process.stdout.readline())).decode().strip()
        a.transport.introduce(name, address)
        a.transport.send(name, note(1))
        assert await a.message() == note(1)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def send_until_it_fails(a: Node) -> PeerError:
    handle = a.put(bytes(64 * MIB))
    try:
        await a.transport.send_payload("peer-b", header(1), handle)
    except PeerError as error:
        return error
    finally:
        a.pool.release(handle)
    raise AssertionError("the payload went through")


@on_grpc
async def test_a_process_killed_amid_a_payload_is_a_peer_error_at_once(world: World) -> None:
    a = await world.node("peer-a")
    async with receiver(a) as process, asyncio.TaskGroup() as group:
        sending = group.create_task(send_until_it_fails(a))
        await until(lambda: a.counted["reduce", "out"] > MIB)
        process.kill()
        assert "cannot reach" in (await within(sending)).reason, "nobody is there to have it sent again"


@on_grpc
async def test_a_process_that_is_stopped_is_a_peer_error_after_the_deadline(world: World) -> None:
    """The connection stays open and half dead: only the progress deadline tells."""
    a = await world.node("peer-a", progress_s=1.0)
    async with receiver(a) as process, asyncio.TaskGroup() as group:
        sending = group.create_task(send_until_it_fails(a))
        await until(lambda: a.counted["reduce", "out"] > MIB)
        process.send_signal(signal.SIGSTOP)
        assert (await within(sending)).reason == "took no bytes for 1 s"
        process.send_signal(signal.SIGCONT)
        a.transport.send("peer-b", note(2))
        assert await a.message() == note(2)


@on_grpc
async def test_closing_with_a_stopped_process_is_quick(world: World) -> None:
    a = await world.node("peer-a")
    async with receiver(a) as process, asyncio.TaskGroup() as group:
        sending = group.create_task(send_until_it_fails(a))
        await until(lambda: a.counted["reduce", "out"] > MIB)
        process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await a.transport.close()
        assert "closing" in (await within(sending)).reason


async def connect_and_break(world: World, a: Node, incarnation: int) -> None:
    b = await world.node("peer-b", incarnation=incarnation)
    a.transport.introduce("peer-b", b.transport.address)
    a.transport.send("peer-b", note(incarnation))
    await b.message()
    world.paces = [1.0]
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(send_until_it_fails(a))
        await until(lambda: b.transport.queues()["assembly_bytes"] > 0)
        await b.transport.close()
        await within(sending)
    world.nodes.remove(b)
    world.paces = []


def test_an_address_in_use_is_one_line_on_stderr() -> None:
    """gRPC itself stays silent."""
    code = """
import asyncio, random, sys
from node.payloads import HandlePool
from node.ports import UnusableError
from node.transport.config import TransportConfig
from node.transport.grpc_transport import GrpcTransport
async def main():
    async with asyncio.TaskGroup() as group:
        start = lambda listen: GrpcTransport.start(
            TransportConfig("r", "p", 1, listen), HandlePool(), group, random.Random(1))
        first = await start("127.0.0.1:0")
        for listen in (first.address, "192.0.2.1:0", "127.0.0.1:1x"):
            try:
                await start(listen)
            except UnusableError as error:
                print(error, file=sys.stderr)
        await first.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    in_use, not_ours, nonsense = done.stderr.splitlines()
    assert "the port is in use; choose another --listen HOST:PORT" in in_use
    assert not_ours == "cannot listen on 192.0.2.1:0: cannot assign requested address; choose another --listen HOST:PORT"
    assert nonsense == "--listen '127.0.0.1:1x' is not HOST:PORT; example: 0.0.0.0:31337"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_memory_does_not_grow_with_connections(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Connect, send half a payload, break off; 100 times after 30 to warm up. Both ends live in this process."""
    grown: list[float] = []

    async def case(world: World) -> None:
        a = await world.node("peer-a", backoff_first_s=0.001, backoff_last_s=0.002)
        for cycle in range(130):
            await connect_and_break(world, a, cycle + 1)
            if cycle in (29, 129):
                gc.collect()
                grown.append(psutil.Process(os.getpid()).memory_info().rss / 1024)

    run_real(case, seed)
    per_cycle = (grown[1] - grown[0]) / 100
    with capsys.disabled():
        print(f" {per_cycle:.0f} KiB per cycle")
    assert per_cycle < 200


@pytest.mark.full
def test_throughput_on_loopback(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Told, not judged: a slow machine must not fail."""
    rates: list[float] = []

    async def case(world: World) -> None:
        a = await world.node("peer-a")
        b = await world.node("peer-b", known=(a,))
        data = bytes(64 * MIB)
        for _ in range(8):
            began = time.perf_counter()
            await a.send_bytes(b, data)
            _, _, handle, _ = await within(b.payloads.get())
            rates.append(64 / (time.perf_counter() - began))
            b.pool.release(handle)

    run_real(case, seed)
    with capsys.disabled():
        print(f" {sorted(rates)[len(rates) // 2]:.0f} MiB/s, best {max(rates):.0f}")
    assert len(rates) == 8
