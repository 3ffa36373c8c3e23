"""Policy redundant: the forward passes that are run twice, and what waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.commands import Compute, Reduce, Release, SendPayload
from protocol.copies import first_copies
from protocol.events import ComputeDone, Reduced
from protocol.ids import Member
from protocol.messages import Contact, ReducedReport, ReduceReady, StartReduce
from tests.tools.core import LEAD, Core, a_manifest, holders, of, sent
from tests.unit.test_protocol_workbench import start_reduce

KNOWN = (Contact("p2.0", "p2.0:1"),)


def core(stage: int, policy: str = "redundant") -> Core:
    """Who computes a stage of two block stages, and holds a copy of the next one; a step is open."""
    manifest = a_manifest(num_block_stages=2, recovery={"policy": policy})
    rows = [[LEAD], [Member("p1.0", 1)], [Member("p2.0", 1)]]
    copies = first_copies(a_manifest(num_block_stages=2, recovery={"policy": "redundant"}), rows)
    c = Core(manifest, LEAD.peer if stage == 0 else f"p{stage}.0", [*holders(manifest), *copies])
    c.open()
    return c


def forward(c: Core, stage: int, microbatch: int) -> list[Any]:
    """Its forward pass ends."""
    (compute,) = of(c.arrive(c.header("forward", microbatch, stage)), Compute)
    assert compute.work.op == "forward"
    return c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1))


def backward(c: Core, stage: int, microbatch: int) -> list[Any]:
    (compute,) = of(c.arrive(c.header("backward", microbatch, stage)), Compute)
    return c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1))


def ends(c: Core, compute: Compute, seconds: float = 0.1) -> list[Any]:
    return c.do(ComputeDone(compute.work, 0, 0, 0.0, 0, seconds))


@pytest.mark.parametrize(("stage", "after"), [(1, 2), (2, 0)])
def test_what_is_sent_on_is_computed_on_here_too(stage: int, after: int) -> None:
    c = core(stage)
    out = forward(c, stage, 0)
    (twice,) = of(out, Compute)
    (onward,) = of(out, SendPayload)
    assert (twice.work.op, twice.work.stage, twice.work.microbatch) == ("redundant", after, 0)
    assert twice.handle == onward.handle, "the very activation that it sends"
    assert out.index(twice) < out.index(next(x for x in of(out, Release) if x.handle == twice.handle))
    assert not ends(c, twice), "nothing follows from it"
    assert not of(backward(c, stage, 0), Compute), "a gradient goes back once"
    assert c.num_held == 0


def test_stage_0_runs_the_first_block_stage_on_its_embeddings() -> None:
    c = core(0)
    (embed,) = of(c.open(2), Compute)[:1]
    (twice,) = of(c.do(ComputeDone(embed.work, c.handle(), 8, 0.0, 0, 0.1)), Compute)
    assert (twice.work.op, twice.work.stage, twice.work.attempt) == ("redundant", 1, 2)


def test_under_another_policy_a_passive_replica_computes_nothing() -> None:
    c = core(1, "checkfree")
    assert not of(forward(c, 1, 0), Compute)


def all_passed(c: Core) -> list[Compute]:
    """Stage 1 is through with its work. Returns what is still run twice."""
    out = [compute for m in range(4) for compute in of(forward(c, 1, m), Compute)]
    for microbatch in range(4):
        backward(c, 1, microbatch)
    return out


def test_a_sum_waits_for_the_last_pass_at_its_copy() -> None:
    c = core(1)
    running = all_passed(c)
    assert len(running) == 4
    assert of(c.tell(start_reduce(c, 1)), Reduce), "of the stage that it computes it does not"
    start = start_reduce(c, 2, contacts=KNOWN)
    assert not of(c.tell(start), Reduce)
    for compute in running[:3]:
        assert not of(ends(c, compute), Reduce)
    assert not of(c.tell(start), Reduce), "nor when it is told again"
    (reduce,) = of(ends(c, running[3]), Reduce)
    assert (reduce.stage, reduce.step, reduce.attempt) == (2, 1, 1)
    assert not of(ends(c, running[3]), Reduce), "once"
    assert [m.stage for m in sent(c.do(Reduced(2, 1, 1, "sum", 1.0, 0.1)), ReducedReport)] == [2]


def test_a_sum_of_an_attempt_that_is_over_is_not_begun_by_a_late_pass() -> None:
    c = core(1)
    running = all_passed(c)
    c.tell(start_reduce(c, 2, contacts=KNOWN))
    c.open(2)
    assert not [x for compute in running for x in of(ends(c, compute), Reduce)]
    assert of(c.tell(start_reduce(c, 2, attempt=2, contacts=KNOWN)), Reduce), "in the new one nothing is run twice yet"


def test_its_time_counts_as_that_of_the_stage_whose_activation_it_was() -> None:
    c = core(1)
    for microbatch in range(4):
        (twice,) = of(forward(c, 1, microbatch), Compute)
        ends(c, twice, seconds=1.0)
    ready = [m for microbatch in range(4) for m in sent(backward(c, 1, microbatch), ReduceReady)]
    assert ready[0].seconds_per_microbatch == pytest.approx(0.1 + 0.1 + 1.0)


def test_a_repeated_outcome_is_run_twice_once() -> None:
    c = core(1)
    (compute,) = of(c.arrive(c.header("forward", 0, 1)), Compute)
    assert len(of(c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1)), Compute)) == 1
    assert not of(c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1)), Compute)
    assert c.num_held == 0


def test_a_void_ends_it() -> None:
    c = core(1)
    (twice,) = of(forward(c, 1, 0), Compute)
    c.open(2)
    assert not ends(c, twice)
    assert isinstance(start_reduce(c, 2, attempt=2, contacts=KNOWN), StartReduce)
    assert not c.state.bench.seats[2].attempt.computing  # type: ignore[union-attr]
