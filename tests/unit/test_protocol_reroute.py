"""Work that changes hands inside an attempt: each microbatch of a stage counts at one replica, whatever is lost and asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.assignment import make_plan
from protocol.commands import Compute
from protocol.events import CommandFailed, Tick
from protocol.ids import Member, bitmap
from protocol.ledger import Ledger
from protocol.messages import Heartbeat, Hop, ReducedReport, ReduceReady, Route, SeatWork, Stalled
from protocol.records import Seating, Share
from protocol.reroute import MAX_AMENDMENTS, answer_misfit, doubt, exclude, relieve, why_needed
from protocol.revoking import Counted, Detour, Revoked
from tests.tools.core import BALLOT, Core, a_manifest, holders, notes, of, sent

COUNTS = (1, 2, 3)
MICROBATCHES = 7


def name(stage: int, replica: int) -> str:
    return f"s{stage}r{replica}"


def a_ledger(counts: tuple[int, ...] = COUNTS, microbatches: int = MICROBATCHES) -> Ledger:
    peers = [[name(stage, replica) for replica in range(n)] for stage, n in enumerate(counts)]
    rows = [[Seating(stage, Member(peer, 1), "active") for peer in row] for stage, row in enumerate(peers)]
    rows[0].append(Seating(0, Member(name(1, 0), 1), "passive"))
    return Ledger(BALLOT, 1, 1, "parent", make_plan(microbatches, peers, swapped=False), rows, 8, 0.0)


# ---- the ledger ----


def check(book: Ledger) -> None:
    """One owner for each piece, and each way leads over those that own or help, none of them given up."""
    for stage, row in enumerate(book.seats):
        peers = [s.member.peer for s in row if s.role == "active"]
        owned = sorted(m for peer in peers for m in book.owned(stage, peer))
        assert owned == list(range(len(book.plan.routes))), f"stage {stage}: {owned}"
        for peer in peers:
            assert all(book.plan.owner[stage][m] == peer for m in book.owned(stage, peer))
    for route in book.plan.routes:
        assert route.amendment <= book.amendment
        for stage, peer in {(hop.stage, hop.peer) for hop in route.hops}:
            assert peer not in book.without
            assert route.microbatch in (*book.owned(stage, peer), *book.helped.get((stage, peer), ()))


@given(st.data())
def test_each_piece_has_one_owner_whoever_is_given_up(data: st.DataObject) -> None:
    book = a_ledger(data.draw(st.sampled_from([(1, 2, 3), (2, 4, 2), (1, 3, 3, 2)])))
    check(book)
    members = [s.member for row in book.seats for s in row]
    for member in data.draw(st.lists(st.sampled_from(members), max_size=12)):
        if member in book.excluded or why_needed(book, member):
            continue
        if data.draw(st.booleans()):
            exclude(book, member, "lost")
            assert not any(s.member == member for row in book.seats for s in row)
        else:
            doubt(book, member, "unreachable", 0.0)
            stages = [
                stage for stage, row in enumerate(book.seats) if any(s.member == member for s in row if s.role == "active")
            ]
            kept = [(s, data.draw(st.sets(st.sampled_from([0, *book.owned(s, member.peer)])))) for s in stages]
            kept = [(s, ms & set(book.owned(s, member.peer))) for s, ms in kept]
            told = Revoked(BALLOT, 1, 1, book.amendment, tuple(Counted(s, bitmap(ms)) for s, ms in kept))
            assert answer_misfit(book, member, told) == ""
            relieve(book, member, told)
            assert all(set(book.owned(s, member.peer)) == ms for s, ms in kept)
        check(book)
    assert book.amendment <= MAX_AMENDMENTS


def test_what_a_lost_replica_had_is_computed_once_more_and_what_a_living_one_keeps_is_not() -> None:
    book, lost = a_ledger(), Member(name(2, 1), 1)
    had = set(book.owned(2, lost.peer))
    (note,) = exclude(book, lost, "lost")
    assert {key: led[-1].whole for key, led in book.led.items()} == {(2, m): True for m in had}
    assert note.fields["moved"] == bitmap(had)
    assert {r.microbatch for r in book.plan.routes if r.amendment} == had, "nobody else's work is touched"
    book, lives = a_ledger(), Member(name(2, 1), 1)
    doubt(book, lives, "x", 0.0)
    relieve(book, lives, Revoked(BALLOT, 1, 1, 0, (Counted(2, bitmap(had)),)))
    assert {led[-1].whole for led in book.led.values()} == {False}
    assert set(book.owned(2, lives.peer)) == had
    assert {r.microbatch for r in book.plan.routes if r.amendment} == had, "they are led around it all the same"


def test_a_helper_that_had_nothing_to_do_is_needed_when_the_next_stage_loses_what_it_had() -> None:
    book, lives = a_ledger((1, 3, 3)), Member(name(1, 1), 1)
    had = set(book.owned(1, lives.peer))
    doubt(book, lives, "x", 0.0)
    relieve(book, lives, Revoked(BALLOT, 1, 1, 0, (Counted(1, bitmap(had)),)))
    exclude(book, Member(name(2, 1), 1), "lost")
    lost = {m for stage, m in book.led if stage == 2}
    assert lost & had, "the case was meant to have some of both"
    assert {m for (stage, m), led in book.led.items() if stage == 1 and led[-1].whole} == lost & had


def test_none_computes_a_microbatch_twice() -> None:
    book, lives = a_ledger((1, 2, 1)), Member(name(1, 1), 1)
    doubt(book, lives, "x", 0.0)
    relieve(book, lives, Revoked(BALLOT, 1, 1, 0, (Counted(1, bitmap(book.owned(1, lives.peer))),)))
    assert "nobody else" in why_needed(book, lives), "the other one computes them already, and does not count them"


# ---- losses while a stage sums ----


def report(stage: int, peer: str, sum_number: int = 0) -> ReducedReport:
    return ReducedReport(BALLOT, 1, 1, stage, f"d{stage}", 1.0, sum_number)


def ready(book: Ledger, *stages: int) -> None:
    for stage in stages:
        for seating in book.seats[stage]:
            if seating.role == "active":
                peer = seating.member.peer
                tokens = 8 * len(book.owned(stage, peer)) if stage == 0 else 0
                message = ReduceReady(BALLOT, 1, 1, stage, bitmap(book.owned(stage, peer)), 1.0, tokens, 0.1)
                assert book.enter_ready(seating.member, message, 1.0) == ""
        assert book.begin_reduce(stage, {})


def test_a_sum_whose_member_is_lost_begins_anew() -> None:
    book, lost = a_ledger(), Member(name(2, 1), 1)
    ready(book, 2)
    assert book.enter_reduced(Member(name(2, 0), 1), report(2, name(2, 0)), 2.0) == ""
    assert why_needed(book, lost) == "", "one of the others has not the whole sum"
    exclude(book, lost, "lost")
    check(book)
    assert 2 not in book.started
    assert not book.reduced
    assert not book.begin_reduce(2, {}), "somebody has more to accumulate now"
    ready(book, 2)
    for peer in (name(2, 0), name(2, 2)):
        assert "not the newest" in book.enter_reduced(Member(peer, 1), report(2, peer), 3.0)
        assert book.enter_reduced(Member(peer, 1), report(2, peer, 1), 3.0) == ""
    assert book.sum_numbers == {2: 1}


def test_what_a_lost_one_brought_counts_where_all_others_have_the_sum() -> None:
    book, lost = a_ledger(), Member(name(2, 1), 1)
    ready(book, 2)
    for peer in (name(2, 0), name(2, 2)):
        book.enter_reduced(Member(peer, 1), report(2, peer), 2.0)
    had = book.owned(2, lost.peer)
    (note,) = exclude(book, lost, "lost")
    assert note.fields["moved"] == "0"
    assert book.owned(2, lost.peer) == had
    assert 2 in book.started
    ready(book, 0, 1)
    for stage in (0, 1):
        for seating in book.seats[stage]:
            book.enter_reduced(seating.member, report(stage, seating.member.peer), 3.0)
    assert book.complete()
    _, shares = book.commit(a_manifest())
    assert Share(2, lost, bitmap(had)) in shares


def test_at_the_end_even_who_admits_microbatches_can_be_done_without() -> None:
    book = a_ledger((2, 2, 2))
    ready(book, 0, 1, 2)
    gone = Member(name(0, 1), 1)
    assert "admits" in why_needed(book, gone)
    for seating in book.seats[0]:
        book.enter_reduced(seating.member, report(0, seating.member.peer), 2.0)
    assert why_needed(book, gone) == ""
    assert exclude(book, gone, "lost") == []
    assert book.amendment == 0, "nobody need be told"
    assert "nobody else" in why_needed(book, Member(name(2, 1), 1)), "what it would be computed of once more is gone"


def test_a_passive_replica_that_is_lost_changes_no_sum() -> None:
    book = a_ledger()
    ready(book, 0)
    exclude(book, Member(name(1, 0), 1), "lost")
    assert 0 in book.started
    assert book.sum_numbers == {}


def test_who_is_needed_is_not_given_up() -> None:
    book = a_ledger((1, 1, 2))
    assert "admits" in why_needed(book, Member(name(0, 0), 1))
    assert "nobody else" in why_needed(book, Member(name(1, 0), 1))
    assert why_needed(book, Member(name(2, 0), 1)) == ""
    doubt(book, Member(name(2, 1), 1), "x", 0.0)
    assert "nobody else" in why_needed(book, Member(name(2, 0), 1)), "who is in doubt takes nothing over"


@pytest.mark.parametrize(
    "answer",
    [
        Revoked(BALLOT, 1, 1, 1, (Counted(2, "0"),)),
        Revoked(BALLOT, 1, 1, 0, ()),
        Revoked(BALLOT, 1, 1, 0, (Counted(1, "0"),)),
        Revoked(BALLOT, 1, 1, 0, (Counted(2, "7f"),)),
    ],
    ids=["of another amendment", "of no stage", "of another stage", "of what others own"],
)
def test_an_answer_that_does_not_fit_changes_nothing(answer: Revoked) -> None:
    book, member = a_ledger(), Member(name(2, 1), 1)
    doubt(book, member, "x", 0.0)
    assert answer_misfit(book, member, answer)
    assert answer_misfit(book, Member(name(2, 0), 1), Revoked(BALLOT, 1, 1, 0, (Counted(2, "0"),))), "nobody asked it"


def test_payloads_of_an_amendment_that_is_not_known_yet_are_kept() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest, 2))
    core.open()
    step = core.state.bench.open
    assert step
    taken = next(m for m in range(4) if core.route(m).hops[1].peer == "p1.1")
    hops = tuple(Hop(1, "p1.0") if h.stage == 1 else h for h in core.route(taken).hops)
    early = core.header("forward", taken, 1, route=Route(taken, hops, 1))
    assert not of(core.arrive(early), Compute)
    assert core.num_held == 1
    work = replace(step.seats[0], taken=(taken,))
    out = core.tell(replace(step, seats=(work,), amendment=1, without=("p1.1",)))
    assert [c.work.microbatch for c in of(out, Compute)] == [taken]
    assert not of(core.tell(replace(step, seats=(work,), amendment=1)), Compute), "the same amendment again"
    assert sent(core.do(Tick(), 2.0), Heartbeat)[0].amendment == 1
    late = CommandFailed(1, 1, 1, taken, "p1.1", "broken", unsent=True)
    assert not sent(core.do(late), Stalled), "nothing goes there any more"
    (stalled,) = sent(core.do(replace(late, peer="p2.0")), Stalled)
    assert stalled.unsent


@pytest.mark.parametrize(
    "changes",
    [
        {"seats": ()},
        {"parent": "another"},
        {"seats": (SeatWork(1, "active", 0, (0, 2), (2,)),)},
        {"seats": (SeatWork(1, "active", 0, (0, 2), (99,)),)},
        {"seats": (SeatWork(1, "passive", 0, ()),)},
        {"seats": (SeatWork(1, "active", 0, (0, 2), sum_number=2),)},
        {"detours": (Detour(2, "p1.1", 1, True, "1"),)},
        {"detours": (Detour(2, "p2.1", 2, True, "1"),)},
        {"detours": (Detour(2, "p2.1", 1, True, "10"),)},
    ],
    ids=[
        "no seat",
        "another parent",
        "owned twice",
        "no microbatch",
        "another role",
        "a sum to come",
        "over a stranger",
        "of a later one",
        "of no microbatch",
    ],
)
def test_an_amendment_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest, 2))
    core.open()
    before = core.state.bench.open
    assert before
    out = core.tell(replace(before, amendment=1, **changes))
    assert len(notes(out, "refused")) == 1
    assert core.state.bench.open == before


def test_a_seat_that_came_after_the_step_was_opened_has_no_part_in_an_amendment() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest, 2))
    seat = core.state.bench.seats.pop(1)
    core.open()
    core.state.bench.seats[1] = seat
    before = core.state.bench.open
    assert before
    out = core.tell(replace(before, amendment=1))
    assert not notes(out, "refused")
    assert core.state.bench.open == replace(before, amendment=1)
    assert seat.attempt is None
