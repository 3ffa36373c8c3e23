"""The grid's report from raw runs: what is counted, what has no mean, what is said of the paper's order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.cli.main import main
from node.lab.grid.draw import FULL, plan_of
from node.lab.grid.plots import plots_of
from node.lab.grid.results import Results, results_of, run_of
from node.lab.grid.tables import markdown
from node.lab.grid.verdicts import HOPES, PAPER_HOURS, comparisons, verdict
from node.lab.raw import Raw, run_name

PLAN = plan_of(FULL)
FIGURES = {"mean", "stderr", "n", "reached"}
STEP_S = 90.0


def a_line(
    policy: str, rate: str, seed: int = 0, *, steps: int = 1000, failures: int = 0, reached: bool = True, stage0: bool = False
) -> dict[str, Any]:
    """A run whose loss falls from 4 to 3.5 between the last two looks, 100 steps apart: half-way it is at the target, 3.75."""
    cell = {"policy": policy, "rate": rate, "seed": seed, "stage0": stage0}
    looks = [(steps - 50, 4.0), (steps + 50, 3.5 if reached else 3.9)]
    struck = [{"executed": 9, "stage": 1, "hours": 1.0, "back_hours": 1.05} for _ in range(failures)]
    outcome = {
        "cell": cell,
        "reached": reached,
        "executed": steps + 50,
        "hours": (steps + 50) * STEP_S / 3600,
        "bytes": {"forward": 600 * (steps + 50), "save": 400 * (steps + 50)},
        "curve": [{"executed": n, "step": n, "hours": n * STEP_S / 3600, "loss": loss} for n, loss in looks],
        "failures": [*struck, {"executed": 9, "stage": 1, "hours": 1.0, "missed": True}],
        "story": [],
        "cpu_s": 1.0,
    }
    return run_name(cell, PLAN.digest, "d") | {"losses": [4.0], "outcome": outcome}


def whole_grid() -> list[dict[str, Any]]:
    """Of the paper's policies, ordered as there: at 16 % redundant is fastest; a run of checkpoint_100 does not get there."""
    lines = [a_line("none", "0", seed) for seed in range(3)] + [
        a_line("checkfree_plus", "0", seed, steps=1300) for seed in range(3)
    ]
    for rate, failures in (("5", 5), ("10", 12), ("16", 24)):
        steps = {"checkfree_plus": 1350, "checkfree": 1450, "redundant": 1600, "checkpoint_100": 2000}
        if rate == "16":
            steps |= {"redundant": 1200}
        for policy, number in steps.items():
            for seed in range(3):
                stuck = (policy, rate, seed) == ("checkpoint_100", "16", 1)
                lines.append(a_line(policy, rate, seed, steps=number + 10 * seed, failures=failures, reached=not stuck))
    return lines


def results(lines: list[dict[str, Any]]) -> Results:
    return results_of(lines, PLAN)


def test_steps_and_hours_are_read_off_where_the_target_is_crossed() -> None:
    run = run_of(a_line("copy", "10", steps=1000, failures=3), 3.75)
    assert (run.steps, run.hours) == (pytest.approx(1000), pytest.approx(1000 * STEP_S / 3600))
    assert (run.num_failures, run.num_missed, run.num_bytes) == (3, 1, 1000 * 1050)
    assert run.outages_s == pytest.approx((180.0,) * 3)
    assert run.step_s == pytest.approx(STEP_S)
    stuck = run_of(a_line("copy", "10", reached=False), 3.75)
    assert (stuck.steps, stuck.hours) == (None, None)


def test_lost_steps_are_counted_from_the_run_without_failures_of_the_same_seed() -> None:
    found = results(whole_grid())
    plain = found.plain("grid.jsonl")["policies"]
    for cell in (plain["checkfree"]["10"], plain["none"]["0"]):
        assert all(set(cell[name]) == FIGURES for name in cell if name != "seeds")
    assert plain["checkfree"]["10"]["steps_to_target"] == {
        "mean": pytest.approx(1460),
        "stderr": pytest.approx(10 / 3**0.5),
        "n": 3,
        "reached": 3,
    }
    assert plain["checkfree"]["10"]["lost_steps_per_failure"]["mean"] == pytest.approx(460 / 12)
    assert plain["checkfree_plus"]["10"]["lost_steps_per_failure"]["mean"] == pytest.approx(60 / 12), "its own run at 0 %"
    assert plain["none"]["0"]["lost_steps_per_failure"]["mean"] is None
    assert plain["checkfree"]["10"]["failures"]["mean"] == 12
    assert plain["checkfree"]["10"]["bytes_per_step"]["mean"] == pytest.approx(1000)
    assert plain["checkfree"]["10"]["goodput"]["mean"] == pytest.approx(1000 / 1460, rel=1e-3)


def test_a_cell_with_a_run_that_did_not_get_there_has_no_mean() -> None:
    plain = results(whole_grid()).plain("grid.jsonl")["policies"]["checkpoint_100"]["16"]
    for name in ("steps_to_target", "hours_to_target", "lost_steps_per_failure"):
        assert plain[name] == {"mean": None, "stderr": None, "n": 3, "reached": 2}
    assert plain["failures"]["mean"] == 24
    assert plain["bytes_per_step"]["mean"] == pytest.approx(1000)
    assert "| checkpoint_100 | 2 of 3 | 2 of 3 | 2 of 3 | 24.0 ± 0 |" in markdown(results(whole_grid()), "r", {})


