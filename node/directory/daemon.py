"""p2pd, the process that carries the directory's traffic, as our child.

It dies with us, also on kill -9: a small launcher asks the kernel to kill it when the thread that started it ends (so the
event loop's thread must outlive it), then becomes p2pd. It has a session of its own, so that a Ctrl-C reaches only us and the
tombstone can still be written. No task watches it: its output and its death are callbacks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, cast

from node.ports import UnusableError
from protocol.addresses import Multiaddress

CANNOT_REACH = 3
BAD_USE = 2
MAX_SOCKET_PATH = 100
"""A unix socket's path has room for 107 bytes."""
_SOCKET = "p2pd.sock"
_LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """`socket_dir` gets the control socket, unless its path is too long for one."""

    binary: Path
    identity: Path
    listen: Multiaddress
    announce: tuple[Multiaddress, ...]
    """Port 0: the one that it listens on."""
    socket_dir: Path
    start_timeout_s: float
    quiet: bool = False
    """Only dial, and tell nobody an address; the port is kept free for later."""


class Daemon(asyncio.SubprocessProtocol):
    """A running p2pd. `on_death(last line)` is called when it ends without `stop`."""

    def __init__(
        self, control_socket: Path, on_death: Callable[[str], None], listen: Multiaddress, reserved: socket.socket
    ) -> None:
        self.socket = control_socket
        self.listen = listen
        """With the real port."""
        self.last_line = ""
        self._on_death = on_death
        self._stopping = False
        self._partial = b""
        self._transport: asyncio.SubprocessTransport | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._ended = asyncio.Event()
        self._reserved = reserved

    @classmethod
    async def start(cls, config: DaemonConfig, on_death: Callable[[str], None]) -> Daemon:
        """Returns once the daemon listens. Raises `UnusableError`: 2 for a port in use, 3 if it does not come up."""
        reserved = _reserve(config.listen)
        listen = replace(config.listen, port=reserved.getsockname()[1])
        daemon = cls(_socket_path(config.socket_dir), on_death, listen, reserved)
        try:
            with suppress(FileNotFoundError):
                daemon.socket.unlink()
            async with asyncio.timeout(config.start_timeout_s):
                await daemon._spawn(_arguments(config, listen.port, daemon.socket))
                await daemon._ready
        except TimeoutError:
            await daemon.stop()
            raise UnusableError(
                CANNOT_REACH,
                f"p2pd, the network process of the directory, did not start within {config.start_timeout_s:g} s: "
                "free this machine of other load and start again",
            ) from None
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._transport is not None and self._transport.get_returncode() is None and not self._gone.done()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._transport is not None, "the daemon was never started"
        return self._transport.get_pid()

    async def death(self) -> NoReturn:
        """Raises `EOFError` when the process has ended."""
        await self._ended.wait()
        raise EOFError("p2pd died")

    async def stop(self) -> None:
        """Kill it (it keeps nothing on disk) and wait until it is gone; remove the control socket."""
        self._stopping = True
        if not self._ready.cancel() and not self._ready.cancelled():
            self._ready.exception()  # looked at, so that nobody logs it
        if self._transport is not None:
            with suppress(ProcessLookupError):
                self._transport.kill()
            await asyncio.wait([self._gone], timeout=5)
            self._transport.close()
            self._transport = None
        self._reserved.close()
        with suppress(FileNotFoundError):
            self.socket.unlink()
        if self.socket.parent.name.startswith(_TEMP_PREFIX):
            with suppress(OSError):
                self.socket.parent.rmdir()

    async def _spawn(self, arguments: list[str]) -> None:
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *[sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())],
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UnusableError(CANNOT_REACH, f"cannot start p2pd: {error.strerror or error}") from None

    # ---- callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-4096:]
        for line in lines:
            self._line(line.decode("utf-8", "replace").strip()[:1000])

    def process_exited(self) -> None:
        self._ended.set()
        if not self._ready.done():
            why = self.last_line or "it said nothing"
            self._ready.set_exception(
                UnusableError(CANNOT_REACH, f"p2pd, the network process of the directory, ended at once: {why}")
            )
        elif not self._stopping:
            self._on_death(self.last_line)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def _line(self, line: str) -> None:
        _log.debug("p2pd: %s", line)
        if line.startswith("Peer ID:"):
            if not self._ready.done():
                self._ready.set_result(None)
        elif line and not line.startswith(("Control socket:", "Peer Addrs:", "/")):
            self.last_line = line


_TEMP_PREFIX = "regrow-p2pd-"


def _socket_path(folder: Path) -> Path:
    path = folder.absolute() / _SOCKET
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix=_TEMP_PREFIX)) / _SOCKET


def _reserve(listen: Multiaddress) -> socket.socket:
    """A socket that keeps everybody else off the port (0: any free one) and listens not itself.

    p2pd shares ports silently: two nodes would each get some of the connections. It may share this one, as this socket allows
    it from now on; whoever asks for the port alone may not.
    """
    family = socket.AF_INET6 if listen.kind == "ip6" else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what only lingers is no obstacle
    if listen.kind == "ip6":
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        reserved.bind((listen.host, listen.port))
    except OSError as error:
        reserved.close()
        raise UnusableError(
            BAD_USE,
            f"the directory cannot listen on {listen.host} port {listen.port}: {error.strerror or error}; "
            "stop what uses it or choose another --dht-port",
        ) from None
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reserved


def _arguments(config: DaemonConfig, port: int, control: Path) -> list[str]:
    """Neither relays nor port mapping nor reachability probes: a node is dialled where it says, or not at all."""
    arguments = [
        str(config.binary),
        f"-id={config.identity}",
        f"-listen=/unix{control}",
        "-noListenAddrs" if config.quiet else f"-hostAddrs={replace(config.listen, port=port)}",
        "-dhtServer",
        "-tls=1",
        "-relay=0",
        "-relayService=0",
        "-autonat=0",
        "-natPortMap=0",
    ]
    if config.announce and not config.quiet:
        announced = [str(replace(address, port=address.port or port)) for address in config.announce]
        arguments.append(f"-announceAddrs={','.join(announced)}")
    return arguments
