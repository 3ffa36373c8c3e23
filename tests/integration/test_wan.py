"""The emulated WAN that benchmarks measure in: delay, rate and separation as asked, with real sockets."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.tools.wan import DEVICE, Wan, wan
from tests.tools.wan_router import Link

LIMIT_S = 20.0
LINK = Link(delay_s=0.03, rate=2.5e6)
NUM_BYTES = 1_000_000

pytestmark = pytest.mark.tun


def listener(made: Wan, peer: int) -> socket.socket:
    with made.inside(peer):
        return socket.create_server((made.address(peer), 0))


def connected(made: Wan, peer: int, to: socket.socket) -> socket.socket:
    with made.inside(peer):
        client = socket.socket()
    client.settimeout(LIMIT_S)
    client.connect(to.getsockname())
    return client


def drain(server: socket.socket, ended_at: list[float]) -> None:
    """One connection, to its end."""
    accepted, _ = server.accept()
    with accepted:
        accepted.settimeout(LIMIT_S)
        while accepted.recv(1 << 16):
            pass
    ended_at.append(time.monotonic())


def test_a_round_trip_takes_twice_the_delay() -> None:
    with wan(2, LINK) as made, listener(made, 1) as server:
        took = []
        for _ in range(5):
            began = time.monotonic()
            connected(made, 0, server).close()
            took.append(time.monotonic() - began)
        assert 2 * LINK.delay_s <= min(took) < 6 * LINK.delay_s
    assert made.told["packets"] >= 5 * 3


def test_two_senders_share_the_receivers_link_and_its_counter_sees_all() -> None:
    with wan(3, LINK) as made, listener(made, 2) as server:
        before, ended_at = made.bytes_received(2), list[float]()
        began = time.monotonic()
        readers = [threading.Thread(target=drain, args=(server, ended_at), name=f"reader {n}") for n in range(2)]
        for reader in readers:
            reader.start()
        senders = [connected(made, peer, server) for peer in (0, 1)]
        writers = [threading.Thread(target=send, args=(sender,), name="writer") for sender in senders]
        for writer in writers:
            writer.start()
        for thread in (*writers, *readers):
            thread.join()
        took, came = max(ended_at) - began, made.bytes_received(2) - before
    least = 2 * NUM_BYTES / LINK.rate
    assert least <= took < 5 * least
    assert 2 * NUM_BYTES <= came < 1.1 * 2 * NUM_BYTES


def send(sender: socket.socket) -> None:
    with sender:
        sender.sendall(bytes(NUM_BYTES))


def test_peers_are_apart() -> None:
    """What listens at one peer does so at nobody else's; on the machine itself there is no such device."""
    with wan(2, LINK) as made, listener(made, 1) as server:
        with made.inside(0), pytest.raises(ConnectionRefusedError):
            socket.create_connection((made.address(0), server.getsockname()[1]), LIMIT_S)
        assert DEVICE not in {name for _, name in socket.if_nameindex()}
        with made.inside(1):
            assert {name for _, name in socket.if_nameindex()} == {"lo", DEVICE}
