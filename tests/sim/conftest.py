"""Counts of the simulated seeds, told at the end of the session; those of several worker processes together."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

TALLY = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Counter()


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Counter[str]:
    """Add to it what should be told."""
    return pytestconfig.stash.setdefault(TALLY, Counter())


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tally"] = dict(session.config.stash.get(TALLY, Counter()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker process has ended."""
    node.config.stash[TALLY].update(getattr(node, "workeroutput", {}).get("tally", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(TALLY, Counter())
    if counts:
        told = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
        terminalreporter.write_line(f"simulated swarms: {told}")
