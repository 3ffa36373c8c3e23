"""How many requests are in flight at one donor."""

from __future__ import annotations

import pytest

from node.pace import MAX_HELD, MAX_IN_FLIGHT, MIN_IN_FLIGHT, Flight, Pace

SIZE = 1_000_000


def asked(pace: Pace, now: float) -> list[Flight]:
    """Ask for as much as is of use."""
    flights = []
    while pace.has_room:
        flights.append(pace.ask(now))
    return flights


def over_a_link(round_trip_s: float, rate: float, num_answers: int = 40) -> Pace:
    """Answers of a donor whose link brings them one after another."""
    pace, now, free_at = Pace(), 0.0, 0.0
    queue: list[tuple[float, float, Flight]] = []
    for _ in range(num_answers):
        for flight in asked(pace, now):
            free_at = max(free_at, now + round_trip_s) + SIZE / rate
            queue.append((now, free_at, flight))
        began, now, first = queue.pop(0)
        pace.answered(SIZE, now - began)
        first.over(now)
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
    one = pace.ask(0.0)
    assert not pace.yields(), "that one is all that was asked for"
    other = pace.ask(0.0)
    assert pace.yields()
    one.over(1.0)
    assert not pace.has_room
    other.over(2.0)
    assert len(asked(pace, 3.0)) == 1


def test_time_counts_once_however_many_wait() -> None:
    pace = Pace()
    flights = [pace.ask(now) for now in (0.0, 1.0)]
    for now, flight in zip((2.0, 4.0), flights, strict=True):
        pace.answered(SIZE, 2.0)
        flight.land(now)
        flight.over(now + 10.0)
    assert (pace.rate, pace.answer_s) == (SIZE / 2, 2.0)


def test_what_has_landed_makes_room_but_not_for_any_number() -> None:
    """An answer that waits to be put in place keeps nobody from asking for the next; many of them do."""
    pace, flights = Pace(), []
    while pace.has_room:
        flights.append(pace.ask(0.0))
        flights[-1].land(0.0)
    assert (len(flights), pace.in_flight) == (MAX_HELD, 0)
    for _ in range(2):
        flights[0].over(1.0)
    assert pace.num_held == MAX_HELD - 1
    assert pace.has_room
