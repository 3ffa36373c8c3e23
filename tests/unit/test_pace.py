"""How many requests are in flight at one donor."""

from __future__ import annotations

import pytest

from node.pace import MAX_IN_FLIGHT, MIN_IN_FLIGHT, Pace

SIZE = 1_000_000


def asked(pace: Pace, until: float) -> int:
    """Ask for as much as is of use."""
    before = pace.in_flight
    while pace.has_room:
        pace.ask(until)
    return pace.in_flight - before


def over_a_link(round_trip_s: float, rate: float, num_answers: int = 40) -> Pace:
    """Answers of a donor whose link brings them one after another."""
    pace, now, free_at = Pace(), 0.0, 0.0
    queue: list[tuple[float, float]] = []
    for _ in range(num_answers):
        for _ in range(asked(pace, now)):
            free_at = max(free_at, now + round_trip_s) + SIZE / rate
            queue.append((now, free_at))
        began, now = queue.pop(0)
        pace.answered(SIZE, now - began)
        pace.end(now)
    return pace


@pytest.mark.parametrize(
    ("round_trip_s", "rate", "in_flight"),
    [(0.001, 1e7, 3), (0.04, 1.25e7, 3), (0.3, 1.25e7, MAX_IN_FLIGHT), (0.3, 1e5, 3)],
)
def test_as_many_as_the_round_trip_is_long(round_trip_s: float, rate: float, in_flight: int) -> None:
    pace = over_a_link(round_trip_s, rate)
    asked(pace, 0.0)
    assert MIN_IN_FLIGHT <= pace.in_flight <= in_flight
    reachable = min(rate, pace.in_flight * SIZE / (round_trip_s + SIZE / rate))
    assert pace.rate > 0.85 * reachable


def test_a_busy_donor_is_asked_for_less_unless_nothing_else_is_in_flight() -> None:
    pace = Pace()
    pace.ask(0.0)
    assert not pace.yields(), "that one is all that was asked for"
    pace.ask(0.0)
    assert pace.yields()
    pace.end(1.0)
    assert not pace.has_room
    pace.end(2.0)
    assert asked(pace, 3.0) == 1


def test_time_counts_once_however_many_wait() -> None:
    pace = Pace()
    for now in (0.0, 1.0):
        pace.ask(now)
    for now in (2.0, 4.0):
        pace.answered(SIZE, 2.0)
        pace.end(now)
    assert (pace.rate, pace.answer_s) == (SIZE / 2, 2.0)
