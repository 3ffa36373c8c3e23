"""Only holders of stages go in order, where others have the room to compute their stages, or only to keep them, or neither;
with the invariants checked after every event, undisturbed or while somebody dies who has a part in it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from node.sim.leaving import FAULTS, ROOMS, Leaving
from node.sim.machine import BrokenError

SEEDS = range(15)
MORE_SEEDS = range(1005, 1155)
MAX_TOLD = 5


def live_through(seeds: range, tally: Counter[str]) -> None:
    counts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            counts += Leaving(seed).run().counts
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
    tally.update({f"leaving {what}": count for what, count in counts.items()})
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    for room in ROOMS:
        for fault in FAULTS:
            assert counts[f"{room}, {fault}"], f"nothing was tried of {room}, {fault}"
    for what in ("parked", "exact", "went on", "went on with newcomers"):
        assert counts[what] >= len(seeds) // 10, f"too few: {what}"
    for fault in set(FAULTS) - {"none"}:
        assert counts[f"killed {fault}"], f"no {fault} was killed"


@pytest.mark.timeout(60)
def test_stages_are_handed_over_or_parked(tally: Counter[str]) -> None:
    live_through(SEEDS, tally)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_more_stages_are_handed_over_or_parked(tally: Counter[str]) -> None:
    live_through(MORE_SEEDS, tally)
