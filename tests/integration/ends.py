"""What must be true of a node process that ended, and of what it started; and the directory as another peer sees it."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from node.demo.process import STDERR_FILE, NodeProcess
from node.directory import DirectoryConfig, HivemindDirectory
from node.identity import load_or_create
from protocol.invite import parse
from tests.tools.swarm import wait_for

EXIT_LIMIT_S = 10.0
"""From the first signal; issue and README promise it."""
CHILD_LIMIT_S = 2.0
"""For p2pd after kill -9 of its node."""


def children(node: NodeProcess) -> list[psutil.Process]:
    """All that the node has started; [] once it ended."""
    try:
        return psutil.Process(node.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def p2pd_of(node: NodeProcess) -> psutil.Process:
    """The node's directory daemon, waited for."""

    def find() -> psutil.Process | None:
        return next((child for child in children(node) if child.name() == "p2pd"), None)

    found: psutil.Process = wait_for(f"{node.name} has p2pd", find, 60, lambda: "\n".join(node.last_words()))
    return found


def listening_ports(node: NodeProcess) -> set[int]:
    """TCP ports on which the node or a child of it listens."""
    found = set()
    for process in (psutil.Process(node.process.pid), *children(node)):
        for connection in process.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.port)
    return found


def is_free(port: int) -> bool:
    """Can the port be listened on again?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
        return True


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class Ending:
    """Taken while a node lives; `check` afterwards. `seconds`: from `send` to the end."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.children = children(node)
        self.ports = listening_ports(node) if node.process.poll() is None else set()
        self.seconds = 0.0
        self._began = time.monotonic()
        self._signum = 0

    def send(self, signum: int) -> None:
        """Ask the node to go."""
        self._began, self._signum = time.monotonic(), signum
        self.node.send(signum)

    def check(self, allowed: set[int] | None = None, limit_s: float = EXIT_LIMIT_S) -> int:
        """Waits for the end; the exit code. Without `allowed` it must be 0 or say by which signal. A last holder of a stage may
        take until its notice is over: a longer `limit_s`."""
        node, words = self.node, lambda: f"{self.node.name}: " + "\n".join(self.node.last_words())
        wait_for(f"{node.name} ended", lambda: node.exit_code is not None, limit_s, words)
        self.seconds = time.monotonic() - self._began
        code = node.exit_code
        assert code in (allowed or {0, 128 + self._signum}), f"exit code {code}\n{words()}"
        said = (node.state_dir / STDERR_FILE).read_text(errors="replace")
        assert "Traceback" not in said, said
        assert "Exception ignored" not in said, said
        wait_for(f"nothing of {node.name} is left", lambda: all(map(gone, self.children)), CHILD_LIMIT_S)
        wait_for(f"ports of {node.name} are free", lambda: all(map(is_free, self.ports)), CHILD_LIMIT_S)
        return code


def end_all_at_once(nodes: list[NodeProcess], signum: int = signal.SIGTERM, notice_s: float = 0.0) -> list[int]:
    """Signal all, then check all; exit codes. `notice_s`: of a run in which one may come to be the last holder of a stage
    before all have gone."""
    endings = [Ending(node) for node in nodes]
    for ending in endings:
        ending.send(signum)
    codes = [ending.check(limit_s=EXIT_LIMIT_S + notice_s) for ending in endings]
    print(f"{signal.Signals(signum).name} to {len(nodes)} at once: ended within {max(e.seconds for e in endings):.2f} s")
    return codes


@asynccontextmanager
async def observer(invite: str, folder: Path) -> AsyncIterator[HivemindDirectory]:
    """A peer of the run's directory that is no node of the run."""
    told = parse(invite)
    folder.mkdir(mode=0o700)
    config = DirectoryConfig(
        run_digest=told.manifest_digest,
        identity=load_or_create(folder),
        runtime_dir=folder,
        initial_peers=told.addresses,
        num_stages=8,
    )
    async with asyncio.TaskGroup() as tasks:
        directory = await HivemindDirectory.start(config, tasks)
        try:
            yield directory
        finally:
            await directory.close()


async def claimed(directory: HivemindDirectory) -> set[str]:
    """Peers that claim to be there and not to be leaving."""
    return {lease.peer for lease in await directory.leases() if not lease.leaving}
