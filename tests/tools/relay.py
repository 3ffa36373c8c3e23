"""A TCP relay whose link can be made slow, silent or broken from a test, while connections run through it.

It runs on a thread of its own, so that it serves tests that wait for processes as well as tests in an event loop. A fault is
data: `relay.set(Faults(latency_s=0.02))`. What cannot go on waits: at most `MAX_BUFFER_BYTES` for each direction of a
connection are held here, then the sender feels it, as on a real link. No byte is lost, reordered or changed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import psutil

from protocol.addresses import parse_host_port

MAX_BUFFER_BYTES = 1 << 20
READ_BYTES = 1 << 16
WRITE_BYTES = 1 << 16
SLICE_S = 0.05
"""A slow link sends in slices of so many seconds, so that a change of rate is felt at once."""
LIMIT_S = 10.0
MAX_CONNECTIONS = 512
Direction = Literal["there", "back"]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Faults:
    """How the link is.

    `pass`: sound; `blackhole`: nothing goes either way, and goes on when it is sound again; `noreply`: nothing comes back
    from the target; `reset`: open and new connections are reset. `bytes_per_s` (0 = no limit) is shared by all
    connections, each direction for itself; `back_bytes_per_s`, if not 0, is for what comes back from the target in place of
    it; `latency_s` is for one way. With `client_pid` only connections that this process opened are such, the others sound.
    """

    mode: Literal["pass", "blackhole", "noreply", "reset"] = "pass"
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    back_bytes_per_s: float = 0.0
    client_pid: int = 0

    def rate(self, direction: Direction) -> float:
        """Bytes per second in this direction; 0 = no limit."""
        return (direction == "back" and self.back_bytes_per_s) or self.bytes_per_s


@dataclass(slots=True)
class Counts:
    """What happened so far, and what is here now."""

    accepted: int = 0
    open: int = 0
    reset: int = 0
    """Connections that the relay itself broke."""
    unreachable: int = 0
    """Connections for which the target did not answer."""
    bytes: dict[str, int] = field(default_factory=lambda: {"there": 0, "back": 0})
    buffered: int = 0
    peak_buffered: int = 0
    """Largest sum of what one direction of one connection held."""


class Relay:
    """Made by `relay`. Its methods may be called from any thread but its own."""

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        host, port = parse_host_port(listen)
        self._listener = socket.create_server((host, port), backlog=MAX_CONNECTIONS)
        self._listener.setblocking(False)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self.target = target
        self._faults, self._counts = Faults(), Counts()
        self._ports: set[int] = set()
        """Of the client whom alone the faults concern."""
        self._connections: set[_Connection] = set()
        self._free_at: dict[str, float] = {}
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name=f"relay {self.address}")

    # ---- from the test ----

    def set(self, faults: Faults) -> None:
        """The link is like this from now on; in effect when this returns."""
        self._ask(lambda: self._change(faults))

    def aim(self, target: str) -> None:
        """New connections go to this HOST:PORT; '' = nobody is there."""
        if target:
            parse_host_port(target)
        self.target = target

    def break_all(self) -> int:
        """Reset every open connection, once. How many those were."""
        return self._ask(self._break)

    def counts(self) -> Counts:
        """A copy of the counts."""
        return self._ask(self._snapshot)

    def open(self) -> None:
        """Accept from now on."""
        self._thread.start()
        assert self._started.wait(LIMIT_S), "the relay does not start"

    def close(self) -> None:
        """End all connections, and the thread."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the relay does not end"

    def _ask(self, work: Callable[[], Answer]) -> Answer:
        async def answered() -> Answer:
            return work()

        return asyncio.run_coroutine_threadsafe(answered(), self._loop).result(LIMIT_S)

    # ---- on its thread ----

    async def _main(self) -> None:
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        task = asyncio.current_task()
        assert task is not None, "asyncio.run makes a task"
        self._task = task
        self._started.set()
        with self._listener, suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                while True:
                    client, _ = await self._loop.sock_accept(self._listener)
                    group.create_task(self._serve(client), name=f"relay connection {self._counts.accepted}")

    def _snapshot(self) -> Counts:
        c = self._counts
        buffered = sum(pipe.held for connection in self._connections for pipe in connection.pipes)
        return Counts(c.accepted, len(self._connections), c.reset, c.unreachable, dict(c.bytes), buffered, c.peak_buffered)

    def _change(self, faults: Faults) -> None:
        self._faults = faults
        self._ports = ports_of(faults.client_pid)
        self._free_at.clear()
        self._changed.set()
        self._changed = asyncio.Event()
        if faults.mode == "reset":
            self._break()

    def _break(self) -> int:
        return sum([connection.reset() for connection in self._connections if self._concern(connection.client_port)])

    def _concern(self, client_port: int) -> bool:
        """Are the faults for the connection from this port?"""
        return not self._faults.client_pid or client_port in self._ports

    def _felt(self, client_port: int) -> Faults:
        return self._faults if self._concern(client_port) else Faults()

    async def _serve(self, client: socket.socket) -> None:
        self._counts.accepted += 1
        self._ports |= ports_of(self._faults.client_pid)
        port = client.getpeername()[1]
        if self._felt(port).mode == "reset" or len(self._connections) >= MAX_CONNECTIONS:
            self._counts.reset += 1
            _close(client, abruptly=True)
            return
        connection = _Connection(asyncio.current_task(), port)
        self._connections.add(connection)
        try:
            await self._connect(connection, client)
        except (OSError, _Broken):
            connection.abort(client)  # what one end did, the other one gets
        except asyncio.CancelledError:
            connection.abort(client)
            if not connection.broken:
                raise
            self._counts.reset += 1
        finally:
            self._connections.discard(connection)

    async def _connect(self, connection: _Connection, client: socket.socket) -> None:
        while not self._flows("there", connection.client_port):  # a SYN is lost there too
            await self._changed.wait()
        try:
            if not self.target:
                raise ConnectionRefusedError("nobody is there")
            host, port = parse_host_port(self.target)
            there_reader, there_writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
        except OSError:
            self._counts.unreachable += 1
            raise
        connection.writers.append(there_writer)
        reader, writer = await asyncio.open_connection(sock=client, limit=READ_BYTES)
        connection.writers.append(writer)
        port = connection.client_port
        connection.pipes = (_Pipe("there", reader, there_writer, port), _Pipe("back", there_reader, writer, port))
        await self._run(connection.pipes)
        for each in connection.writers:
            each.close()

    async def _run(self, pipes: tuple[_Pipe, ...]) -> None:
        broken = False
        try:
            async with asyncio.TaskGroup() as group:
                for pipe in pipes:
                    pipe.writer.transport.set_write_buffer_limits(high=WRITE_BYTES)
                    group.create_task(self._take(pipe), name=f"relay reads, {pipe.direction}")
                    group.create_task(self._give(pipe), name=f"relay writes, {pipe.direction}")
        except* (OSError, _Broken):
            broken = True
        if broken:
            raise _Broken

    def _flows(self, direction: Direction, client_port: int) -> bool:
        mode = self._felt(client_port).mode
        return mode == "pass" or (mode == "noreply" and direction == "there")

    async def _take(self, pipe: _Pipe) -> None:
        """Read until the end, as far as there is room."""
        while True:
            while pipe.held >= MAX_BUFFER_BYTES - READ_BYTES:
                pipe.room.clear()
                await pipe.room.wait()
            try:
                data: bytes | None = await pipe.reader.read(READ_BYTES)
            except OSError:
                data = None  # a reset travels like everything else
            pipe.put(time.monotonic() + self._felt(pipe.client_port).latency_s, data)
            self._counts.peak_buffered = max(self._counts.peak_buffered, pipe.held)
            if not data:
                return

    async def _give(self, pipe: _Pipe) -> None:
        """Write what is due, in order, until the end."""
        while True:
            due, data = await pipe.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not data:
                await self._until_flowing(pipe)
                if data is None:
                    raise _Broken
                pipe.writer.write_eof()
                return
            while data:
                data = data[await self._send(pipe, data) :]

    async def _send(self, pipe: _Pipe, data: bytes) -> int:
        """Writes the beginning of `data`, at the link's pace; how much of it."""
        await self._until_flowing(pipe)
        rate, count = self._felt(pipe.client_port).rate(pipe.direction), len(data)
        if rate:
            count = min(count, max(1, int(rate * SLICE_S)))
            now = time.monotonic()
            free_at = max(now, self._free_at.get(pipe.direction, now)) + count / rate
            self._free_at[pipe.direction] = free_at
            with suppress(TimeoutError):
                async with asyncio.timeout(free_at - now):
                    await self._changed.wait()
                    return 0
        pipe.writer.write(data[:count])
        await pipe.writer.drain()
        pipe.sent(count)
        self._counts.bytes[pipe.direction] += count
        return count

    async def _until_flowing(self, pipe: _Pipe) -> None:
        while not self._flows(pipe.direction, pipe.client_port):
            await self._changed.wait()


