"""The book of an attempt, a seat, and who is there: small machines, each with any order of facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.assignment import make_plan
from protocol.chain import Chain
from protocol.checks import route_misfit
from protocol.commands import Compute, Discard, Release
from protocol.events import ComputeDone
from protocol.gathering import Gathering
from protocol.ids import Member, bitmap
from protocol.ledger import Ledger, norms_agree
from protocol.losses import promotions
from protocol.messages import Hop, OpenStep, PipeHeader, ReducedReport, ReduceReady, Route, SeatWork, Wish
from protocol.records import Roster, Seating
from protocol.seat import Incoming, Seat, SeatPhase, SeatState
from protocol.view import View
from tests.tools.core import BALLOT, LEAD, a_manifest

REPLICAS = st.lists(st.integers(1, 4), min_size=2, max_size=7)


def names(counts: Sequence[int]) -> list[list[str]]:
    return [[f"s{stage}r{r}" for r in range(count)] for stage, count in enumerate(counts)]


# ---- ledger ----


def ledger(counts: Sequence[int] = (2, 2, 1), microbatches: int = 5) -> Ledger:
    rows = [[Seating(s, Member(p, 1), "active") for p in row] for s, row in enumerate(names(counts))]
    rows[0].append(Seating(0, Member("copy", 1), "passive"))
    plan = make_plan(microbatches, names(counts), swapped=False)
    return Ledger(BALLOT, 1, 1, "parent", plan, rows, 8, 0.0)


def ready(book: Ledger, stage: int, peer: str) -> str:
    owned = book.plan.hands[stage, peer]
    tokens = 8 * len(owned) if stage == 0 else 0
    message = ReduceReady(BALLOT, 1, 1, stage, bitmap(owned), float(len(owned)), tokens, 0.1)
    return book.enter_ready(Member(peer, 1), message, 1.0)


@given(st.permutations([(s, p) for s, row in enumerate(names((2, 2, 1))) for p in row]))
def test_a_stage_is_covered_when_the_last_owner_has_said_so(order: list[tuple[int, str]]) -> None:
    book = ledger()
    for i, (stage, peer) in enumerate(order):
        assert ready(book, stage, peer) == ""
        assert ready(book, stage, peer) == "", "again"
        said = {p for s, p in order[: i + 1] if s == stage}
        assert book.covered(stage) == (said == set(names((2, 2, 1))[stage]))


def test_a_commit_needs_the_passive_replicas_too() -> None:
    book = ledger()
    for stage, row in enumerate(names((2, 2, 1))):
        for peer in row:
            ready(book, stage, peer)
        assert book.begin_reduce(stage, {})
    everybody = [(s, seat.member) for s, row in enumerate(book.seats) for seat in row]
    assert book.missing() == everybody
    for stage, member in everybody:
        assert not book.complete()
        assert book.enter_reduced(member, ReducedReport(BALLOT, 1, 1, stage, f"d{stage}", 1.0), 2.0) == ""
    assert book.complete()
    for key in everybody:
        kept = book.reduced.pop(key)
        assert not book.complete(), f"without {key}"
        book.reduced[key] = kept
    record, shares = book.commit(a_manifest(microbatches=5))
    assert (record.loss_sum, record.tokens) == (5.0, 40)
    assert [r.digest for r in record.results] == ["d0", "d1", "d2"]
    for stage in range(3):
        every = sum(int(s.microbatches, 16) for s in shares if s.stage == stage)
        assert every == 0b11111
    assert "copy" not in {s.member.peer for s in shares}


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1.0, 1.0, True),
        (1.0, 1.0 + 1e-9, True),
        (1.0, 1.1, False),
        (0.0, 0.0, True),
        (0.0, 1e-30, False),
        (1.0, math.nan, False),
    ],
)
def test_norms_agree(a: float, b: float, same: bool) -> None:
    assert norms_agree(a, b) == same


# ---- seat ----


def open_seat(order: tuple[int, ...], stage: int = 1) -> Seat:
    seat = Seat(SeatState(stage, "active", 0, "state"), "me", 4, 8)
    seat.phase = SeatPhase.IDLE
    seat.open(OpenStep(BALLOT, 1, 1, "parent", (), (), (), ()), SeatWork(stage, "active", 0, order), 0.0)
    return seat


def incoming(kind: Any, microbatch: int, handle: int) -> Incoming:
    route = Route(microbatch, (Hop(0, "zero"), Hop(1, "me"), Hop(2, "two"), Hop(0, "zero")))
    return Incoming(PipeHeader(BALLOT, 1, 1, "parent", kind, 1, route), handle, "zero")


@settings(max_examples=50)
@given(st.permutations(range(5)), st.data())
def test_gradients_are_accumulated_in_the_order_of_the_assignment(order: list[int], data: st.DataObject) -> None:
    """Whatever the order of arrival, with copies and with strangers' microbatches; each handle ends in one Release."""
    seat = open_seat(tuple(order))
    facts = [(kind, m) for kind in ("forward", "backward") for m in [*range(7), *range(3)]]
    given_, released, accumulated, handles = 0, [], [], iter(range(1, 1000))
    orderly = [(kind, m) for m in reversed(range(5)) for kind in ("forward", "backward")]
    for kind, microbatch in [*data.draw(st.permutations(facts)), *orderly]:
        todo = seat.take(incoming(kind, microbatch, next(handles)))
        given_ += 1
        while todo:
            command = todo.pop(0)
            if isinstance(command, Release):
                released.append(command.handle)
            elif isinstance(command, Compute):
                if command.work.op == "backward":
                    accumulated.append(command.work.microbatch)
                given_ += 1
                todo += seat.computed(ComputeDone(command.work, next(handles), 8, 0.0, 0, 0.1), 1.0)
    assert accumulated == order
    assert seat.phase is SeatPhase.READY
    assert isinstance(report := seat.report(), ReduceReady)
    assert report.microbatches == "1f"
    assert sorted(released) == list(range(1, given_ + 1))


