"""What strikes a node, and what relieves it. Whether a fault was there is looked at from outside, not believed."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from node.demo.process import NodeProcess
from node.event_log import FILE_NAME as EVENTS_FILE
from node.event_log import parse_lines
from tests.chaos.rig import Rig
from tests.chaos.schedule import Fault, Kind
from tests.integration.ends import children, gone
from tests.tools.relay import Faults
from tests.tools.tally import Window

Relieve = Callable[[], bool]
"""Ends the fault; whether it was there."""
BALLAST = "ballast"
TAIL_BYTES = 16 << 10
SLOW = Faults(latency_s=0.15, bytes_per_s=100_000.0)
KILL_LIMIT_S = 10.0


@dataclass
class Hands:
    """Strikes nodes of a rig, and remembers what has to be looked at later."""

    rig: Rig
    gaps: dict[str, list[Window]] = field(default_factory=dict)
    """By name, when its event log had no room."""
    bereaved: list[tuple[float, str, psutil.Process]] = field(default_factory=list)
    """What ended nodes had started, and when they ended."""

    def strike(self, fault: Fault, node: NodeProcess, other: NodeProcess) -> Relieve:
        """`other`: of two nodes, the one that opened the connection."""
        strikes: dict[Kind, Callable[[], Relieve]] = {
            "kill": lambda: self._kill(node),
            "term": lambda: self._term(node),
            "stop": lambda: self._stop(node),
            "cut_off": lambda: self._cut_off(node),
            "pair": lambda: self._on_link(node, Faults("blackhole", client_pid=other.process.pid), other),
            "noreply": lambda: self._on_link(node, Faults("noreply")),
            "reset": lambda: self._on_link(node, Faults("reset")),
            "slow": lambda: self._on_link(node, SLOW),
            "p2pd": lambda: self._kill_daemon(node),
            "full_disk": lambda: self._fill(node),
            "clock": lambda: self._step_clock(node, fault.step_s),
        }
        return strikes[fault.kind]()

    # ---- processes

    def _kill(self, node: NodeProcess) -> Relieve:
        started = children(node)
        node.send(signal.SIGKILL)
        node.process.wait(KILL_LIMIT_S)
        self.bereave(node, started)
        return lambda: node.exit_code == 128 + signal.SIGKILL

    def _term(self, node: NodeProcess) -> Relieve:
        started = children(node)
        node.send(signal.SIGTERM)

        def ended() -> bool:
            self.bereave(node, started)
            return node.exit_code is not None

        return ended

    def bereave(self, node: NodeProcess, started: list[psutil.Process]) -> None:
        """The node has ended, or should have: what it had started must go soon."""
        self.bereaved += [(time.monotonic(), node.name, child) for child in started]

    def _stop(self, node: NodeProcess) -> Relieve:
        node.send(signal.SIGSTOP)
        process = psutil.Process(node.process.pid)

        def go_on() -> bool:
            was_stopped = process.status() == psutil.STATUS_STOPPED
            node.send(signal.SIGCONT)
            return was_stopped

        return go_on

    def _kill_daemon(self, node: NodeProcess) -> Relieve:
        daemons = [child for child in children(node) if child.name() == "p2pd"]
        for daemon in daemons:
            daemon.kill()
        return lambda: bool(daemons) and all(map(gone, daemons))

    # ---- links

    def _cut_off(self, node: NodeProcess) -> Relieve:
        was_used = self.rig.links[node.name].counts().open > 0
        for name, link in self.rig.links.items():
            link.set(Faults("blackhole", client_pid=0 if name == node.name else node.process.pid))

        def heal() -> bool:
            for link in self.rig.links.values():
                link.set(Faults())
            return was_used

        return heal

    def _on_link(self, node: NodeProcess, faults: Faults, client: NodeProcess | None = None) -> Relieve:
        """Faults of the link in front of the node; fired if connections (of the client) ran through it."""
        link = self.rig.links[node.name]
        before = link.counts()
        was_used = before.open > 0 and (client is None or self.is_connected(client, node))
        link.set(faults)

        def heal() -> bool:
            link.set(Faults())
            return was_used and (faults.mode != "reset" or link.counts().reset > before.reset)

        return heal

    def is_connected(self, client: NodeProcess, server: NodeProcess) -> bool:
        """Has the client a connection to the server's link?"""
        port = int(self.rig.links[server.name].address.rpartition(":")[2])
        try:
            found = psutil.Process(client.process.pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            return False
        return any(each.raddr and each.raddr.port == port for each in found)

    # ---- disk and clock

    def _fill(self, node: NodeProcess) -> Relieve:
        at, since = node.state_dir / BALLAST, time.monotonic()
        fill(at)

        def free() -> bool:
            is_full = os.statvfs(at).f_bavail == 0
            at.unlink()
            self.gaps.setdefault(node.name, []).append((since, time.monotonic()))
            return is_full

        return free

    def _step_clock(self, node: NodeProcess, step_s: float) -> Relieve:
        before = _last_offset(node)
        self.rig.step_clock(node.name, step_s)

        def step_back() -> bool:
            after = _last_offset(node)
            self.rig.step_clock(node.name, 0.0)
            return before is not None and after is not None and abs(after - before - step_s) < 1.5

        return step_back


def fill(at: os.PathLike[str]) -> None:
    """A file that leaves no room on its file system."""
    fd = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        block = bytes(1 << 20)
        while block:
            try:
                os.write(fd, block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                block = block[: len(block) // 2]
    finally:
        os.close(fd)


def _last_offset(node: NodeProcess) -> float | None:
    """Wall clock less monotonic clock, by the last line of its event log."""
    path = node.state_dir / EVENTS_FILE
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        events = list(parse_lines(file.read().partition(b"\n")[2]))
    return float(events[-1]["wall"] - events[-1]["t"]) if events else None
