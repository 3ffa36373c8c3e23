"""An emulated WAN for tests: every peer in a network namespace of its own, at the end of a link with a delay and a rate.

Real sockets, any protocol: `with wan(3) as made, made.inside(0): ...` makes sockets and starts processes at peer 0, whose
address is `made.address(0)`. Contention, queues and loss: `tests.tools.wan_router`. Needs root and /dev/net/tun
(`is_possible`). Nothing has a name on the machine: namespaces, devices and router end with this process and those that it
started, however they end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.tools.own_network import CLONE_NEWNET, IFF_UP_RUNNING_LOOPBACK, ROOT, SIOCSIFADDR, SIOCSIFFLAGS
from tests.tools.wan_router import NETWORK, Link

DEVICE = "wan0"
TUN = Path("/dev/net/tun")
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
OFFLOAD_CHECKSUM_TCP4 = 0x1 | 0x2
SIOCSIFNETMASK, SIOCSIFTXQLEN = 0x891C, 0x8943
IFF_UP_RUNNING = 0x1 | 0x40
QUEUE_PACKETS = 1000
ROUTER_LIMIT_S = 10.0


def is_possible() -> bool:
    """May this process make namespaces and TUN devices?"""
    return os.geteuid() == 0 and TUN.exists()


@dataclass
class Wan:
    """See the module. `told` is what the router says at its end."""

    link: Link
    namespaces: list[int]
    told: dict[str, Any]

    def address(self, peer: int) -> str:
        """Its IPv4 address."""
        return str(NETWORK[peer + 1])

    @contextmanager
    def inside(self, peer: int) -> Iterator[None]:
        """This thread is at the peer's: sockets that it makes and processes that it starts stay there."""
        with _kept_namespace():
            _enter(self.namespaces[peer])
            yield

    def bytes_received(self, peer: int) -> int:
        """What came in over the peer's link so far, headers included (of a bundle: once)."""
        with self.inside(peer):
            table = Path("/proc/thread-self/net/dev").read_text()
        row = next(line for line in table.splitlines() if line.strip().startswith(f"{DEVICE}:"))
        return int(row.partition(":")[2].split()[0])


@contextmanager
def wan(num_peers: int, link: Link = Link()) -> Iterator[Wan]:  # noqa: B008 (frozen)
    """Such a network, up. Raises `OSError` where it is not possible."""
    with ExitStack() as descriptors:
        namespaces, tuns = [], []
        for peer in range(num_peers):
            namespace, tun = _make_peer(str(NETWORK[peer + 1]))
            descriptors.callback(os.close, namespace)
            descriptors.callback(os.close, tun)
            namespaces.append(namespace)
            tuns.append(tun)
        command = [sys.executable, "-m", "tests.tools.wan_router", str(os.getpid()), json.dumps(asdict(link)), *map(str, tuns)]
        with subprocess.Popen(command, cwd=ROOT, pass_fds=tuns, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as router:
            assert router.stdout
            try:
                assert router.stdout.readline() == b"ready\n", "the router does not run"
                made = Wan(link, namespaces, {})
                yield made
                router.terminate()
                made.told |= json.loads(router.communicate(timeout=ROUTER_LIMIT_S)[0])
            finally:
                router.kill()


def _make_peer(address: str) -> tuple[int, int]:
    """Descriptors of a new namespace and of the TUN device in it, which is up with this address."""
    with _kept_namespace():
        if _libc().unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        tun = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(tun, TUNSETOFFLOAD, OFFLOAD_CHECKSUM_TCP4)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, given in _settings(address):
                fcntl.ioctl(control, request, given)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), tun


def _settings(address: str) -> list[tuple[int, bytes]]:
    def ipv4(text: str) -> bytes:
        return struct.pack("16sHH4s16x", DEVICE.encode(), socket.AF_INET, 0, socket.inet_aton(text))

    return [
        (SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP_RUNNING_LOOPBACK)),
        (SIOCSIFADDR, ipv4(address)),
        (SIOCSIFNETMASK, ipv4(str(NETWORK.netmask))),
        (SIOCSIFTXQLEN, struct.pack("16si20x", DEVICE.encode(), QUEUE_PACKETS)),
        (SIOCSIFFLAGS, struct.pack("16sH22x", DEVICE.encode(), IFF_UP_RUNNING)),
    ]


@contextmanager
def _kept_namespace() -> Iterator[None]:
    """Afterwards the thread is in the network namespace in which it is now."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _enter(here)
        os.close(here)


def _enter(namespace: int) -> None:
    if _libc().setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
