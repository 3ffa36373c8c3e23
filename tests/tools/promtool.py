"""Prometheus' own tools (Debian's package `prometheus`), for what only they can say of rules, metrics and expressions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules"
LIMIT_S = 300


def tool(name: str) -> str:
    """Path of `promtool` or `prometheus`. Skips the test where it is not installed, which counts as a failure in CI."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package `prometheus` has it)")
    return found


def promtool(*args: str | Path, stdin: str = "") -> tuple[int, str]:
    """(exit code, all that it said)."""
    done = subprocess.run(
        [tool("promtool"), *map(str, args)],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout
