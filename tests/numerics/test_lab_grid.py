"""Runs of the grid: the real runtime with torch on the paper's links. Without failures they are the plain loop; with them, each
policy does what it says, and what is charged is what the large model's tensors would be."""

from __future__ import annotations

from typing import Any

import pytest

from node.lab.grid.charged import work_s
from node.lab.grid.draw import QUICK, plan_of
from node.lab.grid.plan import Failure, Plan, Schedule, Shape
from node.lab.grid.policies import ROWS, Cell
from node.lab.grid.world import Play
from node.lab.pipeline import Pipeline
from protocol.commands import Work
from protocol.manifest import DataSection
from tests.numerics.harness import RandomTokens

SHARD = {"digest": "0" * 64, "num_bytes": 2000, "num_tokens": 1000}
DATA = DataSection.model_validate({"train": [SHARD], "validation": [SHARD | {"digest": "1" * 64}]})
SMALL = Shape(hidden=16, heads=2, layers_per_stage=1, vocab=199, context_tokens=8, samples=4)
STEPS = 9
SAME = 2e-3
"""Losses are told with three digits after the point."""


def a_plan(*failures: tuple[int, int], steps: int = STEPS, target: float = 0.001) -> Plan:
    """`failures`: (stage, step)."""
    plan = plan_of(QUICK)
    rig = plan.rig.model_copy(update={"small": SMALL, "evaluate_every": 4})
    struck = tuple(Failure(step=step, stage=stage, moment=0.4) for stage, step in failures)
    drawn = (Schedule(rate="10", seed=0, failures=struck),)
    return plan.model_copy(update={"rig": rig, "schedules": drawn, "max_steps": steps, "target_loss": target})


def play(plan: Plan, policy: str, rate: str = "10", kind: type[Play] = Play, **recovery: Any) -> tuple[Play, dict[str, Any]]:
    row = next(row for row in ROWS if row.name == policy)
    played = kind(plan, Cell(policy, rate, 0, recovery=row.recovery | recovery), DATA, RandomTokens)
    return played, played.result()


def types_of(outcome: dict[str, Any]) -> list[str]:
    return [line["type"] for line in outcome["story"]]


@pytest.mark.parametrize("policy", ["none", "checkfree_plus"])
def test_without_failures_it_is_the_plain_loop(policy: str) -> None:
    played, outcome = play(a_plan(), policy, rate="0")
    pipeline = Pipeline(played.manifest, RandomTokens(played.manifest))
    plain = [pipeline.step(step).loss for step in range(1, STEPS + 1)]
    assert played.losses == pytest.approx(plain, abs=SAME)
    assert (outcome["executed"], outcome["reached"], outcome["failures"], outcome["story"]) == (STEPS, False, [], [])
    assert [(point["executed"], point["step"]) for point in outcome["curve"]] == [(4, 4), (8, 8)]
    one_way = 7 * 84 * 1024 * 1024 * 2 * STEPS
    assert (outcome["bytes"]["forward"], outcome["bytes"]["backward"]) == (one_way, one_way)
    assert set(outcome["bytes"]) == {"forward", "backward", "evaluate", "control", "heartbeat"}
    again, same = play(a_plan(), policy, rate="0")
    assert (again.losses, same | {"cpu_s": 0}) == (played.losses, outcome | {"cpu_s": 0}), "the same run is the same"


@pytest.mark.parametrize(
    "policy",
    ["checkfree_plus", *(pytest.param(name, marks=pytest.mark.full) for name in ("copy", "uniform", "random", "checkfree"))],
)
def test_a_lost_stage_is_made_as_the_policy_says_and_nothing_else_is_lost(policy: str) -> None:
    calm, without = play(a_plan(steps=7), policy, rate="0")
    struck, outcome = play(a_plan((3, 5), steps=7), policy)
    assert outcome["executed"] == 7, outcome
    assert struck.losses[:4] == calm.losses[:4]
    assert struck.losses[4] != calm.losses[4], "the step of the failure is run again, with the stage that was made"
    assert types_of(outcome) == ["lost", "rebuild"]
    assert (outcome["story"][1]["policy"], outcome["story"][1]["stage"], outcome["story"][1]["step"]) == (policy, 3, 4)
    [failure] = outcome["failures"]
    assert (failure["executed"], failure["stage"]) == (5, 3) and "missed" not in failure
    assert 30 < 3600 * (failure["back_hours"] - failure["hours"]) < 600
    assert outcome["hours"] > without["hours"]
    assert bool(outcome["bytes"].get("transfer")) == (policy != "random")


def test_a_rollback_repeats_steps_and_they_count() -> None:
    played, outcome = play(a_plan((2, 6)), "checkpoint_10", checkpoint_every=3)
    assert types_of(outcome)[:2] == ["lost", "rolled_back"]
    assert outcome["story"][1]["step"] == 3
    assert played.losses[5:7] == played.losses[3:5], "steps 4 and 5 were done again"
    assert outcome["executed"] == STEPS
    saved = 12 * 67_117_056 * 6 + 12 * 65_537_024
    assert outcome["bytes"]["save"] == pytest.approx(2 * saved, rel=1e-6)
    assert outcome["bytes"]["restore"] == pytest.approx(saved, rel=1e-6)


