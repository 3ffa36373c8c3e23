"""`make bench-recovery` measures: its smallest cell, with the names that scripts read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LIMIT_S = 170.0
NAMES = [
    "heartbeat_s",
    "detect_s",
    "step_s",
    "stage_bytes",
    "kill_to_commit_s",
    "transfer_s",
    "link_share",
    "download_over_stage",
]


@pytest.mark.full
@pytest.mark.timeout(180)
def test_the_last_line_tells_how_the_smallest_cell_went() -> None:
    command = [sys.executable, "-m", "tests.bench_recovery", "--cell", "tiny-loopback"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert list(told) == NAMES
    assert told["heartbeat_s"] == 1.0
    assert 2.0 < told["detect_s"] < told["kill_to_commit_s"], "silent for a lapse, less the heartbeat that came before the kill"
    assert told["stage_bytes"] > 0
    assert 0 < told["transfer_s"] < told["kill_to_commit_s"] - told["detect_s"]
    assert told["link_share"] is told["download_over_stage"] is None, "nothing is emulated there"
