"""One seed of a swarm of which one node is cut off that can train alone: it has a copy of the embedding and a block stage, and
makes the rest again of what it has. It is the faster one by far; and gives its lineage up when it meets the others again.
"""

from __future__ import annotations

import random
from typing import Any

from node.sim.faults import Faults
from node.sim.life import Life
from node.sim.machine import require
from node.sim.nodes import NodeSpec, SimNode, chain_of
from node.sim.scenario import a_manifest
from protocol.ids import Member
from protocol.manifest import from_mapping

LIMIT_S = 400.0
STEPS = 3
AHEAD = 5
"""So many steps the one that is alone is ahead when it meets the others."""


class CutOff(Life[None]):
    """See the module. The others keep the coordinator and a quorum, and rebuild what they lost. Raises `BrokenError`."""

    name = "cut-off"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"cut off {seed}"))
        rng = self.rng
        self.num_stages = rng.randint(3, 5)
        self.manifest = from_mapping(self._data())
        self._alone = f"peer{rng.choice((1, self.num_stages - 1)):02d}"
        specs = [self._spec(stage) for stage in range(self.num_stages)]
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.1))).reorder(rng.choice((0.01, 0.05))))
        self.watch.reaches = self.world.reaches

    def _data(self) -> dict[str, Any]:
        data = a_manifest(self.rng, self.num_stages - 1, 1, 10_000, self.seed)
        data["recovery"] = {"policy": "checkfree", "embedding_copies": 2, "rebuild_grace_s": 2.0, "newcomer_wait_s": 1.0}
        data["timing"]["fork_after_s"] = 4.0
        data["evaluation"]["every_steps"] = 0
        return data

    def _spec(self, stage: int) -> NodeSpec:
        peer = f"peer{stage:02d}"
        return NodeSpec(Member(peer, 1), peer, stage == 0, stage, 0.001 if peer == self._alone else 0.05)

    def _run(self) -> None:
        world = self.world
        self._boot(3.0)
        self._until(STEPS, LIMIT_S, "does not start")
        alone = world.nodes[self._alone]
        others = [node for node in world.alive() if node is not alone]
        for other in others:
            self.faults.cut((alone.peer, other.peer), (world.now, world.now + 10 * LIMIT_S))
        lead = world.nodes[self.specs[0].member.peer]
        require(world.run(lambda: self._is_ahead(alone, lead), LIMIT_S), f"it does not train alone: {self._situation()}")
        self.faults.weather.cuts.clear()
        losses = [self.watch.places[chain_of(node).head].losses for node in (alone, lead)]
        require(losses == [1, 0], f"who parted with a loss? {losses}: {self._situation()}")
        self.counts["steps ahead"] = chain_of(alone).step - chain_of(lead).step
        require(world.run(lambda: self._is_back(alone, lead), LIMIT_S), f"it does not give way: {self._situation()}")
        wanted = chain_of(lead).step + STEPS
        require(world.run(lambda: chain_of(lead).step >= wanted, LIMIT_S), f"stands still: {self._situation()}")
        gave_way = [who for _, who, what in world.story if getattr(what, "type", "") == "yielded"]
        require(gave_way == [repr(alone)], f"{gave_way} gave way: {self._situation()}")
        self.counts.update(self.watch.num_checked)

    def _is_ahead(self, alone: SimNode, lead: SimNode) -> bool:
        """And have the others made again what they lost with it?"""
        rest = chain_of(lead)
        return chain_of(alone).step >= rest.step + AHEAD and bool(rest.active(self._stage)) and not rest.rebuilds

    @property
    def _stage(self) -> int:
        return int(self._alone[-2:])

    def _is_back(self, alone: SimNode, lead: SimNode) -> bool:
        """Has it a seat in the others' lineage that is not a learner's?"""
        chain = chain_of(lead)
        seated = any(s.member == alone.spec.member and s.role != "learner" for s in chain.seatings)
        return seated and chain_of(alone).lineage == chain.lineage == ""

    def _situation(self) -> str:
        nodes = self.world.alive()
        says = "; ".join(f"{n!r} step {chain_of(n).step} {chain_of(n).lineage[:4]}: {n.says}" for n in nodes)
        return f"{self._alone} alone, at {self.world.now:.2f} s; {says}"