def test_stage_0_comes_back_from_an_embedding_copy_with_nothing_lost() -> None:
    calm, _ = play(a_plan(steps=7), "checkfree_plus", rate="0", embedding_copies=2)
    struck, outcome = play(a_plan((0, 4), steps=7), "checkfree_plus", embedding_copies=2)
    assert outcome["executed"] == 7, outcome
    assert {"lost", "promoted", "took_over"} <= set(types_of(outcome))
    assert "rebuild" not in types_of(outcome)
    assert struck.losses == calm.losses


def test_with_copies_of_all_stages_nothing_is_lost_and_every_step_takes_longer() -> None:
    _, once = play(a_plan(steps=7), "none", rate="0")
    calm, twice = play(a_plan(steps=7), "redundant", rate="0")
    rig = a_plan().rig
    forward_s = rig.num_microbatches * work_s(rig, Work("redundant", 1, 1, 1, 0))
    assert twice["hours"] - once["hours"] > 7 * forward_s / 3600, "at least one stage's passes more, in each step"
    struck, outcome = play(a_plan((3, 3), (0, 5), steps=7), "redundant")
    assert outcome["executed"] == 7, outcome
    assert {"lost", "promoted"} <= set(types_of(outcome)) and "rebuild" not in types_of(outcome)
    assert struck.losses[:3] == calm.losses[:3]
    assert struck.losses == pytest.approx(calm.losses, abs=SAME), "a sum is rounded to bf16 where a copy takes part in it"


def test_shadows_go_over_the_links_and_a_lost_stage_is_one_of_its_own_a_few_steps_old() -> None:
    _, none = play(a_plan(steps=7), "none", rate="0")
    calm, beside = play(a_plan(steps=7), "shadow_10", rate="0")
    assert calm.losses == play(a_plan(steps=7), "none", rate="0")[0].losses, "they change nothing"
    assert set(beside["bytes"]) - set(none["bytes"]) == {"transfer"}
    half = 2 * (6 * 67_117_056 + 65_537_024)
    assert beside["bytes"]["transfer"] == pytest.approx(half, rel=0.01), "each stage once in ten steps, in whole words"
    struck, outcome = play(a_plan((3, 5), (6, 6), steps=7), "shadow_10")
    assert outcome["executed"] == 7, outcome
    rebuilt = [(line["stage"], line["policy"]) for line in outcome["story"] if line["type"] == "rebuild"]
    assert rebuilt == [(3, "shadow"), (6, "shadow")]
    assert struck.losses[:4] == calm.losses[:4]
    assert struck.losses != calm.losses


def test_shadows_come_in_the_pieces_of_the_large_model_and_are_whole_soon_though_activations_take_the_lines() -> None:
    """Australia's line is busy for half of a step; its stage is kept within a few steps all the same, a tenth of the line."""
    rounds: dict[int, list[tuple[int, int, int]]] = {}

    class Listening(Play):
        def _hear(self, type_: str, fields: dict[str, Any]) -> None:
            if type_ == "shadow":
                rounds.setdefault(fields["stage"], []).append((fields["step"], fields["oldest_step"], fields["newest_step"]))
            super()._hear(type_, fields)

    play(a_plan(steps=16), "shadow_10", rate="0", kind=Listening)
    assert sorted(rounds) == list(range(7))
    for stage, told in rounds.items():
        first, *_ = told
        assert first[0] <= 5 and len(told) >= 2, f"stage {stage}: {told}"
        assert all(newest - oldest <= 5 for _, oldest, newest in told), f"stage {stage}: {told}"


def test_a_run_ends_at_its_target() -> None:
    played, outcome = play(a_plan(target=5.29), "none", rate="0")
    assert outcome["reached"]
    assert outcome["curve"][-1]["loss"] <= 5.29 < min([p["loss"] for p in outcome["curve"][:-1]], default=9.0)
    assert played.executed == outcome["curve"][-1]["executed"] < STEPS


def test_a_failure_of_a_stage_that_nobody_holds_is_told_as_missed() -> None:
    _, outcome = play(a_plan((3, 5), (3, 5), steps=7), "checkfree")
    assert [failure.get("missed", False) for failure in outcome["failures"]] == [False, True]
    assert types_of(outcome) == ["lost", "rebuild"]


def test_a_shadow_brings_stage_0_back_too() -> None:
    _, outcome = play(a_plan((2, 12), (0, 16), steps=20), "shadow_10")
    rebuilt = [line["stage"] for line in outcome["story"] if line["type"] == "rebuild"]
    assert (rebuilt, outcome["executed"]) == ([2, 0], 20)
    assert all("back_hours" in failure for failure in outcome["failures"])
