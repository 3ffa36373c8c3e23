"""One seed of a swarm of which most voters die at once, the coordinator and the only holders of some stages among them: those
that are left go on without a quorum, and make again what none of them holds.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from node.sim.faults import Faults, Strike
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.nodes import NodeSpec, SimNode, chain_of, leader_of
from node.sim.scenario import a_manifest
from protocol.chain import is_quorum
from protocol.ids import Member
from protocol.manifest import from_mapping

STEPS = 3
GRACE_S = 4.0
WAIT_S = 2.0
WHOLE_S = 600.0


@dataclass(slots=True)
class Left:
    """What came of it. `seconds`: from the deaths to the next commit; `at_most`: what they may be."""

    seed: int
    num_lost: int
    seconds: float
    at_most: float
    counts: Counter[str] = field(default_factory=Counter)


class Remnant(Life[Left]):
    """See the module. One replica per stage; one who is left has a copy of the embedding. Raises `BrokenError`."""

    name = "remnant"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"remnant {seed}"))
        rng = self.rng
        self.num_stages = rng.randint(4, 7)
        self.manifest = from_mapping(self._data())
        specs = [self._spec(f"peer{stage:02d}", stage) for stage in range(self.num_stages)]
        self._spares = [self._spec(f"spare{n:02d}", -1) for n in range(rng.choice((0, 0, 1, 3)))]
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.05))).reorder(rng.choice((0.01, 0.05))))
        self.watch.reaches = self.world.reaches

    def _data(self) -> dict[str, Any]:
        rng = self.rng
        data = a_manifest(rng, self.num_stages - 1, 1, 10_000, self.seed)
        policy = rng.choice(("checkfree", "checkfree_plus" if self.num_stages > 4 else "checkfree"))
        data["recovery"] = {"policy": policy, "embedding_copies": 2, "rebuild_grace_s": GRACE_S, "newcomer_wait_s": WAIT_S}
        data["timing"]["fork_after_s"] = rng.choice((4.0, 20.0))
        data["evaluation"]["every_steps"] = 0
        return data

    def _spec(self, peer: str, stage: int) -> NodeSpec:
        return NodeSpec(Member(peer, 1), peer, stage == 0, stage, self.rng.uniform(0.005, 0.03))

    def _begin(self) -> None:
        """Until some steps are committed."""
        world = self.world
        self._boot(3.0)
        self._until(STEPS, START_S, "does not start")
        for spec in self._spares:
            world.boot(spec, world.now)
        world.run(lambda: False, self.rng.uniform(0.0, 3.0))

    def _die(self) -> None:
        for node in self._choose():
            self.world.hit(node, Strike("crash", 0, 0, "forward", loud=self.rng.random() < 0.5))

    def _run(self) -> Left:
        world = self.world
        self._begin()
        self._die()
        lost = self._without_holder()
        before, died_at, at_most = self.watch.step, world.now, self._at_most(len(world.alive()), len(lost))
        self._until(before + 1, at_most, f"stages {lost} do not come back within {at_most:.0f} s")
        seconds = world.now - died_at
        self._until(before + STEPS + 1, at_most, "stands still")
        self.counts.update(self.watch.num_checked)
        rungs = {stage: rung for (stage, _, _), rung in self.watch.recovered.items()}
        self.counts["copied in time"] = sum(rungs.get(stage) == "handover" for stage in lost)
        return Left(self.seed, len(lost), seconds, at_most, self.counts)

    def _choose(self) -> list[SimNode]:
        """Stage 0's, everybody that has or copies one more stage, and as many others as a quorum needs; one of those with a
        copy of the embedding stays."""
        place, rng = self.watch.place, self.rng
        active = [place.active(stage)[0] for stage in range(self.num_stages)]
        copies = [m for m in dict.fromkeys(active[1:]) if (0, m) in place.seats and place.seats[0, m].role == "passive"]
        require(bool(copies), f"nobody has a copy of the embedding: {self._situation()}")
        stays = rng.choice(copies)
        others = [m for m in dict.fromkeys(active[1:]) if m not in (stays, active[0])]
        rng.shuffle(others)
        dead = [active[0], others.pop()]
        lost = active.index(dead[-1])
        dead += [m for (stage, m) in place.seats if stage == lost and m not in (stays, *dead)]
        others = [m for m in others if m not in dead]
        while others and (rng.random() < 0.3 or is_quorum(set(place.voters) - set(dead), place.voters)):
            dead.append(others.pop())
        return [self.world.nodes[member.peer] for member in dead]

    def _at_most(self, num_alive: int, num_lost: int) -> float:
        """L1's bound: lapse + fork_after_s + grace + transfer + 2 steps; and a lapse each for the roll, for each that is asked
        before, for the promises, and for those that are lost to be taken off the roster."""
        timing = self.manifest.timing
        forks = timing.fork_after_s + (4 + num_alive) * timing.lapse_s
        return forks + GRACE_S + num_lost * (WAIT_S + 2 * timing.heartbeat_s) + 2 * timing.first_microbatch_s


class Scattered(Remnant):
    """One of those that are left is cut off from the others for a while, before or after they went on. All become one again."""

    name = "scattered"

    def _run(self) -> Left:
        world, rng, timing = self.world, self.rng, self.manifest.timing
        self._begin()
        self._die()
        alive, died_at = world.alive(), world.now
        alone = rng.choice(alive)
        begins = world.now + rng.choice((0.0, rng.uniform(0.0, timing.fork_after_s + 4 * timing.lapse_s)))
        ends = begins + rng.uniform(1.0, timing.fork_after_s + 12 * timing.lapse_s)
        self.faults.part([alone.peer], [node.peer for node in alive if node is not alone], (begins, ends))
        world.run(lambda: False, ends - world.now)
        require(world.run(self._is_one, WHOLE_S), f"{alone!r} was cut off, and they are not one: {self._situation()}")
        self.counts.update(self.watch.num_checked)
        return Left(self.seed, 0, world.now - died_at, WHOLE_S, self.counts)

    def _is_one(self) -> bool:
        """Everybody follows one coordinator, in one lineage, with a seat that is no learner's; every stage is computed."""
        nodes = self.world.alive()
        lead = self.world.nodes[leader_of(nodes[0])]
        if lead.dead or len(set(map(leader_of, nodes))) > 1:
            return False
        chain = chain_of(lead)
        seated = {s.member for s in chain.seatings if s.role != "learner"}
        ours = all(n.spec.member in seated and chain_of(n).lineage == chain.lineage for n in nodes)
        return ours and not chain.empty_stages()
