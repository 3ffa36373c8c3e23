"""A network of its own for a test: the test runs again, in a process in a new network namespace, whose loopback device has the
addresses that it wants.

Public addresses can be used there without a packet leaving the machine, and default ports are free. Needs no privilege where
user namespaces are allowed. A fresh process, because a fork of one that has used gRPC cannot use it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFADDR, SIOCSIFFLAGS = 0x8916, 0x8914
IFF_UP_RUNNING_LOOPBACK = 0x1 | 0x40 | 0x8
INSIDE = "REGROW_TEST_OWN_NETWORK"
ROOT = Path(__file__).parents[2]


def in_own_network(scenario: Callable[[], None], limit_s: float, addresses: tuple[str, ...] = ("127.0.0.1",)) -> None:
    """Run `scenario` there; fails with what it raised. `addresses`: IPv4 of this machine there, () = IPv6 loopback only."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    if os.environ.get(INSIDE) == test:
        scenario()
        return
    command = [sys.executable, "-m", "tests.tools.own_network", test, *addresses]
    surroundings = {**os.environ, INSIDE: test}
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=surroundings,
        check=False,
        capture_output=True,
        text=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def main(test: str, addresses: tuple[str, ...]) -> None:
    """Enter the network and become the test."""
    _enter()
    _bring_up(addresses)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "full or not full", test]
    os.execv(sys.executable, words)


def _enter() -> None:
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if user else 0)) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _bring_up(addresses: tuple[str, ...]) -> None:
    """The first address on `lo`, which is up with 127.0.0.1 and ::1; the others as its aliases."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING_LOOPBACK))
        if not addresses:
            fcntl.ioctl(control, SIOCSIFADDR, _request("lo", "0.0.0.0"))
        for number, address in enumerate(addresses):
            if address != "127.0.0.1":
                fcntl.ioctl(control, SIOCSIFADDR, _request(f"lo:{number}", address))


def _request(name: str, address: str) -> bytes:
    return struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, socket.inet_aton(address))


if __name__ == "__main__":
    main(sys.argv[1], tuple(sys.argv[2:]))
