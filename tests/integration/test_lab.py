"""`regrow lab forks` as a command: measured once, told again, gone on with where it was left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools.command import regrow

POLICIES = (
    "none,copy,uniform,random,checkfree,shadow_10,shadow_10 at worst,shadow_50,shadow_50 at worst,checkfree_plus,"
    "checkpoint_10,checkpoint_100,redundant"
).split(",")
LIMIT_S = 500


@pytest.mark.full
@pytest.mark.timeout(2 * LIMIT_S)
def test_forks_are_measured_once_and_told_again(tmp_path: Path) -> None:
    words = ("lab", "forks", "--quick", "--work", tmp_path / "work")
    first = regrow(*words, limit_s=LIMIT_S)
    assert first.code == 0, first.err
    told = json.loads(first.out.splitlines()[-1])
    lost = told["lost_steps_per_failure"]["1"]
    assert list(lost) == POLICIES
    assert lost["none"] == {"mean": 0.0, "stderr": 0.0, "n": 2}
    assert all(lost[name]["n"] == 2 and lost[name]["stderr"] > 0 for name in POLICIES[1:10])
    results = json.loads(Path(told["results"]).read_text())["setups"][0]
    hurt = results["policies"]["random"]["excess_loss"]["mean"]
    assert hurt > results["policies"]["shadow_10"]["excess_loss"]["mean"], "weights of 5 steps ago are worth more than none"
    assert all(f"| {name} |" in first.out for name in POLICIES)
    assert Path(told["report"]).read_text() in first.out

    again = regrow(*words)
    told_again = json.loads(again.out.splitlines()[-1])
    assert told_again["measured_now"] == 0
    assert told_again["lost_steps_per_failure"] == told["lost_steps_per_failure"]

    [raw] = (tmp_path / "work").glob("*/raw.jsonl")
    lines = raw.read_text().splitlines(keepends=True)
    assert len(lines) == told["measured_now"]
    raw.write_text("".join(lines[:-2]) + lines[-2][:30])
    mended = json.loads(regrow(*words, limit_s=LIMIT_S).out.splitlines()[-1])
    assert mended["measured_now"] == 2
    assert mended["lost_steps_per_failure"] == told["lost_steps_per_failure"]


def test_bad_input_gets_one_line(tmp_path: Path) -> None:
    ended = regrow("lab", "forks", "--quick", "--work", tmp_path, "--data", tmp_path / "nowhere.txt")
    assert ended.code == 2
    assert "nowhere.txt" in ended.verdict
    (tmp_path / "file").write_text("")
    ended = regrow("lab", "forks", "--quick", "--work", tmp_path / "file", limit_s=120)
    assert ended.code == 2
    assert str(tmp_path / "file") in ended.verdict
