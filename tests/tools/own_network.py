"""A network of its own for a test: a fork in a new network namespace, whose loopback device has the addresses that it wants.

Public addresses can be used there without a packet leaving the machine, and default ports are free. Needs no privilege where
user namespaces are allowed. The test is run again in a fresh process first: a fork of one that has used gRPC cannot use it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFADDR, SIOCSIFFLAGS = 0x8916, 0x8914
IFF_UP_RUNNING_LOOPBACK = 0x1 | 0x40 | 0x8
FRESH = "TEST_IN_A_FRESH_PROCESS"
"""Not REGROW_...: tests see none of those."""
ROOT = Path(__file__).parents[2]


def in_own_network(
    scenario: Callable[[], None], log: Path, limit_s: float, addresses: tuple[str, ...] = ("127.0.0.1",)
) -> None:
    """Run `scenario` there; fails with what it raised. `addresses`: IPv4 of this machine there, () = IPv6 loopback only."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    if os.environ.get(FRESH) == test:
        _fork(scenario, log, limit_s, addresses)
    else:
        _again(test, limit_s)


def _again(test: str, limit_s: float) -> None:
    """The same test by itself, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "full or not full", test]
    with tempfile.TemporaryFile("w+") as told:
        surroundings = {**os.environ, FRESH: test}
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=surroundings,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            timeout=limit_s,
        )
        told.seek(0)
        assert ended.returncode == 0, told.read()


def _fork(scenario: Callable[[], None], log: Path, limit_s: float, addresses: tuple[str, ...]) -> None:
    pid = os.fork()
    if pid == 0:
        _be_there(scenario, log, addresses)
    deadline = time.monotonic() + limit_s
    try:
        while not (done := os.waitpid(pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, f"not done within {limit_s:.0f} s"
            time.sleep(0.05)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    assert os.waitstatus_to_exitcode(done[1]) == 0, log.read_text() if log.exists() else "killed"


def _be_there(scenario: Callable[[], None], log: Path, addresses: tuple[str, ...]) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _enter()
        _bring_up(addresses)
        scenario()
        code = 0
    except BaseException:
        log.write_text(traceback.format_exc())
        raise
    finally:
        sys.stdout.flush()
        os._exit(code)


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
