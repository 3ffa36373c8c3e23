"""Links of the simulated world that break, one way or both, for a moment or a while, and links that are slow."""

from __future__ import annotations

import random

import pytest

from node.sim.network import Cut, Network, Squeeze, Weather

A, B = frozenset("a"), frozenset("b")


def network(*cuts: Cut) -> tuple[Network, Weather]:
    weather = Weather(cuts=list(cuts))
    return Network(random.Random(1), weather, latency_s=(0.1, 0.1), rate_bytes_s=(1e6, 1e6)), weather


def test_a_half_open_link_passes_one_way_only() -> None:
    cut = Cut(A, B, 1.0, 2.0, one_way=True)
    links, weather = network(cut)
    assert links.control("a", "b", 1.5) == []
    assert len(links.control("b", "a", 1.5)) == 1
    assert len(links.control("a", "b", 2.0)) == 1
    assert weather.taken == {cut: 1}


def test_a_partition_cuts_off_whoever_is_not_named_and_nobody_within() -> None:
    links, _ = network(Cut(frozenset("ab"), frozenset(), 1.0, 2.0))
    assert links.control("a", "c", 1.5) == links.control("c", "b", 1.5) == []
    assert len(links.control("a", "b", 1.5)) == len(links.control("c", "d", 1.5)) == 1
    assert links.parted(["a", "b"], 1.5) is None
    assert links.parted(["a", "c"], 1.5) == ("a", "c")
    assert links.parted(["a", "c"], 2.5) is None


def test_a_connection_that_breaks_takes_what_is_on_its_way() -> None:
    links, _ = network(Cut(A, B, 1.0, 1.0))
    assert links.control("a", "b", 0.95) == []
    assert len(links.control("a", "b", 0.8)) == len(links.control("a", "b", 1.0)) == 1


def test_a_payload_is_sent_again_when_the_link_is_back() -> None:
    links, weather = network(Cut(A, B, 0.5, 3.0))
    sent = links.payload("a", "b", 0.0, 1_000_000, patience_s=6.0)
    assert not sent.failed
    assert len(sent.arrivals) == 1
    assert 4.0 < sent.at < sent.arrivals[0] < 5.0
    assert weather.taken.total() == 1


def test_a_payload_that_waits_for_its_link_holds_up_no_other_one() -> None:
    """Neither on the uplink of its sender nor on the downlink of its receiver, and they have their turns when it is sent."""
    links, _ = network(Cut(A, B, 0.5, 3.0))
    waits = links.payload("a", "b", 0.0, 1_000_000)
    assert links.payload("a", "c", 0.0, 1_000_000).at == pytest.approx(1.0)
    assert links.payload("c", "b", 0.0, 1_000_000).arrivals[0] < 1.2
    late = links.payload("a", "c", waits.at - 0.5, 1_000_000)
    assert late.at == pytest.approx(waits.at + 1.0), "one after the other"
    others = [links.payload("a", "d", 1.0, 1_000_000).at for _ in range(3)]
    assert others == pytest.approx([2.0, 3.0, late.at + 1.0]), "where there is room"


def test_who_waits_too_long_for_the_link_is_told() -> None:
    links, _ = network(Cut(A, B, 0.5, 30.0))
    sent = links.payload("a", "b", 0.0, 1_000_000, patience_s=6.0)
    assert (sent.failed, sent.at, sent.arrivals) == (True, 6.0, ())
    assert len(links.payload("b", "c", 0.0, 1_000_000, patience_s=6.0).arrivals) == 1


def test_a_squeezed_link_is_slow_until_it_is_not() -> None:
    links, _ = network()
    links.squeeze("a", Squeeze(share=0.1, late_s=0.5))
    slow = links.payload("a", "b", 0.0, 1_000_000)
    assert slow.at == pytest.approx(10.0)
    assert links.control("b", "a", 20.0)[0] >= 20.6
    assert links.num_squeezed == {"a": 1}
    links.squeeze("a", None)
    assert links.payload("a", "b", 30.0, 1_000_000).at == pytest.approx(31.0)


def test_what_has_arrived_holds_up_nothing_that_is_sent_later() -> None:
    """To forget it changes no arrival; what is still on its way is remembered."""
    remembers, forgets = network()[0], network()[0]
    at = 0.0
    for number in range(200):
        at += 0.01
        assert remembers.control("a", "b", at) == forgets.control("a", "b", at)
        if number % 3 == 0:
            forgets.forget(at)
