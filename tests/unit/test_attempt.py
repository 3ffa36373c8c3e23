"""A seat inside an amended attempt: each microbatch counts once, what was sent to one that is gone is sent once more."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.commands import Command, Compute, Reduce, Release, SendPayload, StopReduce
from protocol.events import ComputeDone, Reduced
from protocol.ids import bitmap
from protocol.messages import Hop, OpenStep, PipeHeader, ReducedReport, Route, SeatWork, StartReduce
from protocol.revoking import Counted, Detour
from protocol.seat import Incoming, Seat, SeatPhase, SeatState
from tests.tools.core import BALLOT, notes, of


class Bench:
    """One seat of stage 1 between two stages with several replicas, its computations, and the balance of handles."""

    def __init__(self, order: tuple[int, ...], spare: tuple[int, ...] = (2,)) -> None:
        self.seat = Seat(SeatState(1, "active", 0, "state"), "me", 4, 8)
        self.seat.phase = SeatPhase.IDLE
        self.work = SeatWork(1, "active", 0, order)
        self.computing: list[Compute] = []
        self.accumulated: list[int] = []
        self.sent: list[tuple[str, PipeHeader, int]] = []
        self.retained: set[int] = set()
        self.held = 0
        self._handles = count(1)
        self.take_in(self.seat.open(OpenStep(BALLOT, 1, 1, "parent", (self.work,), (), (), ()), self.work, 0.0, spare))

    def take_in(self, commands: list[Command]) -> None:
        self.held -= len(of(commands, Release))
        self.computing += of(commands, Compute)
        self.accumulated += [n["microbatch"] for n in notes(commands, "accumulated")]
        self.sent += [(c.peer, c.header, c.handle) for c in of(commands, SendPayload)]

    def arrive(self, kind: Any, microbatch: int) -> None:
        route = Route(microbatch, (Hop(0, "zero"), Hop(1, "me"), Hop(2, "two"), Hop(0, "zero")))
        self.held += 1
        header = PipeHeader(BALLOT, 1, 1, "parent", kind, 1, route)
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

    def whole(self, *microbatches: int) -> None:
        """These pass, there and back."""
        for kind in ("forward", "backward"):
            for microbatch in microbatches:
                self.arrive(kind, microbatch)
                self.end()

    def amend(self, amendment: int, *detours: Detour, **more: Any) -> list[Command]:
        self.work = replace(self.work, **more)
        step = OpenStep(BALLOT, 1, 1, "parent", (self.work,), (), (), (), amendment, (), detours)
        assert self.seat.misfit(self.work) == ""
        out = self.seat.amend(step, self.work, 0.0)
        self.take_in(out)
        return out

    def reduce(self, sum_number: int) -> list[Command]:
        return self.seat.reduce(StartReduce(BALLOT, 1, 1, 1, (), sum_number=sum_number), ())


FACTS = [(kind, m) for kind in ("forward", "backward") for m in range(4)]


@settings(max_examples=150)
@given(st.lists(st.sampled_from([*FACTS, *FACTS, None, None]), max_size=60), st.data())
def test_a_microbatch_is_accumulated_once_however_often_it_comes(facts: list[Any], data: st.DataObject) -> None:
    """Microbatches 0 and 1 are owned, 2 is taken over, 3 only helped; gradients may come before what they are gradients of."""
    bench = Bench((1, 0))
    bench.amend(1, taken=(2,), helped=(3,))
    for fact in facts:
        if fact is None:
            if bench.computing:
                bench.end()
        else:
            bench.arrive(*fact)
    for kind in data.draw(st.permutations(("forward", "backward"))):
        for microbatch in data.draw(st.permutations(range(4))):
            bench.arrive(kind, microbatch)
        while bench.computing:
            bench.end()
    assert sorted(bench.accumulated) == [0, 1, 2]
    assert bench.accumulated.index(1) < bench.accumulated.index(0), "those from the start are in their order"
    assert bench.seat.phase is SeatPhase.READY
    for kind in ("forward", "backward"):
        assert sorted(h.route.microbatch for _, h, _ in bench.sent if h.kind == kind) == [0, 1, 2, 3]
    assert bench.held == 4, "what went on to stage 2 is kept"
    bench.take_in(bench.seat.void())
    assert bench.held == 0


def test_what_was_sent_to_a_replica_that_is_gone_is_sent_to_the_other() -> None:
    bench = Bench((0, 1, 2, 3))
    bench.whole(0)
    for microbatch in (1, 2):
        bench.arrive("forward", microbatch)
        bench.end()
    before = {h.route.microbatch: handle for _, h, handle in bench.sent if h.kind == "forward"}
    bench.sent.clear()
    bench.amend(1, Detour(2, "first", 1, False, bitmap([0, 1])), Detour(2, "second", 1, True, bitmap([2, 3])))
    once_more = [(peer, h.route.microbatch, handle) for peer, h, handle in bench.sent]
    assert once_more == [("first", 1, before[1]), ("second", 2, before[2])], "the gradient of 0 is here: nobody misses it"
    assert all(h.route.hops[2].peer == peer and h.route.amendment == 1 for peer, h, _ in bench.sent)
    bench.amend(2, Detour(2, "first", 1, False, bitmap([0, 1])), Detour(2, "second", 1, True, bitmap([2, 3])))
    assert len(bench.sent) == 2, "an amendment about others"
    bench.arrive("forward", 3)
    bench.end()
    assert bench.sent[-1][0] == "second", "what comes later goes there at once"
    bench.amend(3, Detour(2, "third", 3, True, bitmap([0, 2, 3])))
    assert [(peer, h.route.microbatch) for peer, h, _ in bench.sent[3:]] == [("third", 0), ("third", 2), ("third", 3)]
    bench.take_in(bench.seat.begin_applying())
    assert bench.held == 0


def test_where_nobody_could_take_over_nothing_is_kept() -> None:
    bench = Bench((0, 1), spare=())
    bench.whole(0, 1)
    assert bench.held == 0


def test_what_goes_back_goes_back_to_the_other_too() -> None:
    bench = Bench((0, 1), spare=(2,))
    bench.seat.state.stage = 3
    route = Route(0, (Hop(0, "zero"), Hop(2, "two"), Hop(3, "me"), Hop(0, "zero")))
    for kind in ("forward", "backward"):
        bench.held += 1
        header = PipeHeader(BALLOT, 1, 1, "parent", kind, 2, route)
        bench.take_in(bench.seat.take(Incoming(header, 90 + len(kind), "two")))
        bench.end()
    assert [(peer, h.kind) for peer, h, _ in bench.sent] == [("zero", "forward"), ("two", "backward")]
    step = OpenStep(BALLOT, 1, 1, "parent", (bench.work,), (), (), (), 1, (), (Detour(2, "first", 1, False, "1"),))
    bench.take_in(bench.seat.amend(step, bench.work, 0.0))
    assert [(peer, h.kind, h.hop) for peer, h, _ in bench.sent[2:]] == [("first", "backward", 1)]


def test_a_seat_that_has_all_works_on_for_others() -> None:
    bench = Bench((0,))
    bench.whole(0)
    assert bench.seat.phase is SeatPhase.READY
    bench.amend(1, helped=(1,))
    bench.seat.phase = SeatPhase.REDUCED
    for kind in ("forward", "backward"):
        bench.arrive(kind, 1)
        assert not bench.computing[0].work.accumulate or kind == "forward"
        bench.end()
    assert bench.accumulated == [0]
    bench.arrive("forward", 2)
    assert not bench.computing, "nobody asked for that"
    bench.take_in(bench.seat.begin_applying())
    assert bench.held == 0, "what is kept for others is given up with the step"


def test_a_seat_that_is_told_of_more_work_is_not_ready_any_more() -> None:
    bench = Bench((0,))
    bench.whole(0)
    bench.amend(1, taken=(2,))
    assert bench.seat.phase is SeatPhase.WORKING
    bench.whole(2)
    report = bench.seat.report()
    assert report is not None
    assert getattr(report, "microbatches", "") == "5"
    bench.seat.phase = SeatPhase.REDUCING
    assert "has begun" in bench.seat.misfit(replace(bench.work, taken=(2, 3)))
    assert bench.seat.misfit(replace(bench.work, taken=(2, 3), sum_number=1)) == "", "but where the sum begins anew"
    assert bench.seat.misfit(replace(bench.work, helped=(3,))) == ""
    assert bench.seat.misfit(replace(bench.work, taken=())), "what is accumulated cannot be taken back"


def test_a_sum_begins_anew_with_what_is_accumulated() -> None:
    bench = Bench((0,))
    bench.whole(0)
    assert of(bench.reduce(0), Reduce)
    out = bench.amend(1, sum_number=1, taken=(1,))
    assert of(out, StopReduce) == [StopReduce(1, 1, 1, 1)]
    assert bench.seat.phase is SeatPhase.WORKING
    assert bench.seat.reduced(Reduced(1, 1, 1, "old", 1.0, 0.1)) == []
    bench.whole(1)
    assert bench.reduce(0) == [], "the start of the one before comes late"
    (again,) = of(bench.reduce(1), Reduce)
    assert again.sum_number == 1
    assert bench.seat.reduced(Reduced(1, 1, 1, "old", 1.0, 0.1)) == [], "so does its outcome"
    assert bench.seat.reduced(Reduced(1, 1, 1, "new", 1.0, 0.1, 1))
    report = bench.seat.report()
    assert isinstance(report, ReducedReport)
    assert (report.digest, report.sum_number) == ("new", 1)
    assert bench.accumulated == [0, 1]


def test_who_is_revoked_keeps_what_is_begun_and_releases_the_rest() -> None:
    bench = Bench((2, 0, 1), spare=())
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
    bench.arrive("forward", 1)
    assert bench.held == 1, "nothing more is taken"
    assert bench.seat.revoke() == ([], kept), "asked twice, the same answer"
    bench.end()
    assert bench.seat.phase is SeatPhase.READY
    assert getattr(bench.seat.report(), "microbatches", "") == bitmap([2])
