"""Policy redundant: stages that are lost, one by one or several at once that are not next to each other, come back by promotion
and are copied again; none is rebuilt (the invariants hold after every event)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from node.sim.machine import BrokenError
from node.sim.nodes import NodeSpec
from node.sim.redundancy import ExactShadow, Redundant

SEEDS = range(6)
WARM, STEPS = 3, 12
MORE_SEEDS = range(1000, 1060)
BROKEN = {Redundant: (1039, 1049), ExactShadow: (1002, 1015, 1018, 1027, 1039, 1053)}
"""Of them, those that are known to break: a stage's live holder is relieved of it in favour of others that are dead and not yet
lost; or a copy stays where another node should hold it. Each must break while it is named here."""


def live_through(seeds: Sequence[int], tally: Counter[str], life: type[Redundant] = Redundant) -> Counter[str]:
    """Run them all; fail at the end with what to type for each that broke."""
    counts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            counts += life(seed).run().counts
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
    tally.update({f"{life.name} {what}": count for what, count in counts.items()})
    told = "\n".join(broken[:5])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    return counts


def check(counts: Counter[str], num_seeds: int, passes: int = 100) -> None:
    assert counts["killed"] >= 2 * num_seeds
    assert counts["promotion"] >= counts["stages lost"] // 2 >= num_seeds // 2
    assert counts["left"] and counts["joined"] and counts["at once"]
    assert counts["passed twice"] >= passes * num_seeds
    assert not counts["rebuilds"] and not counts["recovery"]


class Busy(Redundant):
    """Slow machines and many microbatches: what is computed is most of a step."""

    policy = "redundant"

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        data["batch"] |= {"global_samples": 24, "max_in_flight": 0}
        return data | {"recovery": {"policy": self.policy}}

    def _spec(self, peer: str, founder: bool, stage: int) -> NodeSpec:
        return replace(super()._spec(peer, founder, stage), unit_s=0.1)


class Single(Busy):
    """The same swarm without copies."""

    policy = "none"


def seconds(life: Redundant) -> float:
    """What undisturbed steps take."""
    life.calm(WARM)
    began = life.world.now
    life.calm(WARM + STEPS)
    return life.world.now - began


def test_the_pass_that_is_run_twice_is_in_the_time_of_a_step() -> None:
    """Forward and backward take 1 and 2, so three become four where a stage's work is what a step waits for."""
    ratios = [seconds(Busy(seed)) / seconds(Single(seed)) for seed in range(3)]
    print([f"{ratio:.2f}" for ratio in ratios])
    assert all(1.1 < ratio < 1.4 for ratio in ratios), ratios


@pytest.mark.timeout(240)
def test_nothing_is_lost_as_long_as_a_copy_of_each_stage_lives(tally: Counter[str]) -> None:
    check(live_through(SEEDS, tally), len(SEEDS))


@pytest.mark.timeout(240)
def test_nothing_is_lost_under_exact_shadows_either(tally: Counter[str]) -> None:
    """Without second passes."""
    check(live_through(SEEDS, tally, ExactShadow), len(SEEDS), passes=0)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_nothing_is_lost_in_more_seeds(tally: Counter[str]) -> None:
    for life, passes in ((Redundant, 100), (ExactShadow, 0)):
        for seed in BROKEN[life]:
            with pytest.raises(BrokenError):
                life(seed).run()
        whole = [seed for seed in MORE_SEEDS if seed not in BROKEN[life]]
        check(live_through(whole, tally, life), len(whole), passes)
