"""A stage whose last holder dies goes on from an older, exact state, where a replica comes back that kept one: one that was
frozen, or one whose lineage gave way to that of the others.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from node.sim.faults import Faults, Strike
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.machine import require
from node.sim.network import Network
from node.sim.nodes import NodeSpec, SimNode, chain_of, real_state
from node.sim.scenario import a_manifest
from protocol.ids import Member
from protocol.manifest import from_mapping

LIMIT_S = 400.0
NUM_STAGES = 4


class Story:
    """Two replicas of a stage: one is frozen and given up, the other goes on for so many steps and dies, the first thaws."""

    def __init__(self, seed: int, behind: int, stale_max_steps: int, stage: int = 1) -> None:
        rng = random.Random(f"older copy {seed}")
        data = a_manifest(rng, NUM_STAGES - 1, 1, 10_000, seed)
        data["recovery"] = {
            "policy": "checkfree",
            "embedding_copies": 2 if stage else 0,
            "rebuild_grace_s": 20.0,
            "stale_max_steps": stale_max_steps,
        }
        self.manifest = from_mapping(data)
        self.behind, self.stage = behind, stage
        stages = [*range(NUM_STAGES), stage]
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
        seated = self.world.run(lambda: len(self.watch.place.active(self.stage)) == 2 and self.watch.step >= 2, LIMIT_S)
        require(seated, f"not two replicas: {self._situation()}")
        first, second = (self.world.nodes[member.peer] for member in self.watch.place.active(self.stage))
        sleeper, other = (first, second) if self.world.rng.random() < 0.5 else (second, first)
        self.world.hit(sleeper, Strike("freeze", self.stage, 0, "forward", for_s=0.0, forgetful=True))
        dropped = self.world.run(lambda: self.seats(sleeper.peer) == [], LIMIT_S)
        require(dropped, f"the sleeper is not given up: {self._situation()}")
        self.until_step(self.watch.step + self.behind)
        self.world.hit(other, Strike("crash", self.stage, 0, "forward"))
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


@pytest.mark.parametrize("seed", range(4))
def test_stage_0_goes_on_from_an_older_state_where_no_copy_is_left(seed: int, tally: Counter[str]) -> None:
    story = Story(seed, behind=1 + 2 * seed, stale_max_steps=50, stage=0)
    checked, rungs = story.live()
    assert rungs.get(0) == "older_copy"
    assert checked["older copies"] == 1
    tally["older copies of stage 0"] += 1


@pytest.mark.parametrize("most", [0, 3])
def test_a_state_that_is_too_old_is_not_gone_back_to(most: int) -> None:
    checked, rungs = Story(1, behind=6, stale_max_steps=most).live()
    assert checked["older copies"] == 0
    assert rungs.get(1) == "recovery"


# ---- of a lineage that gave way ----


class Loser:
    """Two replicas of stage 1. The one with a copy of the embedding is cut off for longer than `fork_after_s`, parts, and meets
    the others again: it gives way, for it has parted with a loss. Then the other replica dies. The state of the loser is one
    that the stage had, if it `trained` no step alone; else it never was."""

    def __init__(self, seed: int, trained: bool) -> None:
        self.rng = rng = random.Random(f"loser {seed} {trained}")
        data = a_manifest(rng, NUM_STAGES - 1, 1, 10_000, seed)
        grace_s = 2.0 if trained else 60.0
        data["recovery"] = {"policy": "checkfree", "embedding_copies": 2, "rebuild_grace_s": grace_s, "newcomer_wait_s": 1.0}
        data["timing"]["fork_after_s"] = 4.0
        data["evaluation"]["every_steps"] = 0
        self.manifest, self.trained = from_mapping(data), trained
        stages = [*range(NUM_STAGES), 1]
        names = [Member(f"peer{n:02d}", 1) for n in range(len(stages))]
        self.specs = [NodeSpec(m, m.peer, not n, s, 0.05) for n, (m, s) in enumerate(zip(names, stages, strict=True))]
        self.watch = Invariants(self.manifest, self.specs[0].member)
        self.faults = Faults().duplicate(0.02).reorder(0.02)
        self.world = World(self.manifest, rng, Network(rng, self.faults.weather), self.faults, self.watch, real_state)
        self.watch.now, self.watch.reaches = (lambda: self.world.now), self.world.reaches

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        says = "; ".join(f"{n!r} step {chain_of(n).step} {chain_of(n).lineage[:4]}: {n.says}" for n in self.world.alive())
        require(self.world.run(holds, LIMIT_S), f"not so: {what}; it was {says}")

    def is_covered(self) -> bool:
        place = self.watch.place
        return len(place.active(1)) == 2 and len(place.holders(0)) == 3 and place.step >= 2

    def gave_way(self, node: SimNode) -> bool:
        return any(who == repr(node) and getattr(what, "type", "") == "yielded" for _, who, what in self.world.story)

    def live(self) -> tuple[Counter[str], dict[int, str]]:
        """What was checked, and by which rung stages came back."""
        world, watch = self.world, self.watch
        for spec in self.specs:
            world.boot(spec, 0.0)
        self.until("two replicas, and two copies of the embedding", self.is_covered)
        first, second = (world.nodes[member.peer] for member in watch.place.active(1))
        loser, other = (first, second) if first.spec.member in watch.place.holders(0) else (second, first)
        lead, begins = world.nodes[self.specs[0].member.peer], self.watch.step
        for node in world.alive():
            if node is not loser:
                self.faults.cut((loser.peer, node.peer), (world.now, world.now + 10 * LIMIT_S))
        steps = 2 if self.trained else 0
        self.until("the others go on", lambda: chain_of(lead).step >= begins + 3)
        self.until("it parts", lambda: chain_of(loser).lossy_forks == 1 and chain_of(loser).step >= begins + 2 * steps)
        self.faults.weather.cuts.clear()
        self.until("it gives way", lambda: self.gave_way(loser))
        world.hit(other, Strike("crash", 1, 0, "forward"))
        wanted = chain_of(lead).step + 3
        self.until("the others go on", lambda: chain_of(lead).step >= wanted)
        assert chain_of(lead).lineage == "", "the lineage of those that lost nothing"
        return self.watch.num_checked, {stage: rung for (stage, _, _), rung in self.watch.recovered.items()}


@pytest.mark.parametrize("seed", range(4))
def test_a_lost_stage_goes_on_from_what_a_losing_lineage_held_when_they_parted(seed: int, tally: Counter[str]) -> None:
    checked, rungs = Loser(seed, trained=False).live()
    assert rungs.get(1) == "older_copy"
    assert (checked["older copies"], checked["forks with a loss"]) == (1, 1)
    tally["older copies of a losing lineage"] += 1


@pytest.mark.parametrize("seed", range(2))
def test_what_a_losing_lineage_trained_alone_is_no_copy(seed: int) -> None:
    """Of the same step, and with another state_id: the stage had no such state."""
    checked, rungs = Loser(seed, trained=True).live()
    assert checked["older copies"] == 0
    assert rungs.get(1) == "recovery"
