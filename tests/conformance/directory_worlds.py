"""Two swarms with one face for the directory's conformance suite: one in memory, one of real p2pd processes on loopback."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

from node.identity import Identity, load_or_create
from node.ports import Directory, Lease
from node.sim.directory import Entry, MemoryDht, MemoryDirectory
from tests.tools.clock import StepClock

RUN_DIGEST = "0123456789abcdef" * 4
NUM_STAGES = 3


class DirectorySwarm(Protocol):
    """What the suite needs from either."""

    signs: bool
    """Whether records are signed, so that a well-formed one by a stranger is junk too."""

    def now(self) -> float:
        """Wall-clock time of the swarm."""

    async def join(self, name: str) -> Directory:
        """A peer's directory; the same name is the same peer, restarted."""

    async def until(self, moment: float) -> None:
        """Let time pass."""

    async def plant(self, key: str, junk: list[tuple[object, object]], expires: float) -> None:
        """A stranger without rules puts (subkey, value) pairs under a key of ours; subkey None: a value without one."""

    def malformed(self, directory: Directory) -> int:
        """Records that this peer has refused or left out."""


def lease(directory: Directory, expires: float, *stages: int, incarnation: int = 1, leaving: bool = False) -> Lease:
    """A plausible lease of this directory's peer."""
    return Lease(
        peer=directory.peer,
        incarnation=incarnation,
        name="anna",
        address="127.0.0.1:4000",
        http="",
        stages=stages,
        ballot_term=7,
        coordinator=False,
        leaving=leaving,
        expires=expires,
    )


class MemorySwarm:
    """Instances of the fake around one table."""

    signs = False

    def __init__(self) -> None:
        self.clock = StepClock(1_000_000.0)
        self.dht = MemoryDht(self.clock)

    def now(self) -> float:
        return self.clock.now

    async def join(self, name: str) -> Directory:
        return MemoryDirectory(self.dht, f"Qm{name}", RUN_DIGEST, NUM_STAGES)

    async def until(self, moment: float) -> None:
        self.clock.now = max(self.clock.now, moment)

    async def plant(self, key: str, junk: list[tuple[object, object]], expires: float) -> None:
        for number, (_, value) in enumerate(junk):
            assert self.dht.store("stranger", key, f"QmJunk{number}", Entry(value, expires))

    def malformed(self, directory: Directory) -> int:
        assert isinstance(directory, MemoryDirectory)
        return directory.malformed


class RealSwarm:
    """p2pd processes on loopback; every one enters by the first. Ends them all when its block ends."""

    signs = True

    def __init__(self, folder: Path, tasks: asyncio.TaskGroup, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.tasks = tasks
        self.stack = stack
        self.entrance: tuple[str, ...] = ()
        self._stranger: Any = None

    def now(self) -> float:
        return time.time()

    def identity(self, name: str) -> Identity:
        """The identity of the peer of this name; `folder/name` is its state directory."""
        (self.folder / name).mkdir(exist_ok=True)
        return load_or_create(self.folder / name)

    async def start(self, name: str, **settings: Any) -> Any:
        """A `HivemindDirectory` with these settings of its config."""
        from node.directory import DirectoryConfig, HivemindDirectory

        settings.setdefault("initial_peers", self.entrance)
        identity = self.identity(name)
        config = DirectoryConfig(RUN_DIGEST, identity, identity.path.parent, num_stages=NUM_STAGES, **settings)
        directory = await HivemindDirectory.start(config, self.tasks)
        self.stack.push_async_callback(directory.close)
        return directory

    async def join(self, name: str) -> Directory:
        directory: Directory = await self.start(name)
        self.entrance = self.entrance or tuple(directory.addresses())
        return directory

    async def until(self, moment: float) -> None:
        await asyncio.sleep(moment - time.time())

    async def plant(self, key: str, junk: list[tuple[object, object]], expires: float) -> None:
        from node.directory.library import DHTID, MSGPackSerializer

        stranger = await self._lawless_node()
        storage = stranger.protocol.storage
        for number, (subkey, value) in enumerate(junk):
            expires += number * 1e-3  # hivemind's heap compares subkeys, whatever they are, where expiries are equal
            data = value if isinstance(value, bytes) else MSGPackSerializer.dumps(value)
            storage.store(DHTID.generate(key), data, expires, subkey=subkey)
            await asyncio.wait_for(stranger.store(key, value, expires, subkey=subkey), 10)

    def malformed(self, directory: Directory) -> int:
        return int(directory.malformed)  # type: ignore[attr-defined]

    async def lawless_address(self) -> str:
        """Where the stranger that plants junk can be entered by."""
        (address,) = await (await self._lawless_node()).get_visible_maddrs()
        return str(address)

    async def _lawless_node(self) -> Any:
        """A hivemind node without our validators, entered by the first peer: it stores and serves anything."""
        if self._stranger is not None:
            return self._stranger
        from node.directory.daemon import Daemon, DaemonConfig
        from node.directory.entrance import Entrance
        from node.directory.library import Belongings, DHTNode, attach, end, owning, p2pd_path
        from protocol.addresses import parse_multiaddress

        identity, theirs = self.identity("stranger"), Belongings()
        listen = parse_multiaddress("/ip4/127.0.0.1/tcp/0")
        config = DaemonConfig(p2pd_path(), identity.path, listen, (), identity.path.parent, 60.0)
        daemon = await Daemon.start(config, lambda line: None)
        with owning(theirs):
            p2p = await attach(daemon.socket)
            await p2p._ping_daemon()
            node = await DHTNode.create(p2p=p2p)
            await Entrance(identity.peer, time.time, 10.0).enter(node, self.entrance)
        for leave in (lambda: end(theirs), p2p.shutdown, daemon.stop):
            self.stack.push_async_callback(leave)
        self._stranger = node
        return node