@given(st.lists(st.tuples(st.sampled_from(["forward", "backward"]), st.integers(0, 4)), max_size=12), st.integers(0, 12))
def test_a_void_releases_what_is_held(facts: list[tuple[str, int]], ended: int) -> None:
    seat, balance = open_seat((2, 0, 1)), 0
    computing: list[Compute] = []
    for handle, (kind, microbatch) in enumerate(facts, 1):
        balance += 1
        commands = seat.take(incoming(kind, microbatch, handle))
        balance -= sum(isinstance(c, Release) for c in commands)
        computing += [c for c in commands if isinstance(c, Compute)]
    for compute in computing[:ended]:
        balance += 1
        commands = seat.computed(ComputeDone(compute.work, 99, 8, 0.0, 0, 0.1), 1.0)
        balance -= sum(isinstance(c, Release) for c in commands)
    commands = seat.void()
    assert balance == sum(isinstance(c, Release) for c in commands)
    assert [type(c) for c in commands[-1:]] == [Discard]
    assert seat.void() == []


# ---- gathering, view, losses ----


def wish(peer: str, stage: int = -1, incarnation: int = 1) -> Wish:
    return Wish(Member(peer, incarnation), stage, peer, f"{peer}:1", 0)


def test_nobody_is_seated_before_every_stage_has_a_node() -> None:
    gathering = Gathering(a_manifest())
    gathering.enter(wish("a", 1))
    assert gathering.seat().sentence == "waiting: stages 0, 2 need 2 more nodes with >= 0.5 GB"
    gathering.enter(wish("b", 1))
    gathering.enter(wish("c", 99))
    assert gathering.seat().sentence == "waiting: stage 2 needs a node with >= 0.5 GB"
    gathering.enter(wish("d"))
    seats = gathering.seat().seatings
    assert {(s.stage, s.member.peer) for s in seats} == {(1, "a"), (1, "b"), (0, "c"), (2, "d")}


