"""The two worlds in which one suite runs: in-memory streams on virtual time, gRPC over loopback on real time."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import pytest
import uvloop

from node.payloads import HandlePool
from node.ports import Payload, TensorSpec
from node.sim.loop import run_virtual
from node.sim.network import Network, Weather
from node.sim.transport import MemoryNetwork, MemoryTransport
from node.transport.config import Hooks, TransportConfig
from node.transport.grpc_transport import GrpcTransport
from protocol.ids import Ballot, Member
from protocol.messages import Heartbeat, ReduceHeader, Suspect

T = TypeVar("T")
SLOW_BYTES_S = 4e6
LATENCY_S = (0.001, 0.005)
WAIT_S = 30.0


@dataclass
class Node:
    """One end: a transport, and everything that arrived at it."""

    name: str
    transport: Any
    pool: HandlePool
    refused: list[tuple[str, str]]
    counted: Counter[tuple[str, str]]
    messages: asyncio.Queue[tuple[str, int, Any]] = field(default_factory=asyncio.Queue)
    payloads: asyncio.Queue[tuple[str, Any, int, int]] = field(default_factory=asyncio.Queue)

    def put(self, data: bytes | bytearray) -> int:
        return self.pool.put(Payload(TensorSpec("f32", (len(data) // 4,)), memoryview(data)))

    async def message(self) -> Any:
        return (await within(self.messages.get()))[2]

    async def payload(self) -> tuple[str, Any, bytes]:
        """(sender, header, bytes) of the next payload, which is released."""
        peer, header, handle, num_bytes = await within(self.payloads.get())
        data = bytes(self.pool.get(handle).data)
        assert len(data) == num_bytes
        self.pool.release(handle)
        return peer, header, data

    async def send_bytes(self, to: Node, data: bytes | bytearray, tag: int = 1) -> None:
        """Send and release."""
        handle = self.put(data)
        try:
            await self.transport.send_payload(to.name, header(tag), handle)
        finally:
            self.pool.release(handle)

    def release_all(self) -> None:
        while not self.payloads.empty():
            self.pool.release(self.payloads.get_nowait()[2])


async def within(action: Awaitable[T]) -> T:
    async with asyncio.timeout(WAIT_S):
        return await action


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the world has come to this; the test's own timeout is the judge."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 # not everything that a test waits for has an event
            await asyncio.sleep(0.01)


def header(tag: int) -> ReduceHeader:
    return ReduceHeader(Ballot(1, "c"), tag, 1, 0, "part", 0, 1)


def note(number: int) -> Suspect:
    return Suspect(Member("somebody", number), "silent")


def beat(number: int) -> Heartbeat:
    return Heartbeat(1, Ballot(1, "c"), "head", number, 1)


class World(ABC):
    """Makes nodes, and puts an end to them."""

    real: bool

    def __init__(self, group: asyncio.TaskGroup, seed: int) -> None:
        self.group = group
        self.rng = Random(seed)
        self.nodes: list[Node] = []
        self.closers: list[Callable[[], Awaitable[None]]] = []
        """Of what a test started without `node`."""
        self.paces: list[float] = []
        """Set before nodes are made: their payload bytes per second."""

    async def node(self, name: str, *, known: tuple[Node, ...] = (), incarnation: int = 1, **settings: Any) -> Node:
        pool, refused, counted = HandlePool(), list[tuple[str, str]](), Counter[tuple[str, str]]()
        config = TransportConfig(settings.pop("run_id", "run-1"), name, incarnation, **settings)
        hooks = Hooks(
            on_bytes=lambda kind, way, size: counted.update({(kind, way): size}),
            on_refused=lambda peer, sentence: refused.append((peer, sentence)),
            pace=self._pace,
        )
        node = Node(name, await self.start(config, pool, hooks), pool, refused, counted)
        node.transport.on_message(lambda peer, inc, message: node.messages.put_nowait((peer, inc, message)))
        node.transport.on_payload(lambda *arrived: node.payloads.put_nowait(arrived))
        for other in known:
            node.transport.introduce(other.name, other.transport.address)
            other.transport.introduce(name, node.transport.address)
        self.nodes.append(node)
        return node

    @abstractmethod
    async def start(self, config: TransportConfig, pool: HandlePool, hooks: Hooks) -> Any:
        """A listening transport."""

    def slow(self) -> None:
        """From now on payloads pass at `SLOW_BYTES_S`."""
        self.paces = [SLOW_BYTES_S]

    def fast(self) -> None:
        """Enough seen: from now on payloads pass at full speed (on virtual time nobody waits anyway)."""
        self.paces = []

    async def _pace(self, num_bytes: int) -> None:
        if self.paces:
            await asyncio.sleep(num_bytes / self.paces[0])

    async def kill(self, node: Node) -> None:
        """As if its process had died; what it held is gone."""
        await node.transport.close()

    @abstractmethod
    async def stop_reading(self, node: Node) -> None:
        """As if its process had been stopped."""

    @abstractmethod
    def dead_address(self) -> str:
        """Nobody listens there, and the machine says so."""

    @abstractmethod
    async def silent_address(self) -> str:
        """Nothing ever comes from there."""


class MemoryWorld(World):
    real = False

    def __init__(self, group: asyncio.TaskGroup, seed: int) -> None:
        super().__init__(group, seed)
        self.network = MemoryNetwork(Network(self.rng, Weather(), LATENCY_S, (1e9, 1e9)), encode=True)

    async def start(self, config: TransportConfig, pool: HandlePool, hooks: Hooks) -> MemoryTransport:
        return MemoryTransport(self.network, config, pool, self.rng, hooks)

    def slow(self) -> None:
        self.network.links = Network(self.rng, Weather(), LATENCY_S, (SLOW_BYTES_S, SLOW_BYTES_S))

    async def stop_reading(self, node: Node) -> None:
        node.transport.freeze()

    def dead_address(self) -> str:
        return "127.0.0.1:65000"

    async def silent_address(self) -> str:
        node = await self.node("peer-silent")
        node.transport.kill(silent=True)
        return str(node.transport.address)


class GrpcWorld(World):
    real = True

    async def start(self, config: TransportConfig, pool: HandlePool, hooks: Hooks) -> GrpcTransport:
        return await GrpcTransport.start(config, pool, self.group, self.rng, hooks=hooks)

    async def stop_reading(self, node: Node) -> None:
        self.paces = [1.0]

    def dead_address(self) -> str:
        return f"127.0.0.1:{free_port()}"

    async def silent_address(self) -> str:
        """The kernel takes the connection, and that is all."""
        listener = socket.create_server(("127.0.0.1", 0))

        async def close() -> None:
            listener.close()

        self.closers.append(close)
        return f"127.0.0.1:{listener.getsockname()[1]}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def opened(make: type[World], seed: int) -> AsyncIterator[World]:
    """A world; at its end every node is closed in time, no task is left and no payload either."""
    async with asyncio.TaskGroup() as group:
        world = make(group, seed)
        try:
            yield world
        finally:
            for node in world.nodes:
                await node.transport.close()
            for close in world.closers:
                await close()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})  # those of gRPC end a few turns after their call
    for node in world.nodes:
        node.release_all()
        assert (node.pool.num_live, node.pool.num_bytes) == (0, 0), node.name
        assert node.transport.queues()["assembly_bytes"] == 0, node.name


Case = Callable[[World], Awaitable[None]]


def run_real(case: Case, seed: int) -> None:
    async def main() -> None:
        async with opened(GrpcWorld, seed) as world:
            await case(world)

    uvloop.run(main())


def run_memory(case: Case, seed: int) -> None:
    async def main() -> None:
        async with opened(MemoryWorld, seed) as world:
            await case(world)

    run_virtual(main())


def on_both(case: Case) -> Callable[..., None]:
    """Turns `async def test(world)` into two tests."""

    @pytest.mark.parametrize("run", [run_memory, run_real], ids=["memory", "grpc"])
    def test(run: Callable[[Case, int], None], seed: int) -> None:
        run(case, seed)

    test.__name__, test.__doc__ = case.__name__, case.__doc__
    return test


def on_grpc(case: Case) -> Callable[..., None]:
    """Turns `async def test(world)` into a test of the real adapter."""

    def test(seed: int) -> None:
        run_real(case, seed)

    test.__name__, test.__doc__ = case.__name__, case.__doc__
    return test
