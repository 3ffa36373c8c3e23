"""Swarms that lose stages under policy `checkpoint` in every phase, and go back to what was saved, with the invariants checked
after every event: saves that fail, files that are damaged, a store that cannot be looked at, a coordinator that goes too.
"""

from __future__ import annotations

from collections import Counter

import pytest

from node.sim.going_back import GoingBack
from node.sim.machine import BrokenError

SEEDS = range(48)
MORE_SEEDS = range(1000, 1150)
MAX_TOLD = 5


def live_through(seeds: range, tally: Counter[str]) -> Counter[str]:
    """Run them all; fail at the end with what to type for each that broke."""
    counts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            counts += GoingBack(seed).run().counts
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
    tally.update({f"going back {what}": count for what, count in counts.items()})
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    return counts


def check(counts: Counter[str], num_seeds: int) -> None:
    """What was asked for did happen."""
    assert counts["rollbacks"] >= num_seeds
    assert counts["checkpoint"] >= num_seeds
    assert counts["restored"] >= 5 * num_seeds
    assert counts["repeated"] >= num_seeds
    assert counts["killed too"] >= num_seeds // 4
    for what in ("saves failed", "found damaged", "could not look"):
        assert counts[what] >= num_seeds // 10, what


@pytest.mark.timeout(120)
def test_everybody_goes_back(tally: Counter[str]) -> None:
    check(live_through(SEEDS, tally), len(SEEDS))


@pytest.mark.full
@pytest.mark.timeout(300)
def test_more_of_them_go_back(tally: Counter[str]) -> None:
    check(live_through(MORE_SEEDS, tally), len(MORE_SEEDS))
