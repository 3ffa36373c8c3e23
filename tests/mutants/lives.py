"""`python -m tests.mutants.lives --most 222`: simulated swarms of all kinds in turn, until one breaks.

Run in a changed copy of the tree, where the first that breaks is enough. Seeds are those that `make test` lives through; beside
these swarms `tests/sim` has less than eighty of its own in tests that look at more than whether all held.
"""

from __future__ import annotations

import argparse
import signal
import sys
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
ENDLESS = "this swarm comes to no end"
MOST = sum(KINDS.values())


def schedule(most: int) -> list[tuple[str, int]]:
    """(kind, seed) for so many lives, the kinds spread evenly over them."""
    lives = [((seed + 0.5) / count, kind, seed) for kind, count in KINDS.items() for seed in range(count)]
    return [(kind, seed) for _, kind, seed in sorted(lives)[:most]]


def _give_up(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"{ENDLESS}: over {LIMIT_CPU_S:.0f} s of computing")


def main() -> int:
    """0 if all held; what breaks is raised."""
    signal.signal(signal.SIGVTALRM, _give_up)
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.lives", description=__doc__)
    parser.add_argument("--most", type=int, default=MOST, help="how many swarms at most")
    for kind, seed in schedule(parser.parse_args().most):
        print(f"{kind} {seed}", flush=True)
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_CPU_S)
        make_life(kind, Options(seed)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
