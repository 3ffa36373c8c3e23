"""What a node does with work: what fits is done once, what does not is released, and nothing that a peer sends raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocol.commands import Apply, Compute, Reduce, Release, SendPayload
from protocol.counted import contributors_of
from protocol.events import Applied, CommandFailed, ComputeDone, Reduced
from protocol.ids import Ballot, Member
from protocol.messages import (
    Decide,
    Evaluated,
    Hop,
    OpenEvaluation,
    OpenStep,
    PipeHeader,
    ReducedReport,
    ReduceReady,
    Route,
    SeatWork,
    Stalled,
    StartReduce,
    VoidStep,
)
from protocol.records import Commit, Share, StageResult
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, sent


def core(stage: int = 1, **options: Any) -> Core:
    """The only holder of a stage of two block stages, with an open step."""
    manifest = a_manifest(**options)
    return Core(manifest, LEAD.peer if stage == 0 else f"p{stage}.0", holders(manifest))


def finish(c: Core, commands: list[Any], num_bytes: int = 8) -> list[Any]:
    """All Computes among the commands end, and those that follow from them."""
    out, todo = list(commands), of(commands, Compute)
    while todo:
        work = todo.pop(0).work
        makes = 0 if work.op == "embed_backward" or (work.evaluate and work.op == "head") else c.handle()
        tokens = c.manifest.batch.tokens_per_microbatch if work.op == "head" else 0
        more = c.do(ComputeDone(work, makes, num_bytes, 1.5 if tokens else 0.0, tokens, 0.1))
        out += more
        todo += of(more, Compute)
    return out


def work_through(c: Core, attempt: int = 1) -> list[Any]:
    """A block stage computes all its microbatches."""
    c.open(attempt)
    out: list[Any] = []
    for microbatch in range(c.manifest.batch.num_microbatches):
        hop = next(i for i, h in enumerate(c.route(microbatch).hops) if h.peer == c.state.config.member.peer)
        out += finish(c, c.arrive(c.header("forward", microbatch, hop, attempt=attempt)))
        out += finish(c, c.arrive(c.header("backward", microbatch, hop, attempt=attempt)))
    return out


def start_reduce(c: Core, stage: int = 1, **changes: Any) -> StartReduce:
    """All of it is the first active replica's."""
    owners = (0,) * c.manifest.batch.num_microbatches
    return StartReduce(**({"ballot": BALLOT, "step": 1, "attempt": 1, "stage": stage, "owners": owners} | changes))


def commit_of(c: Core, digest: str = "sum", squared_norm: float = 4.0) -> Commit:
    results = tuple(StageResult(s, digest, squared_norm) for s in range(c.manifest.num_stages))
    return Commit(c.state.chain.head, c.state.chain.step + 1, 1, results, 8.0, c.manifest.batch.tokens_per_step)


# ---- the ordinary way ----


def test_a_block_stage_goes_through_a_step() -> None:
    c = core()
    out = work_through(c)
    assert [n["microbatch"] for n in notes(out, "accumulated")] == [0, 1, 2, 3]
    assert len(of(out, SendPayload)) == 8
    assert c.num_held == 0
    ready = sent(out, ReduceReady)
    assert [m.microbatches for m in ready] == ["f"]
    assert of(c.tell(start_reduce(c)), Reduce)
    assert not of(c.tell(start_reduce(c)), Reduce), "a repeated start sums again"
    reported = sent(c.do(Reduced(1, 1, 1, "sum", 4.0, 0.1)), ReducedReport)
    assert [(m.digest, m.squared_norm) for m in reported] == [("sum", 4.0)]
    (apply,) = of(c.decide(commit_of(c)), Apply)
    assert apply.state_id == c.state.chain.state_ids[1]
    out = c.do(Applied(1, 1, apply.state_id, "new", 1, 0.1))
    assert [n["contributors"] for n in notes(out, "committed")] == [{"p1.0": "f"}], "whoever told of the Commit knew no shares"
    assert c.state.bench.seats[1].state.step == 1
    assert c.state.bench.settled


