"""What the lab measures, by policy; what it keeps, and what it tells."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from node.cli.main import main
from node.lab.crew import Boss, do_all
from node.lab.derived import Run
from node.lab.figures import Mean
from node.lab.raw import Raw, fork_name, reference_name
from node.lab.report import Measured
from node.lab.rows import Row, arithmetic_rows, hours_of
from node.lab.setup import DEFAULT, QUICK, setup_of
from node.lab.treatments import NOTHING, Case, Treatment, better, policies, treatment_of
from protocol.manifest import DataSection, Manifest
from protocol.recipes import recipe, weights_of

DATA = DataSection.model_validate({"train": [{"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19}]})
SQUARED = (50.0, 9e6, 4e6, 1e6, 16e6)
"""Squared norms of stages 0..4; sums over some thousand tokens."""


def a_run(swapped: bool = False) -> Manifest:
    return DEFAULT.manifest(DATA, 3, swapped)


def named(cases: list[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases}


def test_the_default_set_is_what_was_asked_for() -> None:
    assert len(DEFAULT.seeds) >= 3
    assert len(DEFAULT.warm_steps) >= 3
    assert DEFAULT.fork_steps >= 100
    for setup in (DEFAULT, QUICK, *(DEFAULT.with_layers(layers) for layers in (1, 2, 4))):
        assert setup_of(json.loads(json.dumps(setup.plain()))) == setup
        manifest = setup.manifest(DATA, 1, swapped=True)
        assert manifest.swapped
        assert manifest.batch.num_microbatches == 2
        assert len(manifest.blocks_of(1)) == setup.layers_per_stage
        assert min(setup.warm_steps) > max(setup.ages)
    assert DEFAULT.ages == (5, 10, 25, 50)


def test_results_lie_together_wherever_the_data_are_and_however_many_there_are() -> None:
    elsewhere = DATA.model_copy(update={"train": tuple(s.model_copy(update={"sources": ("/x",)}) for s in DATA.train)})
    assert DEFAULT.name(DATA) == DEFAULT.name(elsewhere) == replace(DEFAULT, seeds=(1,), fork_steps=9).name(DATA)
    assert len({setup.name(DATA) for setup in (DEFAULT, QUICK, DEFAULT.with_layers(4))}) == 3


def test_every_policy_does_what_it_does_in_a_swarm() -> None:
    cases = named([*policies(a_run(), SQUARED, False), *policies(a_run(swapped=True), SQUARED, True)])
    shadows = ["shadow_10", "shadow_10 at worst", "shadow_50", "shadow_50 at worst"]
    assert list(cases) == ["copy", "uniform", "random", "checkfree", *shadows, "checkfree_plus"]
    assert [case.swapped for case in cases.values()] == [False] * 8 + [True]
    for name in ("copy", "uniform", "checkfree", "checkfree_plus"):
        manifest = a_run().model_copy(update={"recovery": a_run().recovery.model_copy(update={"policy": name})})
        weights = weights_of(SQUARED, manifest.batch.tokens_per_step, manifest)
        for lost, treatment in cases[name].by_stage.items():
            made = recipe(lost, {1, 2, 3, 4} - {lost}, [""] * 5, weights, manifest)
            assert treatment == Treatment("mix", tuple((s.stage, s.coefficient) for s in made.sources), lr_factor=1.1)
    assert cases["checkfree"].by_stage[2].sources == ((1, 0.75), (3, 0.25))
    assert cases["copy"].by_stage[3].sources == ((2, 1.0),)
    assert cases["random"].by_stage == dict.fromkeys((1, 2, 3, 4), Treatment("drawn", lr_factor=1.1))
    ages = {name: {t.age for t in cases[name].by_stage.values()} for name in shadows}
    assert ages == {"shadow_10": {5}, "shadow_10 at worst": {10}, "shadow_50": {25}, "shadow_50 at worst": {50}}


def test_an_outer_stage_is_gone_through_once_for_all_that_copy_its_neighbour() -> None:
    cases = named(policies(a_run(), SQUARED, False))
    for outer in (1, 4):
        assert len({cases[name].by_stage[outer].key for name in ("copy", "uniform", "checkfree")}) == 1
    assert len({cases[name].by_stage[2].key for name in ("copy", "uniform", "checkfree")}) == 3


CHANGED = {
    "moments averaged": {"moments"},
    "lr_factor 1.0": {"lr_factor"},
    "lr_factor 1.1, decays in 50": {"lr_decay_steps"},
    "lr_factor 1.5": {"lr_factor"},
    "lr_factor 1.5, decays in 50": {"lr_factor", "lr_decay_steps"},
    "warm-up of 20": {"warmup"},
    "residual x 0.5": {"residual"},
    "residual x 0": {"residual"},
}


def test_changes_to_checkfree_are_told_by_their_names() -> None:
    cases = named(better(a_run(), SQUARED))
    plain = cases["checkfree"].by_stage
    assert plain == named(policies(a_run(), SQUARED, False))["checkfree"].by_stage
    assert list(cases) == ["checkfree", "weighting clipped", "weighting uniform", *CHANGED]
    assert cases["weighting uniform"].by_stage[2].sources == ((1, 0.5), (3, 0.5))
    assert dict(cases["weighting clipped"].by_stage[2].sources)[1] == pytest.approx(1.0001 / (1.0001 + 1000 / 1024 + 1e-4))
    for name, changed in CHANGED.items():
        for stage, treatment in cases[name].by_stage.items():
            before, after = asdict(plain[stage]), asdict(treatment)
            assert {key for key in before if before[key] != after[key]} == changed


@pytest.mark.parametrize(
    "treatment",
    [NOTHING, Treatment("mix", ((1, 0.1), (3, 0.9)), lr_factor=1.1), Treatment("own", age=10), Treatment("drawn", warmup=5)],
)
def test_a_treatment_comes_back_from_json(treatment: Treatment) -> None:
    assert treatment_of(json.loads(json.dumps(treatment.plain()))) == treatment
    assert treatment.key == json.dumps(treatment.plain(), sort_keys=True)


# ---- raw results ----

ONE = reference_name(1, False, 300, (100, 200)) | {"losses": [2.0, 1.0], "norms": {"100": [1.0]}}
TWO = fork_name(1, False, 100, 40, 2, Treatment("own", age=10)) | {"losses": [1.5]}


def test_what_is_kept_is_found_again_by_its_name(tmp_path: Path) -> None:
    raw = Raw(tmp_path / "a" / "raw.jsonl")
    for result in (ONE, TWO):
        raw.add(result)
    again = Raw(raw.path)
    for found in (raw, again):
        assert found.get(reference_name(1, False, 300, [100, 200])) == ONE
        assert found.get(fork_name(1, False, 100, 40, 2, Treatment("own", age=10))) == TWO
        assert found.get(fork_name(1, False, 100, 40, 2, Treatment("own", age=5))) is None
        assert found.get(fork_name(1, False, 100, 41, 2, Treatment("own", age=10))) is None


@pytest.mark.parametrize("torn", [1, 20])
def test_a_torn_last_line_is_done_again_and_spoils_nothing(tmp_path: Path, torn: int) -> None:
    raw = Raw(tmp_path / "raw.jsonl")
    raw.add(ONE)
    raw.add(TWO)
    raw.path.write_bytes(raw.path.read_bytes()[:-torn])
    again = Raw(raw.path)
    assert (again.get(ONE), again.get(TWO)) == (ONE, TWO if torn == 1 else None)
    again.add(TWO)
    assert (Raw(raw.path).get(ONE), Raw(raw.path).get(TWO)) == (ONE, TWO)


# ---- workers ----


def test_each_worker_has_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker"
    worker.write_text('#!/bin/sh\nwhile read -r line; do echo "[\\"$OMP_NUM_THREADS\\", \\"$PATH\\"]"; done\n')
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    told: list[Any] = []
    do_all([{}, {}, {}], 2, Boss(told.append))
    assert told == [["1", os.environ["PATH"]]] * 3


# ---- the report ----


def test_the_report_names_every_policy_with_its_error() -> None:
    row = Row("checkfree", Mean(12.345, 1.5, 9), Mean(3.0, 0.25, 9), {1: Mean(20.0, 2.0, 9)}, {300: Mean(4.0, None, 1)})
    rows = [Row("none", Mean(0.0, 0.0, 9)), row, *arithmetic_rows()]
    tax = Mean(0.25, 0.05, 3)
    told = hours_of(rows[1:], tax, Run(failing_stages=64))
    found = Measured(DEFAULT, rows, tax, told, Run(failing_stages=64), [row])
    text, plain = found.markdown(), json.loads(json.dumps(found.plain(), allow_nan=False))
    assert "| checkfree | 12.3 ± 1.5 | 3.0 ± 0.25 | 20.0 ± 2 |  |  |  | 4.0 |" in text
    assert "takes 25.0 ± 5 % more steps" in text
    assert "never" in text
    assert "Derived, not measured" in text
    assert "A step under redundant takes 1.65 times as long (paper)." in text
    mine = replace(found, run=Run(redundant_factor=1.35, redundant_source="results.json"))
    assert "A step under redundant takes 1.35 times as long (results.json)." in mine.markdown()
    assert plain["policies"]["checkfree"]["lost_steps_per_failure"] == {"mean": 12.345, "stderr": 1.5, "n": 9}
    assert plain["policies"]["redundant"]["excess_loss"] is None
    assert None in plain["derived"]["hours"]["checkfree"].values()
    assert plain["setup"]["fork_steps"] == DEFAULT.fork_steps


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--layers", "3"), "use 1, 2 or 4"),
        (("--warm", "50"), "--warm"),
        (("--jobs", "0"), "--jobs"),
        (("--fork-steps", "0"), "--fork-steps"),
    ],
)
def test_bad_words_get_one_line(words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "forks", "--work", str(tmp_path), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
