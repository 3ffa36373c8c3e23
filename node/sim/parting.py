"""One seed of a swarm that is parted in two for a while: each side goes on by itself if it can, and they become one again. The
lineage survives that parted less often with a loss.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from node.sim.faults import Faults
from node.sim.invariants import Place
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.nodes import NodeSpec, chain_of, leader_of
from node.sim.scenario import a_manifest
from protocol.ids import Member
from protocol.manifest import from_mapping

WHOLE_S = 400.0
STEPS_AFTER = 3


@dataclass(slots=True)
class Parted:
    """What came of it."""

    seed: int
    forks: int
    merges: int
    """Nodes that gave up their lineage for another."""
    events: int
    counts: Counter[str] = field(default_factory=Counter)


class Parting(Life[Parted]):
    """See the module. Each side holds every stage, or one of them does not; the coordinator is on either. Whoever lacks a stage
    makes it again, where the policy allows."""

    name = "parting"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"parting {seed}"))
        rng = self.rng
        stages = rng.randint(1, 3)
        self.manifest = from_mapping(self._data(rng, stages))
        seats = [s for s in range(stages + 1) for _ in range(2)]
        seats += [rng.randrange(stages + 1) for _ in range(rng.randint(0, 2))]
        specs = [self._spec(i, stage) for i, stage in enumerate(seats)]
        self._sides = self._part(seats)
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.1))).reorder(rng.choice((0.01, 0.05))))
        self.watch.reaches = self.world.reaches

    def _data(self, rng: random.Random, stages: int) -> dict[str, Any]:
        data = a_manifest(rng, stages, 2, 10_000, self.seed)
        data["batch"]["global_samples"] = rng.randint(6, 12)
        data["timing"]["fork_after_s"] = rng.choice((2.0, 6.0))
        data["evaluation"]["every_steps"] = 0
        return data

    def _spec(self, number: int, stage: int) -> NodeSpec:
        peer = f"peer{number:02d}"
        return NodeSpec(Member(peer, self.rng.randint(1, 9)), peer, number == 0, stage, self.rng.uniform(0.005, 0.03))

    def _part(self, seats: list[int]) -> tuple[list[str], list[str]]:
        """One replica of each stage on each side, the rest anywhere; or, seldom, a stage on one side only."""
        sides: tuple[list[str], list[str]] = ([], [])
        flip = self.rng.random() < 0.5
        lacks = self.rng.randrange(max(seats) + 1) if self.rng.random() < 0.3 else -1
        for number, stage in enumerate(seats):
            whole = number < 2 * (max(seats) + 1)
            side = 0 if stage == lacks else (number + flip) % 2 if whole else self.rng.randrange(2)
            sides[side].append(f"peer{number:02d}")
        return sides

    def _run(self) -> Parted:
        world, rng = self.world, self.rng
        self._boot(4.0)
        self._until(3, START_S, "does not start")
        timing = self.manifest.timing
        heals_at = world.now + timing.fork_after_s + rng.uniform(1.0, 12.0) * timing.lapse_s
        self.faults.part(*self._sides, (world.now, heals_at))
        world.run(lambda: False, heals_at - world.now)
        lineages = {chain.lineage: chain.lossy_forks for chain in map(chain_of, world.alive())}
        self.counts["lineages at the end of the cut"] = len(lineages)
        require(world.run(self._is_one, WHOLE_S), f"not one again after {WHOLE_S} s: {self._situation()}")
        wanted = self._place().step + STEPS_AFTER
        require(world.run(lambda: self._place().step >= wanted, WHOLE_S), f"stands still: {self._situation()}")
        require(self._is_one(), f"it does not stay one: {self._situation()}")
        fewest = min(lineages.values())
        require(self._place().losses <= fewest, f"one that lost less gave way: {lineages}, now {self._place().lineage}")
        self.counts["one gave way that had parted with a loss"] += max(lineages.values()) > fewest
        merges = sum(getattr(what, "type", "") == "yielded" for _, _, what in world.story)
        self.counts.update(self.watch.num_checked)
        return Parted(self.seed, len(self.watch.forks), merges, world.num_events, self.counts)

    def _place(self) -> Place:
        """Where the lineage stands of whom the first node follows."""
        leader = leader_of(self.world.alive()[0])
        head = chain_of(self.world.nodes[leader]).head if leader in self.world.nodes else ""
        return self.watch.places.get(head, self.watch.place)

    def _is_one(self) -> bool:
        """Everybody has a seat that is not a learner's, in one lineage, and follows one coordinator."""
        nodes = self.world.alive()
        if len(set(map(leader_of, nodes))) > 1:
            return False
        place = self._place()
        roles = {member for (_, member), seating in place.seats.items() if seating.role != "learner"}
        return all(n.spec.member in roles and chain_of(n).lineage == place.lineage for n in nodes)

    def _situation(self) -> str:
        says = "; ".join(f"{node!r} {chain_of(node).lineage[:4]}: {node.says}" for node in self.world.alive())
        seats = ", ".join(f"{s}:{m.peer}/{m.incarnation}:{x.role}" for (s, m), x in sorted(self._place().seats.items()))
        return f"step {self.watch.step} at {self.world.now:.2f} s; {self._sides}; {seats}; {says}"


def live_parted(seed: int) -> Parted:
    """One seed, start to end."""
    return Parting(seed).run()
