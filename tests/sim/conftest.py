"""Counts of the simulated seeds, told at the end of the session."""

from __future__ import annotations

from collections import Counter

import pytest

TALLY = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Counter()


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Counter[str]:
    """Add to it what should be told."""
    return pytestconfig.stash.setdefault(TALLY, Counter())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(TALLY, Counter())
    if counts:
        told = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
        terminalreporter.write_line(f"simulated swarms: {told}")
