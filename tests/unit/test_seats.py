"""A roster in order, and members that are compared all the time."""

from __future__ import annotations

from protocol.ids import Ballot, Member
from protocol.records import Role, Seating
from protocol.seats import Seats


def seating(stage: int, name: str, role: Role = "active") -> Seating:
    return Seating(stage, Member(name, 1), role)


def test_who_holds_a_stage_learners_do_not() -> None:
    seats = Seats(
        [seating(0, "a"), seating(1, "b"), seating(1, "c", "learner"), seating(2, "d", "learner"), seating(3, "e", "parked")]
    )
    assert [s.member.peer for s in seats.holders_at(1)] == ["b"]
    assert not seats.holders_at(2)
    assert not seats.holders_at(7)
    assert seats.held == {0, 1, 3}


def test_everybody_is_watched_by_those_before_and_after_it() -> None:
    seats = Seats([seating(0, "a"), seating(0, "b"), seating(1, "c"), seating(1, "a", "passive")])
    assert seats.around("b") == ["a", "c"]
    assert seats.around("a") == ["c", "b"], "a seat more changes no place"
    assert Seats([seating(0, "a"), seating(1, "b")]).around("a") == ["b"], "once, where both are the same"
    assert Seats([seating(0, "a")]).around("a") == []


def test_only_seats_that_compute_count_as_shared() -> None:
    assert not Seats([seating(0, "a", "passive"), seating(1, "a"), seating(2, "b")]).are_shared
    assert Seats([seating(0, "a"), seating(1, "a"), seating(2, "b")]).are_shared


def test_members_are_equal_by_peer_and_life() -> None:
    one = Member("a", 1)
    assert one == Member("a", 1)
    assert hash(one) == hash(Member("a", 1))
    assert one != Member("a", 2)
    assert one != Member("b", 1)
    assert one != ("a", 1)
    assert one != Ballot(1, "a")
    assert len({one, Member("a", 1), Member("a", 2)}) == 2


def test_ballots_are_equal_by_term_and_peer() -> None:
    one = Ballot(1, "a")
    assert one == Ballot(1, "a")
    assert hash(one) == hash(Ballot(1, "a"))
    assert one != Ballot(2, "a")
    assert one != Ballot(1, "b")
    assert one != Member("a", 1)
    assert Ballot(1, "b") < Ballot(2, "a")
