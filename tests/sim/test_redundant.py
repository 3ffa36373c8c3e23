"""Policy redundant: stages that are lost, one by one or several at once that are not next to each other, come back by promotion
and are copied again; none is rebuilt (the invariants hold after every event)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from node.sim.machine import BrokenError
from node.sim.nodes import NodeSpec
from node.sim.redundancy import ExactShadow, Redundant

SEEDS = range(6)
WARM, STEPS = 3, 12
MORE_SEEDS = range(1000, 1060)


def live_through(seeds: range, tally: Counter[str], life: type[Redundant] = Redundant) -> Counter[str]:
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
    check(live_through(MORE_SEEDS, tally), len(MORE_SEEDS))
    check(live_through(MORE_SEEDS, tally, ExactShadow), len(MORE_SEEDS), passes=0)
