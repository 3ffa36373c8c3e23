"""Swarms that people walk in and out of while they train: joins, leaves, kills, restarts and pauses every few steps, as long as
each stage keeps a replica. `node.sim.invariants` is checked after every event, `node.sim.churn` says what must come of it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from node.sim.churn import DISTURBANCES, KINDS, Churn, live_through
from node.sim.machine import BrokenError

SEEDS = range(24)
MORE_SEEDS = range(1000, 1080)
MAX_TOLD = 5


def live_through_all(seeds: range, tally: Counter[str]) -> Counter[str]:
    """Run them all; fail at the end with what to type for each that broke."""
    mine: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            lived = live_through(seed)
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
            continue
        mine.update(churned=1, commits=lived.commits, events=lived.events)
        mine.update({f"churn {what}": count for what, count in lived.counts.items()})
    tally.update(mine)
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    return mine


def check_counts(counts: Counter[str], num_seeds: int) -> None:
    disturbed = sum(counts[f"churn {kind}"] for kind in set(KINDS))
    assert disturbed >= DISTURBANCES * num_seeds, f"{disturbed} disturbances in {num_seeds} seeds: {counts}"
    for kind in (*KINDS, "join_slow"):
        assert counts[f"churn {kind}"] >= num_seeds // 2, f"{kind} happened {counts[f'churn {kind}']} times only"
    assert counts["churn copies"] > counts["churn join"], "newcomers copy at least one state each"
    for what in ("sums", "shares", "states", "quorums"):
        assert counts[f"churn {what}"] > counts["commits"], f"the invariants hardly looked at {what}"


def test_some_of_these_swarms_hold_everything_twice() -> None:
    policies = Counter(Churn(seed).manifest.recovery.policy for seed in SEEDS)
    assert policies["redundant"] >= 2 and len(policies) > 2


@pytest.mark.timeout(150)
def test_people_walk_in_and_out(tally: Counter[str]) -> None:
    check_counts(live_through_all(SEEDS, tally), len(SEEDS))


@pytest.mark.full
@pytest.mark.timeout(900)
def test_more_people_walk_in_and_out(tally: Counter[str]) -> None:
    counts = live_through_all(MORE_SEEDS, tally)
    check_counts(counts, len(MORE_SEEDS))
    assert counts["churn copies_failed"], "no donor ever died while it was copied from"
