"""Simulated swarms under policy `shadow` that lose stages: whichever, stage 0 and neighbours among them, they come back, of
chunks that are close enough, or of their neighbours where there are none; the invariants are checked after every event."""

from __future__ import annotations

from collections import Counter

import pytest

from node.sim.machine import BrokenError
from node.sim.shadow_life import ShadowLife

SEEDS = range(48)
MORE_SEEDS = range(1000, 1200)
MAX_TOLD = 5


def live_through(seeds: range, tally: Counter[str]) -> Counter[str]:
    """Run them all; fail at the end with what to type for each that broke."""
    counts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            counts += ShadowLife(seed).run().counts
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
    tally.update({f"shadow {what}": count for what, count in counts.items()})
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    return counts


def check(counts: Counter[str], num_seeds: int) -> None:
    """What was asked for did happen."""
    assert counts["of shadows"] >= counts["shadow"] >= num_seeds // 2
    assert counts["restored of several steps"] >= num_seeds // 8
    assert counts["recovery"] >= num_seeds // 16, "some were not whole"
    assert counts["killed with stage 0"] >= num_seeds // 8


@pytest.mark.timeout(240)
def test_lost_stages_are_restored_of_what_others_kept(tally: Counter[str]) -> None:
    check(live_through(SEEDS, tally), len(SEEDS))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_more_of_them_are_restored(tally: Counter[str]) -> None:
    check(live_through(MORE_SEEDS, tally), len(MORE_SEEDS))
