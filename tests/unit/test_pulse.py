"""A node notices that its own device does not answer."""

from __future__ import annotations

from protocol.pulse import ATTEMPTS, DEADLINE_FACTOR, DEADLINE_HEARTBEATS, Pulse


def test_what_takes_long_is_no_hang_as_long_as_something_ends() -> None:
    pulse = Pulse(1.0, 120.0)
    for now in range(0, 1000, 5):
        assert not pulse.hangs(True, float(now))
        pulse.ended(4.0)
    assert not pulse.is_gone


def test_before_anything_was_measured_there_is_more_patience() -> None:
    pulse = Pulse(1.0, 120.0)
    assert not pulse.hangs(True, 0.0)
    assert not pulse.hangs(True, 119.0)
    assert pulse.hangs(True, 121.0)


def test_the_limit_follows_the_longest_computation() -> None:
    pulse = Pulse(1.0, 120.0)
    pulse.ended(0.1)
    assert pulse.limit_s == DEADLINE_HEARTBEATS
    pulse.ended(10.0)
    assert pulse.limit_s == DEADLINE_FACTOR * 10.0
    pulse.ended(0.1)
    assert 39.0 < pulse.limit_s < 40.0


def test_each_attempt_hangs_once_and_after_some_the_device_is_gone() -> None:
    pulse = Pulse(1.0, 120.0)
    pulse.ended(0.1)
    for attempt in range(ATTEMPTS):
        assert not pulse.is_gone
        pulse.opened()
        began = 100.0 * attempt
        told = [pulse.hangs(True, began + tick / 4) for tick in range(100)]
        assert told.count(True) == 1
    assert pulse.is_gone


def test_an_attempt_that_ends_well_clears_the_account() -> None:
    pulse = Pulse(1.0, 120.0)
    pulse.ended(0.1)
    for attempt in range(5 * ATTEMPTS):
        pulse.opened()
        pulse.hangs(True, 100.0 * attempt)
        assert pulse.hangs(True, 100.0 * attempt + 7.0)
        pulse.ended(8.0 if attempt % 2 else 0.1)
        pulse.ended(0.1)
        for _ in range(1000):
            pulse.ended(0.0)
    assert not pulse.is_gone


def test_waiting_for_others_is_no_hang() -> None:
    pulse = Pulse(1.0, 120.0)
    pulse.ended(0.1)
    pulse.hangs(True, 0.0)
    assert not pulse.hangs(False, 5.0)
    assert not pulse.hangs(True, 10.0)
    assert not pulse.hangs(True, 15.0)
    assert pulse.hangs(True, 17.0)


def test_an_update_that_never_ends_is_the_end() -> None:
    pulse = Pulse(1.0, 120.0)
    pulse.applies(False, 0.0)
    pulse.applies(True, 119.0)
    assert not pulse.is_gone
    pulse.applies(True, 121.0)
    assert pulse.is_gone
