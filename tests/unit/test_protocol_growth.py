"""Nothing in a node grows with the number of steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass

from protocol.chain import KEPT_RECORDS
from protocol.commands import Apply, Compute
from protocol.events import Applied, ComputeDone, Reduced
from protocol.messages import StartReduce, VoidStep
from protocol.records import Commit, StageResult
from tests.tools.core import BALLOT, Core, a_manifest, holders, of
from tests.tools.lead import Lead, votes, whole_step

MEASURED = (KEPT_RECORDS + 5, 3 * KEPT_RECORDS)


def num_objects(root: object) -> int:
    """Objects that hang on `root`, each once; code, configuration and whatever is immutable and empty apart."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, str | int | float | type | None) or callable(x):
            continue
        seen[id(x)] = x
        todo += children(x)
    return len(seen)


def children(x: object) -> Iterable[object]:
    if isinstance(x, dict):
        return [*x.keys(), *x.values()]
    if isinstance(x, list | tuple | set | frozenset | deque):
        return list(x)
    if is_dataclass(x):
        return [getattr(x, f.name) for f in fields(x)]
    return list(getattr(x, "__dict__", {}).values())


def one_step(c: Core, step: int) -> None:
    """A block stage: a voided attempt, then one that is committed."""
    c.open(attempt=1)
    c.arrive(c.header("forward", 0, 1))
    c.tell(VoidStep(BALLOT, step, 1, "test"))
    c.open(attempt=2)
    for microbatch in range(4):
        for kind in ("forward", "backward"):
            for compute in of(c.arrive(c.header(kind, microbatch, 1, attempt=2)), Compute):
                c.do(ComputeDone(compute.work, c.handle(), 8, 0.0, 0, 0.1))
    c.tell(StartReduce(BALLOT, step, 2, 1, (0,) * 4))
    c.do(Reduced(1, step, 2, "d", 1.0, 0.1))
    results = tuple(StageResult(s, "d", 1.0) for s in range(3))
    (apply,) = of(c.decide(Commit(c.state.chain.head, step, 2, results, 8.0, 32)), Apply)
    c.do(Applied(1, step, apply.state_id, f"digest {step}", step, 0.1), after_s=0.5)


def test_a_member_does_not_grow() -> None:
    manifest = a_manifest(max_steps=1000)
    c = Core(manifest, "p1.0", holders(manifest))
    sizes = []
    for step in range(1, MEASURED[1] + 1):
        one_step(c, step)
        if step in MEASURED:
            sizes.append(num_objects(c.state))
    assert c.num_held == 0
    assert sizes[0] > 300, "the count sees nothing"
    assert sizes[1] <= sizes[0], f"{sizes[0]} objects became {sizes[1]}"


def test_a_coordinator_does_not_grow() -> None:
    c = Lead(max_steps=1000)
    sizes = []
    for step in range(1, MEASURED[1] + 1):
        votes(c, whole_step(c))
        assert c.state.chain.step == step
        c.do(Applied(0, step, c.state.chain.state_ids[0], "d", step, 0.1))
        c.beats(0.5)
        if step in MEASURED:
            sizes.append(num_objects(c.state))
    assert c.num_held == 0
    assert sizes[0] > 300, "the count sees nothing"
    assert sizes[1] <= sizes[0], f"{sizes[0]} objects became {sizes[1]}"
