"""A node notices that its own device does not answer."""

from __future__ import annotations

from protocol.pulse import ATTEMPTS, DEADLINE_FACTOR, DEADLINE_HEARTBEATS, Pulse

TICK_S = 0.25


class Node:
    """Ticks four times a second; a heartbeat is a second."""

    def __init__(self, first_s: float = 120.0) -> None:
        self.pulse = Pulse(1.0, first_s)
        self.now = 0.0

    def live(self, seconds: float, computing: bool = False, applying: bool = False) -> int:
        """How often the attempt counted as hung."""
        count = 0
        for _ in range(int(seconds / TICK_S)):
            self.now += TICK_S
            count += self.pulse.tick(computing, applying, self.now)
        return count


def test_what_takes_long_is_no_hang_as_long_as_something_ends() -> None:
    node = Node()
    for _ in range(200):
        assert node.live(5.0, computing=True) == 0
        node.pulse.ended(4.0)
    assert not node.pulse.is_gone


def test_before_anything_was_measured_there_is_more_patience() -> None:
    node = Node()
    assert node.live(119.0, computing=True) == 0
    assert node.live(2.0, computing=True) == 1


def test_the_limit_follows_the_longest_computation() -> None:
    pulse = Pulse(1.0, 120.0)
    pulse.ended(0.1)
    assert pulse.limit_s == DEADLINE_HEARTBEATS
    pulse.ended(10.0)
    assert pulse.limit_s == DEADLINE_FACTOR * 10.0
    pulse.ended(0.1)
    assert 59.0 < pulse.limit_s < 60.0


def test_each_attempt_hangs_once_and_after_some_the_device_is_gone() -> None:
    node = Node()
    node.pulse.ended(0.1)
    for _ in range(ATTEMPTS):
        assert not node.pulse.is_gone
        node.pulse.opened()
        assert node.live(25.0, computing=True) == 1
    assert node.pulse.is_gone


def test_a_computation_that_ends_after_all_clears_the_account() -> None:
    node = Node()
    node.pulse.ended(0.1)
    for _ in range(5 * ATTEMPTS):
        node.pulse.opened()
        assert node.live(7.0, computing=True) == 1
        node.pulse.ended(0.1)
    assert not node.pulse.is_gone


def test_waiting_for_others_is_no_hang() -> None:
    node = Node()
    node.pulse.ended(0.1)
    assert node.live(5.0, computing=True) == 0
    assert node.live(60.0) == 0
    node.pulse.ended(0.1)
    assert node.live(5.0, computing=True) == 0
    assert node.live(2.0, computing=True) == 1


def test_a_device_that_hangs_is_noticed_though_others_void_each_attempt_sooner() -> None:
    node = Node()
    node.pulse.ended(0.1)
    hung = 0
    for _ in range(6):
        node.pulse.opened()
        hung += node.live(5.0, computing=True) + node.live(30.0)
    assert hung == ATTEMPTS
    assert node.pulse.is_gone


def test_an_update_that_never_ends_is_the_end() -> None:
    node = Node()
    node.live(119.0, applying=True)
    assert not node.pulse.is_gone
    node.live(2.0, applying=True)
    assert node.pulse.is_gone


def test_a_node_that_slept_does_not_take_that_for_a_hang() -> None:
    node = Node(first_s=5.0)
    node.pulse.ended(0.1)
    for doing in ("computing", "applying"):
        node.live(1.0, **{doing: True})
        node.now += 3600.0
        assert node.live(1.0, **{doing: True}) == 0
        assert not node.pulse.is_gone
