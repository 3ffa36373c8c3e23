"""Swarms with one replica per stage lose stages in every phase of a step, in the grace and while others are rebuilt, and regrow
them: each (stages, phase) cell many times, with the invariants checked after every event and a bound on the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from node.sim.machine import BrokenError
from node.sim.regrowth import WHEN, WHICH, Regrown, Regrowth

SEEDS = range(100)
MORE_SEEDS = range(1000, 1120)
MAX_TOLD = 5


def live_through(seeds: range, tally: Counter[str]) -> Counter[str]:
    """Run them all, print the table of cells; fail at the end with what to type for each that broke."""
    cells: defaultdict[tuple[str, str], list[Regrown]] = defaultdict(list)
    counts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            lived = Regrowth(seed).run()
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
            continue
        cells[lived.cell].append(lived)
        counts += lived.counts
    tally.update({f"regrowth {what}": count for what, count in counts.items()})
    tally.update({"regrowth seeds": len(seeds)})
    for which in WHICH:
        row = [f"{when} {len(cells[which, when])}" for when in WHEN]
        print(f"{which:>16}: {', '.join(row)}")
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    for which in WHICH:
        for when in WHEN:
            assert cells[which, when], f"nothing was tried of {which}, {when}"
    return counts


def check(counts: Counter[str], num_seeds: int) -> None:
    assert counts["rebuilds"] >= num_seeds // 2
    assert counts["regrown"] >= num_seeds // 2
    assert counts["mixed ahead"] >= num_seeds // 4
    assert counts["recovery"] >= num_seeds // 2
    assert counts["promotion"] >= num_seeds // 4
    assert counts["killed too"] >= num_seeds // 4
    assert sum(counts[f"killed in {when}"] for when in WHEN) == num_seeds


@pytest.mark.timeout(150)
def test_lost_stages_regrow(tally: Counter[str]) -> None:
    check(live_through(SEEDS, tally), len(SEEDS))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_more_lost_stages_regrow(tally: Counter[str]) -> None:
    check(live_through(MORE_SEEDS, tally), len(MORE_SEEDS))
