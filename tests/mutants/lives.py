"""Simulated swarms of all kinds in turn, until one breaks.

Run where a mutant is loose; the first that breaks is enough. Seeds are those that `make test` lives through; beside
these swarms `tests/sim` has less than eighty of its own in tests that look at more than whether all held.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from node.sim.lives import make_life
from node.sim.mixture import Options

KINDS = {"static": 70, "regrowth": 75, "parting": 30, "churn": 20, "leaving": 15, "mixed": 12}
"""How many seeds of each life, from 0."""
SWEEPS = (
    "test_static_swarm.py",
    "test_regrowth.py",
    "test_parting.py",
    "test_churn.py",
    "test_leaving.py",
    "test_mixed.py",
)
"""Files of tests/sim that do the same."""
LIMIT_CPU_S = 40.0
"""For one life; without a mutant none takes a tenth of it."""
MOST = sum(KINDS.values())


class NoEnd(BaseException):
    """A life comes to no end. Not an `Exception`, so that nothing on the way takes it for a defect of a node."""


def schedule(most: int) -> list[tuple[str, int]]:
    """(kind, seed) for so many lives, the kinds spread evenly over them."""
    lives = [((seed + 0.5) / count, kind, seed) for kind, count in KINDS.items() for seed in range(count)]
    return [(kind, seed) for _, kind, seed in sorted(lives)[:most]]


def _give_up(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise NoEnd(f"this swarm comes to no end: over {LIMIT_CPU_S:.0f} s of computing")


def live(tell: Callable[[str], object], most: int = MOST) -> None:
    """One after another, each told before it begins. What breaks is raised, and `NoEnd`."""
    before = signal.signal(signal.SIGVTALRM, _give_up)
    try:
        for kind, seed in schedule(most):
            tell(f"{kind} {seed}")
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_CPU_S)
            make_life(kind, Options(seed)).run()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
