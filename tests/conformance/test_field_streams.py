"""FIELD-CASE 11, memory grows with each broken stream: a peer connects, streams and is cut off amid a payload, 500 times; and a
peer takes what it is told far more slowly than it is told it (ten minutes of it in `make field`).

Survived: under 0.1 MB per cycle after 50 to warm up, threads and descriptors flat; the slow one's queue is bounded. The node is
a process of its own, its streams are mutual TLS, the cut is a reset on the way. The dialing side: in
`test_transport_processes.py`. That queues of payloads are bounded: `test_transport.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from grpc import aio

from node.certificates import papers_of
from node.identity import load_or_create
from node.payloads import HandlePool
from node.transport.config import Hello, Lane, PayloadHead, TransportConfig
from node.transport.frames import encode_chunk, encode_head, encode_hello, encode_message
from node.transport.grpc_transport import GrpcTransport
from node.transport.names import Names
from node.transport.stream import METHODS
from node.transport.tls import Tls
from protocol.ids import Member
from protocol.messages import Suspect
from protocol.version import PROTOCOL_VERSION
from tests.conformance.transport_receiver import anybody
from tests.conformance.transport_worlds import header, note, within
from tests.tools.relay import Faults, Relay, relay

pytestmark = [pytest.mark.full, pytest.mark.timeout(400), pytest.mark.usefixtures("no_orphans")]
ROOT = Path(__file__).parents[2]
WARM_UP, CYCLES = 50, 500
MAX_BYTES_PER_CYCLE = 100_000
CHUNK = memoryview(bytes(1 << 18))
SLOW_BYTES_S = 20_000.0
NOTES_A_ROUND, ROUND_S = 4000, 10.0
MOST_BYTES = 4_000_000
HEAD = PayloadHead(header(1), "f32", (1 << 20,), 4 << 20)


@dataclass
class Caller:
    """A peer that calls the node at the relay's other end, and is cut off there."""

    me: str
    node: str
    security: Tls
    link: Relay

    async def stream_and_be_cut_off(self, number: int) -> None:
        lane: Lane = "bulk" if number % 4 else "light"
        channel = await self.security.channel(self.link.address, self.node)
        async with channel:
            call: Any = channel.stream_stream(METHODS[lane])()
            await within(call.write(encode_hello(Hello(PROTOCOL_VERSION, "run-1", self.me, 1 + number, "", self.node))))
            assert await within(call.read()), "no welcome"
            names = Names()
            notes = [encode_message(note(number), names) for _ in range(8)]
            for frame in (encode_head(HEAD), encode_chunk(0, CHUNK)) if lane == "bulk" else notes:
                await within(call.write(frame))
            assert await asyncio.to_thread(self.link.break_all) >= 1
            with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                while await within(call.read()):
                    pass
            call.cancel()


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[tuple[Caller, psutil.Process]]:
    """The caller, and the node's process."""
    for name in ("node", "caller"):
        (tmp_path / name).mkdir(mode=0o700)
    node, me = load_or_create(tmp_path / "node"), load_or_create(tmp_path / "caller")
    command = [sys.executable, "-m", "tests.conformance.transport_receiver", node.peer, str(tmp_path / "node")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with relay(process.stdout.readline().strip()) as link:
                yield Caller(me.peer, node.peer, Tls(papers_of(me.key), anybody), link), psutil.Process(process.pid)
        finally:
            process.kill()


async def test_500_broken_streams(caller: tuple[Caller, psutil.Process], capsys: pytest.CaptureFixture[str]) -> None:
    calling, process = caller
    before = (0, 0, 0)
    for number in range(CYCLES):
        if number == WARM_UP:
            before = await at_rest(process)
        await calling.stream_and_be_cut_off(number)
    after = await at_rest(process)
    per_cycle = (after[0] - before[0]) / (CYCLES - WARM_UP)
    with capsys.disabled():
        print(f" {per_cycle:.0f} bytes per cycle; threads {before[1]} and {after[1]}, descriptors {before[2]} and {after[2]}")
    assert calling.link.counts().reset >= CYCLES
    assert per_cycle < MAX_BYTES_PER_CYCLE
    assert after[1] <= before[1] + 2
    assert after[2] <= before[2] + 2


async def at_rest(process: psutil.Process) -> tuple[int, int, int]:
    """(resident bytes, threads, descriptors) once the descriptors of what was cut off are gone."""
    seen = [process.num_fds()]
    async with asyncio.timeout(20):
        while len(seen) < 5 or len(set(seen[-5:])) > 1:
            await asyncio.sleep(0.05)
            seen.append(process.num_fds())
    return process.memory_info().rss, process.num_threads(), seen[-1]


@asynccontextmanager
async def listening(calling: Caller) -> AsyncIterator[tuple[GrpcTransport, asyncio.Queue[Suspect]]]:
    """The caller as a peer that listens, too, and what it hears."""
    heard = asyncio.Queue[Suspect]()
    async with asyncio.TaskGroup() as group:
        config = TransportConfig("run-1", calling.me, 1)
        transport = await GrpcTransport.start(config, HandlePool(), group, Random(1), security=calling.security)
        transport.on_message(lambda _peer, _incarnation, message: heard.put_nowait(message))
        transport.introduce(calling.node, calling.link.address)
        try:
            yield transport, heard
        finally:
            await transport.close()


@pytest.mark.field(60)
@pytest.mark.timeout(60)
async def test_a_receiver_that_is_slow(
    caller: tuple[Caller, psutil.Process], times: int, record_property: Callable[[str, object], None]
) -> None:
    """The node answers each message, and its answers come through a thin link."""
    (calling, process), resident = caller, []
    async with listening(calling) as (me, answers):
        with relay(me.address) as link:
            me.announce(link.address)
            await answered(me, calling.node, answers, 0)
            link.set(Faults(bytes_per_s=SLOW_BYTES_S))
            for number in range(times * NOTES_A_ROUND):
                me.send(calling.node, long_note(1 + number))
                await asyncio.sleep(ROUND_S / NOTES_A_ROUND)
                if number % NOTES_A_ROUND == NOTES_A_ROUND // 2:
                    resident.append(process.memory_info().rss)
            grown = process.memory_info().rss - resident[0]
            link.set(Faults())
            heard = await answered(me, calling.node, answers, times * NOTES_A_ROUND + 1)
    told = times * NOTES_A_ROUND
    record_property("slow receiver", {"told": told, "heard": heard, "grown_bytes": grown})
    assert 0 < heard < told / 2, f"{heard} of {told} answers: the link was not slow, or the queue has no bound"
    assert grown < MOST_BYTES


def long_note(number: int) -> Suspect:
    return Suspect(Member("somebody", number), "silent " * 150)


async def answered(me: GrpcTransport, node: str, answers: asyncio.Queue[Suspect], number: int) -> int:
    """Say this until it is answered; how many other answers came before."""
    before = 0
    async with asyncio.timeout(30):
        while True:
            me.send(node, long_note(number))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while await answers.get() != long_note(number):
                        before += 1
                    return before