class _Broken(Exception):
    """One end of a connection is gone; so goes the other."""


class _Pipe:
    """One direction of a connection: what was read and is not written yet, each with the time when it is due."""

    def __init__(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_port: int
    ) -> None:
        self.direction, self.reader, self.writer, self.client_port = direction, reader, writer, client_port
        self.held = 0
        self.room, self._filled = asyncio.Event(), asyncio.Event()
        self._queue: deque[tuple[float, bytes | None]] = deque()

    def put(self, due: float, data: bytes | None) -> None:
        """b'' = the end, None = broken."""
        self.held += len(data or b"")
        self._queue.append((due, data))
        self._filled.set()

    async def get(self) -> tuple[float, bytes | None]:
        """The next one."""
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        return self._queue.popleft()

    def sent(self, count: int) -> None:
        """So many bytes are gone."""
        self.held -= count
        self.room.set()


class _Connection:
    """One that runs through the relay."""

    def __init__(self, task: asyncio.Task[None] | None, client_port: int) -> None:
        self.task, self.client_port = task, client_port
        self.broken = False
        self.writers: list[asyncio.StreamWriter] = []
        self.pipes: tuple[_Pipe, ...] = ()

    def reset(self) -> bool:
        """By the relay's own will; whether it was whole before."""
        if self.task is None or self.broken:
            return False
        self.broken = True
        self.task.cancel()
        return True

    def abort(self, client: socket.socket) -> None:
        """Both ends get a reset."""
        for writer in self.writers:
            _linger_none(writer.get_extra_info("socket"))
            writer.transport.abort()
        if len(self.writers) < 2:
            _close(client, abruptly=True)


def ports_of(pid: int) -> set[int]:
    """Local TCP ports of the connections of a process; none where it is gone, or 0."""
    try:
        return {each.laddr.port for each in psutil.Process(pid).net_connections(kind="tcp")} if pid else set()
    except psutil.NoSuchProcess:
        return set()


def _linger_none(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _close(sock: socket.socket, *, abruptly: bool) -> None:
    if abruptly:
        _linger_none(sock)
    sock.close()


@contextmanager
def relay(target: str = "", listen: str = "127.0.0.1:0") -> Iterator[Relay]:
    """A relay to `target` (HOST:PORT; '' until `aim` is called: nobody is there)."""
    made = Relay(target, listen)
    made.open()
    try:
        yield made
    finally:
        made.close()