def test_the_newest_life_of_a_peer_is_seated() -> None:
    gathering = Gathering(a_manifest())
    assert gathering.enter(wish("a", 0, incarnation=2))
    assert not gathering.enter(wish("a", 1, incarnation=1))
    gathering.leave(Member("a", 1))
    assert gathering.wishes["a"].member.incarnation == 2
    gathering.leave(Member("a", 2))
    assert not gathering.wishes


@pytest.mark.parametrize(
    ("wishes", "copies"),
    [
        ([("z", 0), ("a", 1), ("b", 2), ("c", 3), ("d", 4)], {"a", "d"}),
        ([("z", 0), ("a", 1), ("a2", 1), ("b", 2), ("c", 3), ("d", 4)], {"a", "d"}),
    ],
)
def test_embedding_copies_sit_at_the_ends(wishes: list[tuple[str, int]], copies: set[str]) -> None:
    gathering = Gathering(a_manifest(num_block_stages=4, policy="checkfree"))
    for peer, stage in wishes:
        gathering.enter(wish(peer, stage))
    assert {s.member.peer for s in gathering.seat().seatings if s.role == "passive"} == copies


def test_silence_counts_from_when_a_peer_is_expected() -> None:
    view = View(3.0)
    view.heard("stranger", 1.0)
    assert view.known() == []
    view.expect("a", 10.0)
    view.heard("a", 11.0)
    view.expect("a", 12.0)
    assert view.silent_s("a", 13.5) == 2.5
    assert not view.lapsed("a", 14.0)
    assert view.lapsed("a", 14.1)
    view.tick({"a": 0.5, "stranger": 0.0}, 14.1)
    assert view.silent_s("a", 14.1) == pytest.approx(0.5)
    assert not view.lapsed("stranger", 1e9)


def test_a_node_that_slept_blames_nobody() -> None:
    view = View(3.0)
    view.tick({}, 0.0)
    view.expect("a", 0.0)
    view.tick({}, 1.0)
    assert view.lapsed("a", 100.0)
    view.tick({}, 100.0)
    assert not view.lapsed("a", 100.0), "the silence was its own"


def test_a_passive_replica_is_promoted_where_no_active_one_is_left() -> None:
    a, b, c = Member("a", 1), Member("b", 1), Member("c", 1)
    stay = [Seating(0, a, "passive", 3), Seating(0, b, "passive"), Seating(1, b, "active"), Seating(1, c, "passive")]
    assert promotions(stay) == (Seating(0, a, "active", 3),)


# ---- routes ----


@settings(max_examples=50)
@given(REPLICAS, st.data())
def test_planned_routes_fit_and_bent_ones_do_not(counts: list[int], data: st.DataObject) -> None:
    manifest = a_manifest(num_block_stages=len(counts) - 1)
    chain = Chain(manifest, LEAD)
    seats = tuple(Seating(s, Member(p, 1), "active") for s, row in enumerate(names(counts)) for p in row)
    chain.append(Roster(chain.head, 0, seats, (), (LEAD,)), ())
    route = data.draw(st.sampled_from(make_plan(4, names(counts), swapped=False).routes))
    assert route_misfit(route, manifest, chain) == ""
    at = data.draw(st.integers(0, len(route.hops) - 1))
    hops = list(route.hops)
    bend = data.draw(st.sampled_from(["drop", "repeat", "stage", "peer"]))
    if bend == "drop":
        del hops[at]
    elif bend == "repeat":
        hops.insert(at, hops[at])
    else:
        hops[at] = replace(hops[at], stage=hops[at].stage + 1) if bend == "stage" else replace(hops[at], peer="stranger")
    assert route_misfit(Route(route.microbatch, tuple(hops)), manifest, chain)
