"""A stage whose last holder dies goes on from an older, exact state, where a replica comes back that kept one."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from node.sim.faults import Faults, Strike
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.machine import require
from node.sim.network import Network
from node.sim.nodes import NodeSpec
from node.sim.scenario import a_manifest
from node.sim.trial import real_state
from protocol.ids import Member
from protocol.manifest import from_mapping

LIMIT_S = 400.0
NUM_STAGES = 4


class Story:
    """Two replicas of stage 1: one is frozen and given up, the other goes on for so many steps and dies, the first thaws."""

    def __init__(self, seed: int, behind: int, stale_max_steps: int) -> None:
        rng = random.Random(f"older copy {seed}")
        data = a_manifest(rng, NUM_STAGES - 1, 1, 10_000, seed)
        data["recovery"] = {
            "policy": "checkfree",
            "embedding_copies": 2,
            "rebuild_grace_s": 20.0,
            "stale_max_steps": stale_max_steps,
        }
        self.manifest = from_mapping(data)
        self.behind = behind
        stages = [*range(NUM_STAGES), 1]
        names = [Member(f"peer{n:02d}", 1) for n in range(len(stages))]
        self.specs = [NodeSpec(m, m.peer, not n, s, 0.02) for n, (m, s) in enumerate(zip(names, stages, strict=True))]
        self.watch = Invariants(self.manifest, self.specs[0].member)
        faults = Faults().duplicate(0.02).reorder(0.02)
        self.world = World(self.manifest, rng, Network(rng, faults.weather), faults, self.watch, real_state)
        self.watch.now = lambda: self.world.now

    def until_step(self, step: int) -> None:
        require(self.world.run(lambda: self.watch.step >= step, LIMIT_S), f"no step {step}: {self._situation()}")

    def _situation(self) -> str:
        return "; ".join(f"{node!r}: {node.says}" for node in self.world.alive())

    def seats(self, peer: str) -> list[int]:
        return [stage for stage, member in self.watch.place.seats if member.peer == peer]

    def live(self) -> tuple[Counter[str], dict[int, str]]:
        """What was checked, and by which rung stages came back."""
        for spec in self.specs:
            self.world.boot(spec, 0.0)
        seated = self.world.run(lambda: len(self.watch.place.active(1)) == 2 and self.watch.step >= 2, LIMIT_S)
        require(seated, f"not two replicas: {self._situation()}")
        first, second = (self.world.nodes[member.peer] for member in self.watch.place.active(1))
        sleeper, other = (first, second) if self.world.rng.random() < 0.5 else (second, first)
        self.world.hit(sleeper, Strike("freeze", 1, 0, "forward", for_s=0.0, forgetful=True))
        dropped = self.world.run(lambda: self.seats(sleeper.peer) == [], LIMIT_S)
        require(dropped, f"the sleeper is not given up: {self._situation()}")
        self.until_step(self.watch.step + self.behind)
        self.world.hit(other, Strike("crash", 1, 0, "forward"))
        gone = self.world.run(lambda: self.seats(other.peer) == [], LIMIT_S)
        require(gone, f"the loss is not noticed: {self._situation()}")
        self.world._thaw(sleeper, forgetful=True)
        self.until_step(self.watch.step + 3)
        return self.watch.num_checked, {stage: rung for (stage, _, _), rung in self.watch.recovered.items()}


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_goes_on_from_an_older_state_of_its_own(seed: int, tally: Counter[str]) -> None:
    story = Story(seed, behind=1 + 2 * seed, stale_max_steps=50)
    checked, rungs = story.live()
    assert rungs.get(1) == "older_copy"
    assert checked["older copies"] == 1
    assert len(story.watch.place.active(1)) >= 1
    tally["older copies"] += checked["older copies"]


@pytest.mark.parametrize("most", [0, 3])
def test_a_state_that_is_too_old_is_not_gone_back_to(most: int) -> None:
    checked, rungs = Story(1, behind=6, stale_max_steps=most).live()
    assert checked["older copies"] == 0
    assert rungs.get(1) == "recovery"
