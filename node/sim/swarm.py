"""A whole swarm in one process on virtual time: the real runtime and executor, streams and directory in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from node.checkpoints.store import CheckpointStore
from node.holdings import Holdings
from node.payloads import HandlePool
from node.ports import StageExecutor
from node.range_book import Piece, in_earnest
from node.runtime import Observers, Ports, Runtime
from node.sim.directory import MemoryDht, MemoryDirectory
from node.sim.donors import MemoryDonors, MemoryLibrary
from node.sim.loop import VirtualClock
from node.sim.network import Network, Weather
from node.sim.transport import Charge, MemoryNetwork, MemoryTransport
from node.transport.config import Hooks, TransportConfig
from protocol.commands import Exit
from protocol.events import Event
from protocol.ids import Member, PeerId
from protocol.manifest import Manifest
from protocol.node_state import NodeConfig, NodeState
from protocol.schedule import later_lr_factor

END_S = 30.0


def peer_name(index: int) -> PeerId:
    """Of the so-manieth node."""
    return f"peer{index:03d}"


@dataclass(slots=True)
class MemorySink:
    """An `EventSink` that keeps its lines."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def note(self, type_: str, fields: dict[str, Any]) -> None:
        """See `node.ports.EventSink`."""
        self.lines.append({"type": type_, **fields})

    def close(self) -> None:
        """Nothing to close."""


@dataclass(slots=True)
class SimNode:
    """One node of the swarm and what is left of it."""

    state: NodeState
    executor: StageExecutor
    pool: HandlePool
    sink: MemorySink
    exit: Exit | None = None
    killed: bool = False

    def lines(self, type_: str) -> list[dict[str, Any]]:
        """Its event lines of one type."""
        return [line for line in self.sink.lines if line["type"] == type_]


@dataclass(frozen=True, slots=True)
class Outfit:
    """What a world has that is not as usual. `links`, `library`: instead of drawn ones; `charge`: see `MemoryNetwork`; `sink`:
    of a node by its peer id; `store`: of all nodes, under policy `checkpoint`; `equip`: told of each node before it runs."""

    links: Network | None = None
    library: MemoryLibrary | None = None
    charge: Charge = lambda _, num_bytes: num_bytes
    sink: Callable[[PeerId], MemorySink] = lambda _: MemorySink()
    store: CheckpointStore | None = None
    equip: Callable[[PeerId, Runtime], None] = lambda *_: None
    piece: Piece = in_earnest
    """See `Ports`."""


@dataclass(slots=True)
class MemorySwarm:
    """`wishes[i]` is the stage that node i asks for (-1: any); node 0 founds the run. `run` ends when all nodes have left;
    `at_end` looks at each node while its executor still holds the state."""

    manifest: Manifest
    wishes: list[int]
    make_executor: Callable[[int], StageExecutor]
    seed: int = 0
    encode: bool = True
    joins_at: dict[int, float] = field(default_factory=dict)
    """Virtual seconds after which a node comes, where that is not at once."""
    memory_bytes: dict[int, int] = field(default_factory=dict)
    """What a node may use, where that is bounded."""
    copy_rate: float = 10e6
    """Bytes per second that a donor gives to a learner."""
    at_end: Callable[[SimNode], Awaitable[None]] | None = None
    watch: Callable[[SimNode, Event], None] | None = None
    """Sees what happens at each node before it is decided about."""
    hooks: Hooks = field(default_factory=Hooks)
    """Of every node's transport."""
    weather: Weather = field(default_factory=Weather)
    """What goes wrong on the links."""
    outfit: Outfit = field(default_factory=Outfit)
    nodes: list[SimNode] = field(default_factory=list)
    _lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _runtimes: dict[str, Runtime] = field(default_factory=dict)
    _enter: Callable[[int], None] | None = None

    async def run(self) -> list[SimNode]:
        """Run to the end of the manifest on the running (virtual) loop."""
        rng, outfit = Random(self.seed), self.outfit
        links = outfit.links or Network(rng, self.weather)
        network = MemoryNetwork(links, self.encode, outfit.charge)
        dht = MemoryDht(VirtualClock(), delay_s=0.01)
        library = outfit.library or MemoryLibrary(rng, self.copy_rate)
        library.rules = self.manifest.recovery
        async with asyncio.TaskGroup() as group:

            def enter(index: int) -> None:
                life = self._run_node(index, self.wishes[index], network, dht, library, rng)
                self._lives[peer_name(index)] = group.create_task(life, name=f"node {index}")

            self._enter = enter
            for index in range(len(self.wishes)):
                enter(index)
        return self.nodes

    def join(self, wish: int) -> PeerId:
        """One more node comes, now, while the swarm runs."""
        assert self._enter, "the swarm runs"
        self.wishes.append(wish)
        self._enter(len(self.wishes) - 1)
        return peer_name(len(self.wishes) - 1)

    def halt(self) -> None:
        """All nodes end at once, as if killed: nothing more is wanted of them."""
        for node in self.nodes:
            node.killed = True
        for life in self._lives.values():
            life.cancel()

    def runtime_of(self, peer: PeerId) -> Runtime:
        """Of a node that came."""
        return self._runtimes[peer]

    def kill(self, node: SimNode) -> None:
        """As kill -9 does: it says nothing more, and its streams break."""
        node.killed = True
        self._lives[node.state.config.member.peer].cancel()

    def leave(self, node: SimNode) -> None:
        """Ask it to go in order, once it is done with what it does now."""
        runtime = self._runtimes[node.state.config.member.peer]
        asyncio.get_running_loop().call_soon(runtime.leave, "a test")

    async def _run_node(
        self, index: int, wish: int, network: MemoryNetwork, dht: MemoryDht, library: MemoryLibrary, rng: Random
    ) -> None:
        await asyncio.sleep(self.joins_at.get(index, 0.0))
        manifest, peer = self.manifest, peer_name(index)
        pool = HandlePool()
        config = TransportConfig(manifest.run_id, peer, 1, listen=f"10.0.{index // 250}.{index % 250 + 1}:1")
        transport = MemoryTransport(network, config, pool, rng, self.hooks)
        member = Member(peer, 1)
        memory = self.memory_bytes.get(index, 0)
        state = NodeState(NodeConfig(manifest, member, peer, transport.address, index == 0, wish, memory))
        node = SimNode(state, self.make_executor(index), pool, self.outfit.sink(peer))
        self.nodes.append(node)
        directory = MemoryDirectory(dht, peer, manifest.digest, manifest.num_stages)
        donors = MemoryDonors(library, peer)
        store, piece = self.outfit.store, self.outfit.piece
        ports = Ports(VirtualClock(), directory, transport, node.executor, pool, node.sink, donors, store, piece)
        later = partial(later_lr_factor, manifest.recovery)
        holdings = Holdings(lambda: state.bench.seats, node.executor, later)

        def on_event(event: Event) -> None:
            holdings.observe(event)
            if self.watch:
                self.watch(node, event)

        runtime = self._runtimes[peer] = Runtime(ports, state, observers=Observers(on_event))
        self.outfit.equip(peer, runtime)
        library.add(peer, holdings, runtime.mixer)
        node.exit = await self._live(node, runtime)
        library.remove(peer)
        if self.at_end and not node.killed:
            await self.at_end(node)
        await transport.close()
        await node.executor.close()

    async def _live(self, node: SimNode, runtime: Runtime) -> Exit | None:
        """To its exit, or until it is killed."""
        try:
            return await runtime.run()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not node.killed or task is None:
                raise
            task.uncancel()
            return None