def test_what_is_not_measured_is_named() -> None:
    told = results([line for line in whole_grid() if (line["policy"], line["seed"]) != ("redundant", 2)]).missing
    assert "redundant at 10 % (seed 2)" in told
    assert "shadow_10 at 16 % (seed 0, 1, 2)" in told
    assert "checkfree_plus at 10 % (stage 0 too, seed 0, 1, 2)" in told
    assert not any(text.startswith(("none", "checkfree at")) for text in told)
    text = markdown(results(whole_grid()), "grid.jsonl", {"Losses": "x.svg"})
    assert "**Not measured yet:**" in text and "shadow_10 at 16 %" in text and "![Losses](x.svg)" in text


def test_the_second_set_stands_apart() -> None:
    lines = [*whole_grid(), a_line("checkfree_plus", "10", 0, steps=1500, failures=13, stage0=True)]
    plain = results(lines).plain("r")
    assert plain["stage0"]["checkfree_plus"]["10"]["steps_to_target"]["mean"] == pytest.approx(1500)
    assert plain["policies"]["checkfree_plus"]["10"]["steps_to_target"]["mean"] == pytest.approx(1360)
    assert "## 10 % failures, stage 0 too" in markdown(results(lines), "r", {})


def test_runs_of_another_plan_do_not_count() -> None:
    strange = a_line("copy", "10") | {"plan": "another"}
    assert not results([strange, {"run": "fork", "losses": []}]).cells


def test_it_says_where_the_paper_s_order_does_not_come_out() -> None:
    five, ten, sixteen = comparisons(results(whole_grid()))
    assert five.startswith("At 5 % the paper's order by hours comes out here too: checkfree_plus < checkfree < redundant")
    assert ten.startswith("At 10 % the paper's order by hours comes out here too")
    assert sixteen == (
        "At 16 % the paper's order by hours comes out here too: redundant < checkfree_plus < checkfree;"
        " checkpoint_100 did not reach the target in every run."
    )
    slow = [line for line in whole_grid() if (line["policy"], line["rate"]) != ("checkfree_plus", "10")]
    slow += [a_line("checkfree_plus", "10", seed, steps=1700) for seed in range(3)]
    assert list(comparisons(results(slow)))[1] == (
        "At 10 % the paper's order does not come out here: checkfree < redundant < checkfree_plus < checkpoint_100."
        " The paper: checkfree_plus < checkfree < redundant < checkpoint_100."
    )
    stuck = [a_line(policy, "10", reached=False) for policy in ("checkfree", "redundant")]
    stuck += [a_line(policy, "10") for policy in ("checkfree_plus", "checkpoint_100")]
    assert "At 10 % no order comes out" in list(comparisons(results(stuck)))[1]
    none = next(iter(comparisons(results(whole_grid()[:6]))))
    assert none.startswith("At 5 %: not all of the paper's policies are measured (checkfree_plus, checkfree")
    assert set(PAPER_HOURS) == {"checkpoint_100", "redundant", "checkfree", "checkfree_plus"}


def test_hopes_are_confirmed_or_refuted_with_figures() -> None:
    grid = [*whole_grid(), *(a_line("shadow_10", "10", seed, steps=1010, failures=12) for seed in range(3))]
    grid += [a_line("shadow_10", "16", seed, steps=1200, failures=24) for seed in range(3)]
    told = [verdict(results(grid), hope) for hope in HOPES]
    assert told[0].endswith("hours of redundant at 10 %: confirmed (0.84)")
    assert told[1].endswith("hours of checkpoint_100 at 10 %: confirmed (0.68)")
    assert told[2].endswith("hours of none at 0 %: confirmed (1.01)")
    assert told[3].endswith("hours of none at 0 %: refuted (1.20)")
    assert verdict(results(whole_grid()), HOPES[2]).endswith("not measured")
    stuck = [line for line in grid if line["policy"] != "redundant"]
    stuck += [a_line("redundant", "10", seed, reached=seed > 0) for seed in range(3)]
    assert "no verdict, as only 3 of 3 runs of checkfree_plus and 2 of 3 runs of redundant" in verdict(results(stuck), HOPES[0])


def test_plots_are_the_same_from_the_same_results() -> None:
    pytest.importorskip("matplotlib")
    first, again = plots_of(results(whole_grid())), plots_of(results(whole_grid()))
    assert first == again
    assert [name for name, _ in first.values()] == ["loss-over-hours.svg", "hours-to-target.svg"]
    assert all(data.startswith(b"<?xml") and b"checkfree_plus" in data for _, data in first.values())
    assert b"2 of 3 reached it" in first["Hours to the target"][1]


def test_the_command_writes_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = Raw(tmp_path / "raw" / "grid.jsonl")
    for line in whole_grid():
        raw.add(line)
    words = ["lab", "report", "--raw", str(raw.path), "--out", str(tmp_path / "out"), "--no-plots"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["runs"] == len(whole_grid())
    written = json.loads(Path(told["results"]).read_text())
    assert written["raw"] == "../raw/grid.jsonl"
    assert set(written["policies"]["checkfree_plus"]) == {"0", "5", "10", "16"}
    assert written["missing"] == told["missing"] != []
    assert Path(told["report"]).read_text().startswith("# The grid's report")
    assert not list((tmp_path / "out").glob("*.svg"))


def test_without_runs_there_is_no_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "report", "--raw", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)]) == 2
    told = capfd.readouterr().err.strip()
    assert "none.jsonl has no run of plan" in told and len(told.splitlines()) == 1
