"""Work that changes hands inside an attempt: each microbatch of a stage counts at one replica, whatever is lost and asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.assignment import make_plan
from protocol.commands import Command, Compute, Release, SendPayload, Work
from protocol.events import CommandFailed, ComputeDone, Tick
from protocol.ids import Member, bitmap
from protocol.ledger import Ledger
from protocol.messages import (
    Heartbeat,
    Hop,
    OpenStep,
    PipeHeader,
    Route,
    SeatWork,
    Stalled,
)
from protocol.records import Seating
from protocol.reroute import MAX_AMENDMENTS, answer_misfit, doubt, exclude, relieve, why_needed
from protocol.revoking import Again, Counted, Revoked
from protocol.seat import Incoming, Seat, SeatPhase, SeatState
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, sent

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
        assert route.replay <= book.amendment
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


def test_what_a_lost_replica_had_goes_through_the_pipe_again_and_what_a_living_one_keeps_does_not() -> None:
    book, lost = a_ledger(), Member(name(2, 1), 1)
    had = set(book.owned(2, lost.peer))
    (note,) = exclude(book, lost, "lost")
    assert book.again == dict.fromkeys(had, frozenset({2}))
    assert note.fields["moved"] == bitmap(had)
    assert {m for r in book.plan.routes if r.replay for m in [r.microbatch]} == had, "nobody else's work is touched"
    book, lives = a_ledger(), Member(name(2, 1), 1)
    doubt(book, lives, "x", 0.0)
    relieve(book, lives, Revoked(BALLOT, 1, 1, 0, (Counted(2, bitmap(had)),)))
    assert not book.again
    assert set(book.owned(2, lives.peer)) == had
    assert {r.microbatch for r in book.plan.routes if r.replay} == had, "they are led around it all the same"


def test_who_is_needed_is_not_given_up() -> None:
    book = a_ledger((1, 1, 2))
    assert "admits" in why_needed(book, Member(name(0, 0), 1))
    assert "nobody else" in why_needed(book, Member(name(1, 0), 1))
    assert why_needed(book, Member(name(2, 0), 1)) == ""
    doubt(book, Member(name(2, 1), 1), "x", 0.0)
    assert "nobody else" in why_needed(book, Member(name(2, 0), 1)), "who is in doubt takes nothing over"
    book = a_ledger()
    book.started.add(0)
    assert "has begun" in why_needed(book, Member(name(1, 0), 1)), "a passive replica belongs to the sum too"
    book.started = {1}
    assert why_needed(book, Member(name(2, 0), 1)) == ""


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


# ---- a block stage's seat ----


class Bench:
    """One seat of stage 1, its computations, and the balance of handles."""

    def __init__(self, order: tuple[int, ...], **more: tuple[int, ...]) -> None:
        self.seat = Seat(SeatState(1, "active", 0, "state"), "me", 4, 8)
        self.seat.phase = SeatPhase.IDLE
        self.work = SeatWork(1, "active", 0, order, **more)
        self.computing: list[Compute] = []
        self.accumulated: list[int] = []
        self.sent: list[PipeHeader] = []
        self.retained: set[int] = set()
        self.held = 0
        self._handles = count(1)
        self.take_in(self.seat.open(OpenStep(BALLOT, 1, 1, "parent", (self.work,), (), (), ()), self.work, 0.0))

    def take_in(self, commands: list[Command]) -> None:
        self.held -= len(of(commands, Release))
        self.computing += of(commands, Compute)
        self.accumulated += [n["microbatch"] for n in notes(commands, "accumulated")]
        self.sent += [c.header for c in of(commands, SendPayload)]

    def arrive(self, kind: Any, microbatch: int, replay: int = 0, at: tuple[int, ...] | None = None) -> None:
        route = Route(microbatch, (Hop(0, "zero"), Hop(1, "me"), Hop(2, f"two{replay}"), Hop(0, "zero")), replay)
        self.held += 1
        header = PipeHeader(BALLOT, 1, 1, "parent", kind, 1, route, at)
        self.take_in(self.seat.take(Incoming(header, next(self._handles), "zero")))

    def end(self) -> None:
        """A computation ends, backward passes first, as on a device: they need what the forward pass before them left."""
        self.computing.sort(key=lambda c: c.work.op != "backward")
        work = self.computing.pop(0).work
        if work.op == "forward":
            self.retained.add(work.microbatch)
        else:
            self.retained.remove(work.microbatch)
        self.held += 1
        self.take_in(self.seat.computed(ComputeDone(work, next(self._handles), 8, 0.0, 0, 0.1), 1.0))

    def amend(self, amendment: int, **more: tuple[int, ...]) -> None:
        self.work = replace(self.work, **more)
        step = OpenStep(BALLOT, 1, 1, "parent", (self.work,), (), (), (), amendment)
        assert self.seat.misfit(self.work) == ""
        self.take_in(self.seat.amend(step, self.work, 0.0))


FACTS = [(kind, m, replay) for kind in ("forward", "backward") for m in range(4) for replay in (0, 1, 2)]


@settings(max_examples=150)
@given(st.lists(st.sampled_from([*FACTS, *FACTS, None, None]), max_size=60), st.data())
def test_a_microbatch_is_accumulated_once_along_however_many_ways_it_comes(facts: list[Any], data: st.DataObject) -> None:
    """Microbatches 0 and 1 are owned, 2 is taken over, 3 only helped; the newest way of each comes to its end at last."""
    bench = Bench((1, 0))
    bench.amend(1, taken=(2,), helped=(3,))
    for fact in facts:
        if fact is None:
            if bench.computing:
                bench.end()
        else:
            bench.arrive(*fact)
    newest = {m: max([replay for fact in facts if fact for _, at, replay in [fact] if at == m], default=0) for m in range(4)}
    for kind in ("forward", "backward"):
        for microbatch in data.draw(st.permutations(range(4))):
            bench.arrive(kind, microbatch, newest[microbatch] + 1)
        while bench.computing:
            bench.end()
    assert sorted(bench.accumulated) == [0, 1, 2]
    assert bench.accumulated.index(1) < bench.accumulated.index(0), "those from the start are in their order"
    assert bench.seat.phase is SeatPhase.READY
    assert bench.held == 0
    assert bench.seat.attempt
    gone_back = {h.route.microbatch for h in bench.sent if h.kind == "backward" and h.route.replay > newest[h.route.microbatch]}
    assert gone_back == {0, 1, 2, 3}, "whoever is further on needs the gradient along the newest way"


def test_a_seat_that_has_all_works_on_for_others() -> None:
    bench = Bench((0,))
    for kind in ("forward", "backward"):
        bench.arrive(kind, 0)
        bench.end()
    assert bench.seat.phase is SeatPhase.READY
    bench.seat.phase = SeatPhase.REDUCED
    for kind in ("forward", "backward"):
        bench.arrive(kind, 0, 1, (2,))
        assert not bench.computing[0].work.accumulate
        bench.end()
    assert bench.sent[-1].accumulate_at == (2,)
    assert bench.accumulated == [0]
    bench.arrive("forward", 0, 2)
    assert bench.held == 1
    bench.take_in(bench.seat.begin_applying())
    assert bench.held == 0, "what is still computed for others is given up with the step"


def test_a_seat_that_is_told_of_more_work_is_not_ready_any_more() -> None:
    bench = Bench((0,))
    for kind in ("forward", "backward"):
        bench.arrive(kind, 0)
        bench.end()
    bench.amend(1, taken=(2,))
    assert bench.seat.phase is SeatPhase.WORKING
    for kind in ("forward", "backward"):
        bench.arrive(kind, 2, 1)
        bench.end()
    report = bench.seat.report()
    assert report is not None
    assert getattr(report, "microbatches", "") == "5"
    bench.seat.phase = SeatPhase.REDUCING
    assert "has begun" in bench.seat.misfit(replace(bench.work, taken=(2, 3)))
    assert bench.seat.misfit(replace(bench.work, helped=(3,))) == ""
    assert bench.seat.misfit(replace(bench.work, taken=())), "what is accumulated cannot be taken back"


def test_a_new_way_of_a_microbatch_takes_nothing_of_others() -> None:
    bench = Bench((0, 1, 2))
    for microbatch in (0, 1, 2):
        bench.arrive("forward", microbatch)
        bench.end()
    bench.arrive("backward", 1)
    bench.arrive("backward", 2)
    bench.arrive("forward", 2, 1)
    assert bench.held == 2, "what waited of the old way is released, and nothing else"
    bench.end()
    bench.arrive("backward", 0)
    assert [c.work.microbatch for c in bench.computing] == [0, 1]


def test_who_is_revoked_keeps_what_is_begun_and_releases_the_rest() -> None:
    bench = Bench((2, 0, 1))
    for microbatch in (0, 1, 2):
        bench.arrive("forward", microbatch)
        bench.end()
    bench.arrive("backward", 2)
    bench.arrive("backward", 1)
    assert [c.work.microbatch for c in bench.computing] == [2], "1 waits for its turn"
    released, kept = bench.seat.revoke()
    bench.take_in(released)
    assert kept == Counted(1, bitmap([2]))
    assert bench.held == 1
    bench.arrive("backward", 0)
    bench.arrive("forward", 1, 1)
    assert bench.held == 1, "nothing more is taken"
    assert bench.seat.revoke() == ([], kept), "asked twice, the same answer"
    bench.end()
    assert bench.seat.phase is SeatPhase.READY
    assert getattr(bench.seat.report(), "microbatches", "") == bitmap([2])


# ---- stage 0 ----


def stage_0() -> tuple[Core, OpenStep]:
    """The holder of stage 0 of two block stages with two replicas each, and its open step: two in flight."""
    batch = {"microbatch_samples": 1, "global_samples": 4, "context_tokens": 8, "max_in_flight": 2}
    manifest = a_manifest(batch=batch)
    seats = [s for s in holders(manifest, 2) if s.member.peer != "p0.1"]
    core = Core(manifest, LEAD.peer, seats)
    core.open()
    assert core.state.bench.open
    return core, core.state.bench.open


def finish(core: Core, commands: list[Command]) -> list[PipeHeader]:
    """All that is computed ends; returns what is sent on."""
    out, todo = list(commands), of(commands, Compute)
    while todo:
        work = todo.pop(0).work
        makes = 0 if work.op == "embed_backward" else core.handle()
        more = core.do(ComputeDone(work, makes, 8, 1.5, 8 if work.op == "head" else 0, 0.1))
        out, todo = out + more, todo + of(more, Compute)
    return [c.header for c in of(out, SendPayload)]


def led_around(step: OpenStep, peer: str, other: str, amendment: int, *again: int) -> OpenStep:
    def led(route: Route) -> Route:
        hops = tuple(Hop(h.stage, other) if h.peer == peer else h for h in route.hops)
        return route if hops == route.hops else Route(route.microbatch, hops, amendment)

    lost = tuple(Again(m, (1,)) for m in again)
    return replace(step, routes=tuple(led(r) for r in step.routes), amendment=amendment, again=lost, without=(peer,))


def test_what_is_on_its_way_begins_again_at_once_and_what_came_back_when_there_is_room() -> None:
    core, step = stage_0()
    other = "p1.1" if core.route(0).hops[1].peer == "p1.0" else "p1.0"
    seat = core.state.bench.seats[0]
    assert seat.attempt
    finish(core, [Compute(Work("embed", 0, 1, 1, m), 0, "") for m in (0, 1)])
    for kind, hop in (("forward", 3), ("backward", 0)):
        finish(core, core.arrive(core.header(kind, 0, hop)))
    assert seat.attempt.accumulated == [0]
    assert seat.attempt.loss_sum == 1.5
    out = core.tell(led_around(step, core.route(0).hops[1].peer, other, 1, 0, 2))
    assert [(c.work.microbatch, c.work.replay) for c in of(out, Compute)] == [(2, 1)], "0 came back, 1 is led another way"
    assert finish(core, core.arrive(core.header("forward", 1, 3)))
    finish(core, out)
    assert finish(core, core.arrive(core.header("forward", 2, 3))) == [], "nothing comes along the old way any more"
    (again,) = [h for h in finish(core, core.arrive(core.header("backward", 1, 0))) if h.route.microbatch == 0]
    assert again.accumulate_at == (1,), "it is missing at the stage that lost it, and nowhere else"
    assert again.route.hops[1].peer == other
    for kind, hop in (("forward", 3), ("backward", 0)):
        header = replace(core.header(kind, 0, hop), route=again.route, accumulate_at=(1,))
        computed = core.arrive(header)
        assert [c.work.accumulate for c in of(computed, Compute)] == [False]
        finish(core, computed)
    assert seat.attempt.accumulated == [0, 1]
    assert seat.attempt.loss_sum == 3.0


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
    ],
    ids=["no seat", "another parent", "owned twice", "no microbatch", "another role"],
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
