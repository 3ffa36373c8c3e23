"""A minute of chaos on real processes: nothing is lost or doubled, nobody differs, nothing is left. Speed is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.count import CLEAN
from tests.chaos.schedule import plan
from tests.tools.command import ROOT

MINUTES, SEED, LIMIT_S = 1.0, 1, 780.0


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S + 30)
def test_a_minute_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--minutes", str(MINUTES), "--seed", str(SEED), "--keep", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    print(ended.stderr, ended.stdout)
    assert ended.returncode == 0
    told = json.loads(ended.stdout)
    assert {name: told[name] for name in CLEAN} == dict.fromkeys(CLEAN, 0)
    assert told["steps"] > 0
    assert sum(told["faults_fired"].values()) >= len(plan(SEED, 60 * MINUTES)) // 2