def test_who_contributed_to_another_attempt_is_told_with_its_commit() -> None:
    """The sums of two attempts may be equal to the bit, and the work of one was dealt out otherwise."""
    c = core()
    work_through(c, attempt=2)
    c.tell(start_reduce(c, attempt=2))
    c.do(Reduced(1, 1, 2, "sum", 4.0, 0.1))
    shares = (Share(1, Member("p1.0", 1), "3"), Share(1, Member("p1.1", 1), "c"))
    commit = replace(commit_of(c), contributors=contributors_of(shares, 1, c.manifest))
    (apply,) = of(c.tell(Decide(BALLOT, commit, shares)), Apply)
    assert (commit.attempt, apply.attempt) == (1, 2), "the sum that is here"
    out = c.do(Applied(1, 1, apply.state_id, "new", 1, 0.1))
    assert [n["contributors"] for n in notes(out, "committed")] == [{"p1.0": "3", "p1.1": "c"}]


def test_stage_0_admits_no_more_than_may_be_in_flight() -> None:
    manifest = a_manifest(batch={"microbatch_samples": 1, "global_samples": 4, "context_tokens": 8, "max_in_flight": 2})
    c = Core(manifest, LEAD.peer, holders(manifest))
    out = finish(c, c.open())
    assert [p.header.route.microbatch for p in of(out, SendPayload)] == [0, 1]
    last = len(c.route(0).hops) - 1
    finish(c, c.arrive(c.header("forward", 0, last)))
    out = finish(c, c.arrive(c.header("backward", 0, 0)))
    assert [p.header.route.microbatch for p in of(out, SendPayload)] == [2], "room for the next one"


# ---- hostile payloads ----


def bent(header: PipeHeader, **changes: Any) -> PipeHeader:
    return replace(header, **changes)


def with_hops(header: PipeHeader, *hops: Hop, hop: int = 0) -> PipeHeader:
    return replace(header, hop=hop, route=Route(header.route.microbatch, hops))


