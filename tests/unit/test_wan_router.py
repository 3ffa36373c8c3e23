"""What the emulated WAN's router does with packets, without sockets."""

from __future__ import annotations

import random
import struct
from ipaddress import IPv4Address

import pytest

from tests.tools.wan_router import NETWORK, OFFLOAD_HEADER, Link, Load, Schedule, receiver_of, weigh

LINK = Link(delay_s=0.02, rate=1000.0, queue_s=0.5)


def schedule(link: Link = LINK) -> Schedule:
    return Schedule(link, random.Random(0))


def times(made: Schedule, sent: list[tuple[int, int, int]], now: float = 0.0) -> list[float | None]:
    """When packets of (sender, receiver, bytes), all sent now, arrive."""
    crossed = [(made.crossed(sender, Load(size, 1), now), receiver, Load(size, 1)) for sender, receiver, size in sent]
    return [None if at is None else made.arrived(receiver, load, at) for at, receiver, load in crossed]


def test_a_packet_takes_the_links_time_and_the_delay() -> None:
    assert times(schedule(), [(0, 1, 100)], now=5.0) == pytest.approx([5.12])


def test_packets_of_one_sender_wait_for_its_uplink() -> None:
    assert times(schedule(), [(0, 1, 100), (0, 2, 100), (0, 3, 100)]) == pytest.approx([0.12, 0.22, 0.32])


def test_senders_to_one_receiver_share_its_downlink() -> None:
    assert times(schedule(), [(1, 4, 100), (2, 4, 100), (3, 4, 100)]) == pytest.approx([0.12, 0.22, 0.32])


def test_both_directions_of_a_link_are_free_of_each_other() -> None:
    assert times(schedule(), [(0, 1, 100), (1, 0, 100)]) == pytest.approx([0.12, 0.12])


def test_nobody_waits_for_a_packet_that_still_waits_for_another_ones_uplink() -> None:
    made = schedule()
    late = [made.crossed(0, Load(100, 1), 0.0) for _ in range(4)][-1]
    soon = made.crossed(1, Load(100, 1), 0.0)
    assert soon == pytest.approx(0.12)
    assert late == pytest.approx(0.42)
    assert made.arrived(9, Load(100, 1), 0.12) == pytest.approx(0.12)
    assert made.arrived(9, Load(100, 1), 0.42) == pytest.approx(0.42)


def test_a_full_queue_drops() -> None:
    up = times(schedule(), [(0, receiver, 200) for receiver in range(1, 6)])
    assert [at is None for at in up] == [False, False, False, True, True]
    down = schedule()
    came = times(down, [(sender, 9, 200) for sender in range(5)])
    assert [at is None for at in came] == [False, False, False, True, True]
    assert (down.num_packets, down.num_dropped) == (5, 2)


def test_loss_is_of_packets_also_in_bundles() -> None:
    made = schedule(Link(rate=1e12, loss=0.1))
    for _ in range(2000):
        made.crossed(0, Load(1500, 1), 0.0)
    assert 0.07 < made.num_dropped / made.num_packets < 0.13
    bundles = schedule(Link(rate=1e12, loss=0.1))
    lost = sum(bundles.crossed(0, Load(6000, 4), 0.0) is None for _ in range(2000))
    assert 0.31 < lost / 2000 < 0.38, "1 - 0.9^4 = 0.344"


def frame(num_bytes: int, payload: int = 0, destination: IPv4Address = NETWORK[2]) -> bytes:
    """IPv4 and TCP headers of 20 and 32 bytes."""
    header = OFFLOAD_HEADER.pack(1, 1 if payload else 0, 52, payload, 20, 16)
    ip = struct.pack("!B11s4s4s", 0x45, b"", NETWORK[1].packed, destination.packed)
    return header + ip + bytes(12) + bytes([8 << 4]) + bytes(num_bytes - 33)


def test_a_bundle_is_charged_as_the_packets_that_it_stands_for() -> None:
    assert weigh(frame(1500)) == Load(1500, 1)
    assert weigh(frame(52 + 3 * 1448, payload=1448)) == Load(3 * 1500, 3)
    assert weigh(frame(52 + 3 * 1448 + 1, payload=1448)) == Load(3 * 1500 + 53, 4)


def test_the_address_names_the_receiver() -> None:
    assert receiver_of(frame(100), 2) == 1
    assert receiver_of(frame(100), 1) is None
    assert receiver_of(frame(100, destination=IPv4Address("10.99.0.1")), 2) is None
    assert receiver_of(frame(100)[:20], 2) is None, "torn"
    assert receiver_of(OFFLOAD_HEADER.pack(0, 0, 0, 0, 0, 0) + b"\x60" + bytes(60), 2) is None, "IPv6"
