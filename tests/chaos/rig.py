"""The swarm that chaos strikes: 8 nodes for 5 stages, each behind a relay, on a disk of its own and with a wall clock that can
be stepped. All on loopback."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from node import http_client
from node.demo.process import STDERR_FILE, STDOUT_FILE, NodeProcess, end_all
from node.event_log import FILE_NAME as EVENTS_FILE
from node.ports import UnusableError
from tests.tools.crowd import free_port
from tests.tools.material import write_manifest
from tests.tools.relay import Relay, relay
from tests.tools.swarm import Swarm
from tests.tools.tally import Events

NUM_BLOCK_STAGES, NUM_NODES, NUM_MICROBATCHES = 4, 8, 8
HEARTBEAT_S, LAPSE_HEARTBEATS = 0.5, 6
STATUS_LIMIT_S = 1.0
DISK_BYTES = 64 << 20
OURS = "CHAOS_ID"
"""Environment variable by which processes of this swarm are known, grandchildren too."""
SHIM = Path(__file__).parent / "step_clock.c"
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2
Status = dict[str, Any]


class Unable(Exception):
    """This machine does not let us; the sentence says what is missing."""


def write_run(folder: Path) -> Path:
    """Tiny, five stages. Who hears nobody waits for the network: the manifest does not say that all is on one machine."""
    return write_manifest(
        folder,
        num_block_stages=NUM_BLOCK_STAGES,
        max_steps=1_000_000,
        batch__global_samples=2 * NUM_MICROBATCHES,
        evaluation__every_steps=0,
        recovery__policy="checkfree_plus",
        recovery__rebuild_grace_s=0.5,
        timing__heartbeat_s=HEARTBEAT_S,
        timing__lapse_heartbeats=LAPSE_HEARTBEATS,
        timing__leave_notice_s=20.0,
        local=False,
    )


class Rig(Swarm):
    """See the module. Made by `rig`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder)
        self._stack = stack
        self.id = uuid.uuid4().hex
        self.links: dict[str, Relay] = {}
        """By name, in front of the gRPC port."""
        self._listen: dict[str, str] = {}
        self._clocks: dict[str, Path] = {}
        self._words = folder / "words"
        self._words.mkdir(parents=True)
        self._shim = self._words / "step_clock.so"
        _compile(self._shim)

    # ---- nodes

    def _add(self, name: str, args: list[str]) -> NodeProcess:
        if name not in self.links:
            self._furnish(name)
        shim = {"LD_PRELOAD": str(self._shim), "CHAOS_CLOCK": str(self._clocks[name]), OURS: self.id}
        where = ["--lan", "--listen", self._listen[name], "--announce", self.links[name].address]
        node = NodeProcess.start(name, [*args, *where], self.folder / name, shim)
        self.nodes.append(node)
        return node

    def _furnish(self, name: str) -> None:
        """Link, disk and clock of a new name. What the node says goes elsewhere: a full disk does not hide it."""
        self._listen[name] = f"127.0.0.1:{free_port()}"
        self.links[name] = self._stack.enter_context(relay(self._listen[name]))
        disk = self.folder / name
        disk.mkdir(mode=0o700)
        self._stack.enter_context(_disk(disk))
        for file in (STDOUT_FILE, STDERR_FILE):
            (disk / file).symlink_to(self._words / f"{name}.{file}")
        self._clocks[name] = self._words / f"{name}.clock"
        self.step_clock(name, 0.0)

    def step_clock(self, name: str, offset_s: float) -> None:
        """The node's wall clock is off by so much from now on."""
        with self._clocks[name].open("r+b" if self._clocks[name].exists() else "wb") as file:
            file.write(struct.pack("d", offset_s))

    def living(self) -> list[NodeProcess]:
        """Processes that have not ended."""
        return [node for node in self.nodes if node.exit_code is None]

    def told(self, node: NodeProcess) -> Status:
        """/status; {} if it is not up or does not answer soon."""
        if not node.check_ready() or node.running is None:
            return {}
        try:
            return http_client.status(node.running.http, STATUS_LIMIT_S)
        except UnusableError:
            return {}

    def invite(self, node: NodeProcess) -> str:
        """A fresh one; "" if the node does not answer."""
        try:
            return http_client.get(node.running.http, "/invite", STATUS_LIMIT_S).decode().strip() if node.running else ""
        except UnusableError:
            return ""

    # ---- afterwards

    def logs(self) -> dict[str, Events]:
        """Everybody's events by peer, those of the dead included."""
        return {node.running.peer: self.events(node) for node in self.nodes if node.check_ready() and node.running}

    def left_behind(self) -> list[psutil.Process]:
        """Processes that belong to this swarm and run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(OURS) == self.id and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def keep(self, to: Path) -> None:
        """Copy what the nodes wrote for people and the event logs."""
        for name in self.links:
            (to / name).mkdir(parents=True, exist_ok=True)
            for file in (EVENTS_FILE, STDOUT_FILE, STDERR_FILE):
                if (self.folder / name / file).exists():
                    shutil.copy(self.folder / name / file, to / name / file)


@contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """A swarm without nodes; what it starts is gone afterwards, whatever happens. Raises `Unable`.

    The process should have one thread only: it enters a mount namespace of its own.
    """
    _own_mounts()
    with ExitStack() as stack:
        made = Rig(folder, stack)
        try:
            yield made
        finally:
            end_all(made.nodes, grace_s=0)


def _compile(to: Path) -> None:
    try:
        ended = subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", to, SHIM], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise Unable("stepping a clock needs a C compiler (cc)") from None
    if ended.returncode:
        raise Unable(f"cc cannot compile {SHIM.name}: {ended.stderr}")


def _own_mounts() -> None:
    user, group, libc = os.getuid(), os.getgid(), _libc()
    if libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)) != 0:
        raise Unable(f"disks of the nodes' own need root or user namespaces: {os.strerror(ctypes.get_errno())}")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise Unable(f"cannot keep mounts private: {os.strerror(ctypes.get_errno())}")


@contextmanager
def _disk(at: Path) -> Iterator[None]:
    """A small file system of its own."""
    if _libc().mount(b"chaos", str(at).encode(), b"tmpfs", 0, f"size={DISK_BYTES},mode=700".encode()) != 0:
        raise Unable(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        _libc().umount2(str(at).encode(), MNT_DETACH)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