ME, OTHER = "p1.0", "p2.0"
HOSTILE: dict[str, tuple[Callable[[PipeHeader], PipeHeader], str]] = {
    "hop below": (lambda h: bent(h, hop=-1), LEAD.peer),
    "hop beyond": (lambda h: bent(h, hop=77), LEAD.peer),
    "not my hop": (lambda h: bent(h, hop=2), ME),
    "no hops": (with_hops, LEAD.peer),
    "one hop": (lambda h: with_hops(h, Hop(1, ME)), ME),
    "ends here": (lambda h: with_hops(h, Hop(0, LEAD.peer), Hop(1, ME), hop=1), LEAD.peer),
    "stage that does not exist": (lambda h: with_hops(h, Hop(0, LEAD.peer), Hop(9, ME), Hop(0, LEAD.peer), hop=1), LEAD.peer),
    "repeated hop": (
        lambda h: with_hops(h, Hop(0, LEAD.peer), Hop(1, ME), Hop(1, ME), Hop(0, LEAD.peer), hop=1),
        LEAD.peer,
    ),
    "stages in another order": (
        lambda h: with_hops(h, Hop(0, LEAD.peer), Hop(2, OTHER), Hop(1, ME), Hop(0, LEAD.peer), hop=2),
        OTHER,
    ),
    "over a stranger": (
        lambda h: with_hops(h, Hop(0, LEAD.peer), Hop(1, ME), Hop(2, "x"), Hop(0, LEAD.peer), hop=1),
        LEAD.peer,
    ),
    "from a stranger": (
        lambda h: with_hops(h, Hop(0, "x"), Hop(1, ME), Hop(2, OTHER), Hop(0, "x"), hop=1),
        "x",
    ),
    "not from the hop before": (lambda h: h, OTHER),
    "does not come back": (
        lambda h: with_hops(h, Hop(0, LEAD.peer), Hop(1, ME), Hop(2, OTHER), Hop(0, "x"), hop=1),
        LEAD.peer,
    ),
    "microbatch outside": (lambda h: bent(h, route=replace(h.route, microbatch=4)), LEAD.peer),
    "huge microbatch": (lambda h: bent(h, route=replace(h.route, microbatch=1 << 62)), LEAD.peer),
    "negative microbatch": (lambda h: bent(h, route=replace(h.route, microbatch=-1)), LEAD.peer),
    "another ballot": (lambda h: bent(h, ballot=Ballot(999, LEAD.peer)), "x"),
    "a stranger's ballot": (lambda h: bent(h, ballot=Ballot(999, "x")), LEAD.peer),
    "far ahead": (lambda h: bent(h, step=1 << 60, parent="z"), LEAD.peer),
    "long ago": (lambda h: bent(h, step=0), LEAD.peer),
    "backward from before": (lambda h: bent(h, kind="backward"), LEAD.peer),
    "evaluation of another step": (lambda h: bent(h, kind="evaluate", step=77), LEAD.peer),
    "evaluation ahead": (lambda h: bent(h, kind="evaluate", step=5, parent="z"), LEAD.peer),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_payload_that_does_not_fit_is_released(name: str) -> None:
    bend, sender = HOSTILE[name]
    c = core()
    c.open()
    commands = c.arrive(bend(c.header("forward", 0, 1)), sender)
    assert [type(x) for x in commands] == [Release]
    assert c.num_held == 0
    assert of(c.arrive(c.header("forward", 0, 1)), Compute), "and what fits is still computed"


def test_stage_0_takes_no_forward_at_its_first_hop_and_no_backward_at_its_last() -> None:
    c = core(0)
    c.open()
    for kind, hop, sender in [("forward", 0, "p2.0"), ("backward", 3, "p2.0"), ("forward", 0, LEAD.peer)]:
        assert not of(c.arrive(c.header(kind, 0, hop), sender), Compute)
    assert c.num_held == 0


def test_duplicates_are_computed_once() -> None:
    c = core()
    c.open()
    assert of(c.arrive(c.header("forward", 0, 1)), Compute)
    assert c.num_held == 1
    assert not of(c.arrive(c.header("forward", 0, 1)), Compute)
    assert c.num_held == 1


def test_what_belongs_to_a_voided_attempt_does_not_enter_the_next_one() -> None:
    """Payloads, and outcomes of what was begun then, come late."""
    c = core()
    c.open()
    (first,) = of(c.arrive(c.header("forward", 0, 1)), Compute)
    c.tell(VoidStep(BALLOT, 1, 1, "a test"))
    c.open(attempt=2)
    assert not of(c.arrive(c.header("forward", 0, 1, attempt=1)), Compute)
    assert not of(c.do(ComputeDone(first.work, c.handle(), 8, 0.0, 0, 0.1)), SendPayload)
    (again,) = of(c.arrive(c.header("forward", 0, 1, attempt=2)), Compute)
    assert (first.work.attempt, again.work.attempt) == (1, 2)


def test_a_sum_of_a_voided_attempt_is_none_of_the_next_one() -> None:
    c = core()
    work_through(c)
    assert of(c.tell(start_reduce(c)), Reduce)
    c.tell(VoidStep(BALLOT, 1, 1, "a test"))
    work_through(c, attempt=2)
    assert not of(c.tell(start_reduce(c, attempt=1)), Reduce)
    assert of(c.tell(start_reduce(c, attempt=2)), Reduce)
    assert not sent(c.do(Reduced(1, 1, 1, "sum", 4.0, 0.1)), ReducedReport)
    assert not sent(c.do(CommandFailed(1, 1, 1, -1, "p2.0", "late")), Stalled)
    assert sent(c.do(Reduced(1, 1, 2, "sum", 4.0, 0.1)), ReducedReport)


def test_early_payloads_wait_for_their_step_in_bounded_room() -> None:
    manifest = a_manifest(batch={"microbatch_samples": 1, "global_samples": 4, "context_tokens": 8, "max_in_flight": 2})
    c = Core(manifest, "p1.0", holders(manifest))
    for _ in range(3):
        c.arrive(c.header("forward", 0, 1))
    assert c.num_held == 1, "copies take no room"
    for attempt in (1, 2, 3):
        for microbatch in range(4):
            c.arrive(replace(c.header("forward", microbatch, 1), attempt=attempt))
    assert c.num_held == 10, "two that are in flight, and all four there and back once more"
    assert [x.work.microbatch for x in of(c.open(), Compute)] == [0, 1, 2, 3]


# ---- hostile or mistaken orders ----


def orders(c: Core) -> dict[str, OpenStep]:
    chain = c.state.chain
    good = OpenStep(BALLOT, 1, 1, chain.head, (SeatWork(0, "active", 0, (0, 1, 2, 3)),), (), (), ())
    routes = tuple(c.route(m) for m in range(4))
    wrong = replace(routes[0], microbatch=9)
    return {
        "no routes": good,
        "a route missing": replace(good, routes=routes[:3]),
        "a route outside": replace(good, routes=(*routes[:3], wrong)),
        "a route twice": replace(good, routes=(*routes, routes[0])),
        "an empty route": replace(good, routes=(*routes[:3], Route(3, ()))),
        "a stage that does not exist": replace(good, routes=routes, seats=(SeatWork(9, "active", 0, (0,)),)),
        "a negative stage": replace(good, routes=routes, seats=(SeatWork(-1, "active", 0, (0,)),)),
        "somebody else's stage": replace(good, routes=routes, seats=(SeatWork(1, "active", 0, (0,)),)),
        "another role": replace(good, routes=routes, seats=(SeatWork(0, "passive", 0, ()),)),
        "another generation": replace(good, routes=routes, seats=(SeatWork(0, "active", 5, (0, 1, 2, 3)),)),
        "microbatches outside": replace(good, routes=routes, seats=(SeatWork(0, "active", 0, (0, 1, 2, 1 << 62)),)),
        "a microbatch twice": replace(good, routes=routes, seats=(SeatWork(0, "active", 0, (0, 1, 2, 2)),)),
        "a seat twice": replace(good, routes=routes, seats=(good.seats[0], good.seats[0])),
        "a step ahead": replace(good, routes=routes, step=7),
    }


@pytest.mark.parametrize("name", orders(core(0)))
def test_an_order_that_does_not_fit_the_roster_is_refused(name: str) -> None:
    c = core(0)
    commands = c.tell(orders(c)[name])
    assert len(notes(commands, "refused")) == 1
    assert c.state.bench.open is None
    assert not of(commands, Compute)


def reduces(c: Core) -> dict[str, StartReduce]:
    return {
        "nobody's": start_reduce(c, owners=()),
        "a microbatch too few": start_reduce(c, owners=(0, 0, 0)),
        "a microbatch too many": start_reduce(c, owners=(0, 0, 0, 0, 0)),
        "without me": start_reduce(c, without=("p1.0",)),
        "a stranger's": start_reduce(c, owners=(0, 0, 0, 1)),
        "far from anybody's": start_reduce(c, owners=(0, 0, 0, 1 << 62)),
        "below the first": start_reduce(c, owners=(0, 0, 0, -1)),
        "another stage": start_reduce(c, stage=9),
        "another attempt": start_reduce(c, attempt=2),
        "another step": start_reduce(c, step=2),
    }


def ready() -> Core:
    c = core()
    work_through(c)
    return c


@pytest.mark.parametrize("name", reduces(ready()))
def test_a_reduce_that_does_not_fit_is_not_begun(name: str) -> None:
    c = ready()
    assert not of(c.tell(reduces(c)[name]), Reduce)
    assert of(c.tell(start_reduce(c)), Reduce), "and the right one is"


# ---- evaluation ----


def asked(c: Core, **changes: Any) -> OpenEvaluation:
    routes = tuple(r for r in map(c.route, range(4)) if r.hops[0].peer == c.state.config.member.peer)
    fields = {"ballot": BALLOT, "parent": c.state.chain.head, "step": 0, "routes": routes, "contacts": ()}
    return OpenEvaluation(**(fields | changes))


def test_stage_0_evaluates_and_reports() -> None:
    manifest = a_manifest()
    c = Core(manifest, "p0.1", holders(manifest, replicas=2))
    out = finish(c, c.tell(asked(c)))
    assert [p.header.route.microbatch for p in of(out, SendPayload)] == [1, 3]
    out = finish(c, c.arrive(c.header("evaluate", 3, 3)))
    assert [(m.microbatch, m.loss_sum) for m in sent(out, Evaluated)] == [(3, 1.5)]
    assert c.num_held == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"routes": (Route(0, ()),)},
        {"routes": (Route(99, ()),)},
        {"routes": (Route(0, (Hop(5, LEAD.peer),)),)},
        {"step": 3},
    ],
    ids=str,
)
def test_an_evaluation_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    c = core(0)
    commands = c.tell(asked(c, **changes))
    assert not of(commands, Compute)
    assert len(notes(commands, "refused")) == 1
    assert of(c.tell(asked(c)), Compute)


def test_an_evaluation_ends_with_the_next_step_and_owes_nothing() -> None:
    c = core(1)
    commands = c.arrive(c.header("evaluate", 0, 1))
    (compute,) = of(commands, Compute)
    assert c.num_held == 1
    c.open()
    assert c.num_held == 0
    c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1))
    assert c.num_held == 0
