"""Policy redundant: stages that are lost, one by one or several at once that are not next to each other, come back by promotion
and are copied again; none is rebuilt (the invariants hold after every event)."""

from __future__ import annotations

from collections import Counter

import pytest

from node.sim.machine import BrokenError
from node.sim.redundancy import Redundant

SEEDS = range(12)
MORE_SEEDS = range(1000, 1060)


def live_through(seeds: range, tally: Counter[str]) -> Counter[str]:
    """Run them all; fail at the end with what to type for each that broke."""
    counts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            counts += Redundant(seed).run().counts
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
    tally.update({f"redundant {what}": count for what, count in counts.items()})
    told = "\n".join(broken[:5])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    return counts


def check(counts: Counter[str], num_seeds: int) -> None:
    assert counts["killed"] >= 2 * num_seeds
    assert counts["promotion"] >= counts["stages lost"] // 2 >= num_seeds // 2
    assert counts["left"] and counts["joined"] and counts["at once"]
    assert counts["passed twice"] >= 100 * num_seeds
    assert not counts["rebuilds"] and not counts["recovery"]


@pytest.mark.timeout(240)
def test_nothing_is_lost_as_long_as_a_copy_of_each_stage_lives(tally: Counter[str]) -> None:
    check(live_through(SEEDS, tally), len(SEEDS))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_nothing_is_lost_in_more_seeds(tally: Counter[str]) -> None:
    check(live_through(MORE_SEEDS, tally), len(MORE_SEEDS))
