"""The relay that tests put between nodes: what each of its faults does to a connection, and that it loses nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random

import pytest

from protocol.addresses import parse_host_port
from tests.tools.relay import MAX_BUFFER_BYTES, Faults, Relay, relay
from tests.tools.swarm import wait_for

LIMIT_S = 20.0
SOUND = Faults()


@contextmanager
def echo() -> Iterator[str]:
    """HOST:PORT of a server that sends back what it gets, connection by connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_echo_all, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)


def _echo_all(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            threading.Thread(target=_echo_one, args=(listener.accept()[0],), daemon=True).start()


def _echo_one(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


@pytest.fixture
def link() -> Iterator[Relay]:
    with echo() as server, relay(server) as made:
        yield made


@contextmanager
def client(link: Relay) -> Iterator[socket.socket]:
    with socket.create_connection(parse_host_port(link.address), LIMIT_S) as made:
        yield made


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data


def silent(connection: socket.socket, seconds: float = 0.2) -> bool:
    """Whether nothing comes for so long."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1, socket.MSG_PEEK) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LIMIT_S)


@pytest.mark.parametrize("faults", [SOUND, Faults(latency_s=0.01), Faults(bytes_per_s=4e6)], ids=str)
def test_all_bytes_come_in_order(link: Relay, faults: Faults, seed: int) -> None:
    link.set(faults)
    sent = Random(seed).randbytes(500_000)
    with client(link) as connection:
        writer = threading.Thread(target=connection.sendall, args=(sent,))
        writer.start()
        assert read(connection, len(sent)) == sent
        writer.join(LIMIT_S)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "the end travels too"
    assert link.counts().bytes == {"there": len(sent), "back": len(sent)}
    wait_for("it is closed", lambda: link.counts().open == 0, LIMIT_S)


def test_latency_is_for_each_way(link: Relay) -> None:
    link.set(Faults(latency_s=0.1))
    with client(link) as connection:
        asked = time.monotonic()
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
        assert time.monotonic() - asked >= 0.2


def test_rate_is_shared_and_can_be_lifted(link: Relay) -> None:
    link.set(Faults(bytes_per_s=100_000))
    with client(link) as one, client(link) as other:
        begun = time.monotonic()
        for connection in (one, other):
            connection.sendall(bytes(20_000))
        assert len(read(one, 20_000)) == len(read(other, 20_000)) == 20_000
        assert time.monotonic() - begun >= 0.35, "40,000 bytes at 100,000 bytes/s"
        link.set(Faults(bytes_per_s=100))
        one.sendall(bytes(10_000))  # 100 s
        link.set(SOUND)
        assert len(read(one, 10_000)) == 10_000


def test_rate_of_what_comes_back_alone(link: Relay) -> None:
    link.set(Faults(back_bytes_per_s=100))
    with client(link) as connection:
        connection.sendall(bytes(20_000))
        wait_for("all is there", lambda: link.counts().bytes["there"] == 20_000, LIMIT_S)
        assert link.counts().bytes["back"] < 10_000
        link.set(SOUND)
        assert len(read(connection, 20_000)) == 20_000


def test_blackhole_holds_everything_back_until_it_ends(link: Relay) -> None:
    with client(link) as connection:
        connection.sendall(b"before")
        assert read(connection, 6) == b"before"
        link.set(Faults("blackhole"))
        connection.sendall(b"within")
        with client(link) as late:
            late.sendall(b"late")
            assert silent(connection)
            assert silent(late)
            assert link.counts().bytes["there"] == len(b"before")
            link.set(SOUND)
            assert read(connection, 6) == b"within"
            assert read(late, 4) == b"late"


def test_a_blackhole_for_what_one_process_opens(link: Relay) -> None:
    """Open connections and new ones; of anybody else's nothing is held back."""
    with client(link) as before:
        link.set(Faults("blackhole", client_pid=os.getpid()))
        with client(link) as after:
            for each in (before, after):
                each.sendall(b"held")
                assert silent(each)
            link.set(Faults("blackhole", client_pid=os.getppid()))
            for each in (before, after):
                assert read(each, 4) == b"held"
            with client(link) as another:
                another.sendall(b"goes")
                assert read(another, 4) == b"goes"


def test_a_blackhole_hides_a_death(link: Relay) -> None:
    with client(link) as connection:
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
        link.set(Faults("blackhole"))
        connection.shutdown(socket.SHUT_WR)
        assert silent(connection)
        link.set(SOUND)
        assert connection.recv(1) == b""


def test_noreply_lets_requests_through(link: Relay) -> None:
    with client(link) as connection:
        link.set(Faults("noreply"))
        connection.sendall(b"asked")
        wait_for("the request is there", lambda: link.counts().bytes["there"] == 5, LIMIT_S)
        assert silent(connection)
        link.set(SOUND)
        assert read(connection, 5) == b"asked"


def test_reset_is_felt_by_open_and_by_new_connections(link: Relay) -> None:
    with client(link) as connection:
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
        link.set(Faults("reset"))
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionError), client(link) as late:
        read(late, 1)
    link.set(SOUND)
    with client(link) as connection:
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
    assert link.counts().reset == 2


def test_break_all_breaks_once(link: Relay) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(client(link)) for _ in range(3)]
        for connection in connections:
            connection.sendall(b"x")
            assert read(connection, 1) == b"x"
        assert link.break_all() == 3
        for connection in connections:
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    assert link.break_all() == 0
    with client(link) as connection:
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"


def test_buffers_are_bounded(link: Relay) -> None:
    """A sender that never stops is stopped by a full link: what the relay holds has a limit."""
    with client(link) as connection:
        connection.sendall(b"x")
        assert read(connection, 1) == b"x", "else the link swallows the connection itself"
        link.set(Faults("blackhole"))
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.sendall(bytes(64 << 20))
        wait_for("its buffer is full", lambda: link.counts().buffered > MAX_BUFFER_BYTES // 2, 20)
        counts = link.counts()
        assert counts.buffered <= counts.peak_buffered <= MAX_BUFFER_BYTES


def test_without_a_target_and_after_it_moved() -> None:
    with relay() as link:
        with pytest.raises(ConnectionError), client(link) as connection:
            connection.recv(1)
        assert link.counts().unreachable == 1
        with echo() as server:
            link.aim(server)
            with client(link) as connection:
                connection.sendall(b"x")
                assert read(connection, 1) == b"x"


def test_it_ends_with_open_connections(link: Relay) -> None:
    with echo() as server, ExitStack() as stack:
        with relay(server) as short:
            connection = stack.enter_context(client(short))
            connection.sendall(b"x")
            assert read(connection, 1) == b"x"
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
