"""Only holders of stages go in order, where others have the room to compute their stages, or only to keep them, or neither;
with the invariants checked after every event, undisturbed or while somebody dies who has a part in it.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from node.sim.churn import Churn
from node.sim.leaving import FAULTS, NOTICE_S, ROOMS, Leaving
from node.sim.life import START_S
from node.sim.machine import BrokenError, require
from protocol.events import LeaveAsked

SEEDS = range(15)
MORE_SEEDS = range(1005, 1080)
MAX_TOLD = 5
MOMENT_S = 0.1


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


# ---- all at once ----


class AllAtOnce(Churn):
    """Two replicas of each stage, all of which are told to go within a moment."""

    def _data(self, rng: random.Random, stages: int) -> dict[str, Any]:
        data = super()._data(rng, stages)
        data["timing"]["leave_notice_s"] = NOTICE_S
        return data

    def seconds(self) -> float:
        """Until the last one is gone."""
        world, rng = self.world, self.rng
        for spec in self.specs:
            world.boot(spec, rng.uniform(0.0, 4.0) if spec.wished_stage else 0.0)
        require(world.run(lambda: self.watch.step >= 3, START_S), "it does not start")
        world.run(lambda: False, rng.uniform(0.0, 3.0))
        nodes, told_at = world.alive(), world.now
        for node in nodes:
            world.post(told_at + rng.uniform(0.0, MOMENT_S), node, world.handle, node, LeaveAsked("all go"))
        require(world.run(lambda: all(node.dead for node in nodes), 2 * NOTICE_S), "they do not go")
        assert {node.exit.code for node in nodes if node.exit} == {0}
        return world.now - told_at


@pytest.mark.timeout(60)
def test_nobody_waits_for_a_successor_that_goes_too() -> None:
    """The last holder of a stage would, until its notice is over, where the coordinator that could tell it has gone first."""
    took = [AllAtOnce(seed).seconds() for seed in range(10)]
    assert max(took) <= MOMENT_S + 2.0, took
