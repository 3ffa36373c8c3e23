"""`regrow advise`: hours by policy from what is known, and where that is from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.cli.main import main
from node.lab.advise import NAMES, Advice, Circumstances, advise, told, verdict
from node.lab.derived import PAPER, failure_rate, rollback_steps
from node.lab.measured import PAPER_LOST, Measured, known_results, read_results
from node.ports import UnusableError

MB = 1e6
PAPER_RUN = Circumstances(stage_bytes=268 * MB, link_bytes_s=12.5 * MB, step_s=91.3, failures_per_hour=0.10)
NOBODY = Measured(PAPER)
NOTHING = {name: {"mean": None} for name in ("lost_steps_per_failure", "steps_to_target")}


def named(of: Circumstances, measured: Measured = NOBODY) -> dict[str, Advice]:
    return {advice.policy: advice for advice in advise(of, measured)}


def test_a_step_fails_as_often_as_nodes_vanish() -> None:
    assert PAPER_RUN.per_stage == pytest.approx(1 - 0.9 ** (91.3 / 3600))
    assert PAPER_RUN.per_step == pytest.approx(failure_rate(PAPER_RUN.per_stage, 6))


def test_without_results_it_is_the_paper_s_figures_and_what_nobody_measured_is_unknown() -> None:
    found = named(PAPER_RUN)
    assert list(found) == sorted(found, key=lambda name: math.inf if found[name].hours is None else found[name].hours)
    assert {name for name, advice in found.items() if advice.hours is None} == {
        "copy",
        "uniform",
        "random",
        "shadow_10",
        "shadow_50",
    }
    q, wait = PAPER_RUN.per_step, 33 + 5 + 268 / 12.5
    executed = 10_000 / (1 - q * (PAPER_LOST["checkfree"] + 1))
    assert found["checkfree"].hours == pytest.approx(executed * (91.3 + q * wait) / 3600)
    assert found["checkfree"].sources == (PAPER,)
    assert "31.0 steps (paper)" in found["checkfree"].why
    assert "swapping takes 25 % more steps (paper)" in found["checkfree_plus"].why
    assert found["redundant"].hours == pytest.approx(10_000 / (1 - q) * (151.0 + q * 33) / 3600)
    assert "a step takes 1.65 times as long (paper)" in found["redundant"].why
    assert set(found) == set(NAMES)


def test_a_rollback_costs_all_nodes_and_a_slow_link_saves_less_often() -> None:
    found = named(PAPER_RUN)["checkpoint_100"]
    q, wait = PAPER_RUN.per_step, 38 + 3 * 268 / 12.5
    assert found.hours == pytest.approx(rollback_steps(10_000, q, 100) * (91.3 + q * wait) / 3600)
    assert (found.wire_bytes, found.memory_bytes) == (pytest.approx(3 * 268 * MB / 100), 3 * 268 * MB)
    slow = named(replace(PAPER_RUN, link_bytes_s=0.5 * MB))["checkpoint_10"]
    assert "an upload takes 18 steps, so only every 20th is saved" in slow.why
    assert slow.wire_bytes == pytest.approx(3 * 268 * MB / 20)


def test_a_shadow_costs_half_of_a_stage_s_bytes_and_needs_the_link() -> None:
    measured = Measured("x.json", {"shadow_10": {"10": 1.5}, "shadow_50": {"": -0.2}})
    found = named(PAPER_RUN, measured)
    assert (found["shadow_10"].wire_bytes, found["shadow_10"].memory_bytes) == (13.4 * MB, 134 * MB)
    assert "1.5 steps (x.json)" in found["shadow_10"].why and "use no less" not in found["shadow_10"].why
    assert found["shadow_50"].hours is not None and "nothing is lost but" in found["shadow_50"].why
    slow = named(replace(PAPER_RUN, link_bytes_s=0.5 * MB), measured)["shadow_10"]
    assert "at 10% of the link a copy takes 30 steps: use no less" in slow.why


def test_the_nearest_rate_counts() -> None:
    measured = Measured("x", {"checkfree": {"5": 10.0, "16": 50.0}})
    assert measured.lost_steps("checkfree", 0.001) == (10.0, "x")
    assert measured.lost_steps("checkfree", 0.02) == (50.0, "x")
    assert measured.lost_steps("checkfree", 0.0) == (10.0, "x")
    assert measured.lost_steps("checkfree_plus", 0.001) == (PAPER_LOST["checkfree_plus"], PAPER)


def test_advice_is_the_fastest_and_says_by_how_much() -> None:
    measured = Measured("x", {"shadow_10": {"10": 1.0}})
    sentence = verdict(advise(PAPER_RUN, measured))
    found = named(PAPER_RUN, measured)
    best, default = found["shadow_10"].hours, found["checkfree_plus"].hours
    assert best and default
    assert sentence == f"Advice: shadow_10, {1 - best / default:.0%} fewer hours than checkfree_plus, the default."
    plus = Measured("x", {"checkfree_plus": {"10": 0.1}}, tax=0.0, factors={"redundant": 1.5})
    assert verdict(advise(PAPER_RUN, plus)) == "Advice: checkfree_plus, the default."
    assert "1.50 times as long (x)" in named(PAPER_RUN, plus)["redundant"].why


def test_where_failures_come_too_fast_it_says_never() -> None:
    storm = replace(PAPER_RUN, failures_per_hour=0.9)
    found = named(storm)
    assert found["checkfree"].hours == math.inf
    assert found["checkfree"].plain()["hours"] is None and found["checkfree"].plain()["never"]
    assert "| checkfree | never |" in told(storm, advise(storm, NOBODY))
    few = replace(storm, failures_per_hour=0.999, stages=64)
    assert "Under no policy" in verdict([a for a in advise(few, NOBODY) if a.policy == "checkfree"])
    assert "checkfree_plus" not in named(replace(PAPER_RUN, stages=3)), "it needs four stages to swap"


def test_without_failures_hours_are_those_of_the_steps() -> None:
    calm = replace(PAPER_RUN, failures_per_hour=0.0)
    found = named(calm)
    ideal = 10_000 * 91.3 / 3600
    assert found["checkfree"].hours == found["checkpoint_10"].hours == pytest.approx(ideal)
    assert found["checkfree_plus"].hours == pytest.approx(1.25 * ideal)
    assert "is lost never" in told(calm, advise(calm, NOBODY))


def mean(value: float | None) -> dict[str, Any]:
    return {"mean": value, "stderr": None, "n": 1, "reached": int(value is not None)}


def a_cell(lost: float | None, step_s: float, steps: float | None) -> dict[str, Any]:
    return {"lost_steps_per_failure": mean(lost), "step_s": mean(step_s), "steps_to_target": mean(steps)}


def test_the_time_of_a_step_under_redundant_is_the_grid_s_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert known_results(None).factor("redundant") == (151.0 / 91.3, PAPER)
    there = tmp_path / "docs" / "lab" / "results.json"
    there.parent.mkdir(parents=True)
    cells = {"none": {"0": 80.0}, "redundant": {"5": 108.0, "10": 120.0}}
    mean = {name: {rate: {"step_s": {"mean": s}, **NOTHING} for rate, s in by.items()} for name, by in cells.items()}
    there.write_text(json.dumps({"policies": mean}))
    assert known_results(None).factor("redundant") == (1.35, "results.json")
    named = there.rename(tmp_path / "mine.json")
    assert known_results(named).factor("redundant") == (1.35, "mine.json")


def test_results_of_the_grid_and_of_forks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    policies = {
        "none": {"0": a_cell(None, 80.0, 1000.0)},
        "checkfree_plus": {"0": a_cell(None, 96.0, 1100.0), "10": a_cell(20.0, 100.0, 1300.0)},
        "redundant": {"10": a_cell(None, 120.0, None), "5": a_cell(0.5, 116.0, 1010.0)},
    }
    path.write_text(json.dumps({"policies": policies}))
    found = read_results(path)
    assert found.lost == {"checkfree_plus": {"10": 20.0}, "redundant": {"5": 0.5}}
    assert found.tax == pytest.approx(0.1)
    assert found.factors == {"checkfree_plus": 1.2, "redundant": 1.45}
    forks = {"setups": [{"policies": {"copy": {"lost_steps_per_failure": mean(12.0)}}, "swap_tax": mean(0.3)}]}
    path.write_text(json.dumps(forks))
    assert read_results(path) == Measured("results.json", {"copy": {"": 12.0}}, 0.3)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"setups": []}', '{"policies": {"copy": {"10": 3}}}'])
def test_what_is_no_file_of_results_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UnusableError, match=r"x\.json: it is no results\.json"):
        read_results(path)
    with pytest.raises(UnusableError, match="cannot be read"):
        read_results(tmp_path / "none.json")


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["advise", "--stage-mb", "268", "--json"]) == 0
    out = capfd.readouterr()
    told_json = json.loads(out.out)
    assert {row["policy"] for row in told_json["policies"]} == set(NAMES)
    assert told_json["advice"] in out.err and "| checkfree_plus |" in out.err
    assert main(["advise"]) == 2
    assert "--stage-mb" in capfd.readouterr().err
    assert main(["advise", "--stage-mb", "268", "--results", "nowhere.json"]) == 2
    assert len(capfd.readouterr().err.strip().splitlines()) == 1
    (tmp_path / "data.json").write_text(
        json.dumps({"train": [{"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19, "sources": ["/x"]}]})
    )
    assert main(["init", "--preset", "500m", "--data", "data.json", "--seed", "0", "--steps", "500"]) == 0
    (tmp_path / "run.yaml").write_text(capfd.readouterr().out)
    assert main(["advise", "run.yaml"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("One of 6 block stages is lost every") and "500 steps without any loss: 13 h" in text
    assert "| shadow_10 | unknown | 12.8 | 128 |" in text
    assert "Not weighed, as nothing is known of what a loss costs: copy, uniform, random, shadow_10, shadow_50." in text
