"""`regrow lab grid` as a command: a run is done once, a missing one when it is called again; and what is reported of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools.command import regrow

LIMIT_S = 500


@pytest.mark.full
@pytest.mark.timeout(3 * LIMIT_S)
def test_runs_are_done_once(tmp_path: Path) -> None:
    words = ("lab", "grid", "--quick", "--work", tmp_path / "work", "--policy", "none", "--policy", "checkfree")
    first = regrow(*words, "--rate", "0", limit_s=LIMIT_S)
    assert first.code == 0, first.err
    told = json.loads(first.out.splitlines()[-1])
    assert (told["runs"], told["done"], told["done_now"]) == (1, 1, 1)

    second = regrow(*words, limit_s=LIMIT_S)
    assert second.code == 0, second.err
    told = json.loads(second.out.splitlines()[-1])
    assert (told["runs"], told["done"], told["done_now"]) == (2, 2, 1)
    raw = Path(told["raw"])
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [(line["policy"], line["rate"], line["seed"]) for line in lines] == [("none", "0", 0), ("checkfree", "16", 0)]
    struck = lines[1]["outcome"]
    assert len(struck["failures"]) >= 2
    rebuilt = {line["stage"] for line in struck["story"] if line["type"] == "rebuild"}
    assert rebuilt == {failure["stage"] for failure in struck["failures"]}
    assert all(line["outcome"]["executed"] == len(line["losses"]) for line in lines)
    assert lines[0]["losses"][0] == lines[1]["losses"][0]

    out = tmp_path / "out"
    reported = regrow("lab", "report", "--quick", "--raw", raw, "--out", out, limit_s=LIMIT_S)
    assert reported.code == 0, reported.err
    results = json.loads((out / "results.json").read_text())
    assert results["raw"] == "../work/grid.jsonl"
    assert set(results["policies"]) == {"none", "checkfree"}
    assert results["policies"]["checkfree"]["16"]["failures"]["mean"] == len(struck["failures"])
    assert results["policies"]["none"]["0"]["steps_to_target"]["reached"] == 1
    assert {path.name for path in out.iterdir()} == {"report.md", "results.json", "loss-over-hours.svg", "hours-to-target.svg"}
    advised = regrow("advise", "--stage-mb", "268", "--results", out / "results.json")
    assert (advised.code, "| checkfree |" in advised.out) == (0, True)

    raw.write_text(raw.read_text()[:-100])
    third = json.loads(regrow(*words, limit_s=LIMIT_S).out.splitlines()[-1])
    assert (third["done"], third["done_now"]) == (2, 1)
