"""One seed of a swarm of which most voters die at once, the coordinator and the only holders of some stages among them: those
that are left go on without a quorum, and make again what none of them holds.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from node.sim.faults import Faults, Strike
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.machine import BrokenError, require
from node.sim.network import Network
from node.sim.nodes import NodeSpec, SimNode
from node.sim.parting import chain_of, leader_of
from node.sim.scenario import a_manifest
from node.sim.trial import real_state
from protocol.chain import is_quorum
from protocol.ids import Member
from protocol.manifest import from_mapping

START_S = 300.0
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


class Remnant:
    """See the module. One replica per stage; one who is left has a copy of the embedding. Raises `BrokenError`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"remnant {seed}")
        self.counts: Counter[str] = Counter()
        self.num_stages = rng.randint(4, 7)
        self.manifest = from_mapping(self._data())
        self._specs = [self._spec(f"peer{stage:02d}", stage) for stage in range(self.num_stages)]
        self._spares = [self._spec(f"spare{n:02d}", -1) for n in range(rng.choice((0, 0, 1, 3)))]
        self.watch = Invariants(self.manifest, self._specs[0].member)
        self.faults = Faults().duplicate(rng.choice((0.01, 0.05))).reorder(rng.choice((0.01, 0.05)))
        self.world = World(self.manifest, rng, Network(rng, self.faults.weather), self.faults, self.watch, real_state)
        self.watch.now = lambda: self.world.now
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

    def run(self) -> Left:
        """Live through it."""
        try:
            return self._run()
        except BrokenError as error:
            error.add_note(f"replay: regrow sim --life {type(self).__name__.lower()} --seed {self.seed}")
            raise

    def _begin(self) -> None:
        """Until some steps are committed."""
        world = self.world
        for index, spec in enumerate(self._specs):
            world.boot(spec, 0.0 if not index else self.rng.uniform(0.0, 3.0))
        require(world.run(lambda: self.watch.step >= STEPS, START_S), f"does not start: {self._situation()}")
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
        alive = {node.spec.member for node in world.alive()}
        lost = [s for s in range(self.num_stages) if not alive & set(self.watch.place.holders(s))]
        before, died_at, at_most = self.watch.step, world.now, self._at_most(len(alive), len(lost))
        goes_on = world.run(lambda: self.watch.step > before, at_most)
        require(goes_on, f"stages {lost} do not come back within {at_most:.0f} s: {self._situation()}")
        seconds = world.now - died_at
        require(world.run(lambda: self.watch.step > before + STEPS, at_most), f"stands still: {self._situation()}")
        self.counts.update(self.watch.num_checked)
        rungs = {stage: rung for (stage, _, _), rung in self.watch.recovered.items()}
        self.counts["copied in time"] = sum(rungs.get(stage) == "handover" for stage in lost)
        return Left(self.seed, len(lost), seconds, at_most, self.counts)

    def _choose(self) -> list[SimNode]:
        """Stage 0's, and as many others as a quorum needs; one of those with a copy of the embedding stays."""
        place, rng = self.watch.place, self.rng
        active = [place.active(stage)[0] for stage in range(self.num_stages)]
        copies = [m for m in dict.fromkeys(active[1:]) if (0, m) in place.seats and place.seats[0, m].role == "passive"]
        require(bool(copies), f"nobody has a copy of the embedding: {self._situation()}")
        stays = rng.choice(copies)
        others = [m for m in dict.fromkeys(active[1:]) if m not in (stays, active[0])]
        rng.shuffle(others)
        dead = [active[0], others.pop()]
        while others and (rng.random() < 0.3 or is_quorum(set(place.voters) - set(dead), place.voters)):
            dead.append(others.pop())
        return [self.world.nodes[member.peer] for member in dead]

    def _at_most(self, num_alive: int, num_lost: int) -> float:
        """L1's bound: lapse + fork_after_s + grace + transfer + 2 steps; and a lapse each for the roll, for each that is asked
        before, for the promises, and for those that are lost to be taken off the roster."""
        timing = self.manifest.timing
        forks = timing.fork_after_s + (4 + num_alive) * timing.lapse_s
        return forks + GRACE_S + num_lost * (WAIT_S + 2 * timing.heartbeat_s) + 2 * timing.first_microbatch_s

    def _situation(self) -> str:
        says = "; ".join(f"{node!r}: {node.says}" for node in self.world.alive())
        seats = ", ".join(f"{s}:{m.peer}/{m.incarnation}:{x.role}" for (s, m), x in sorted(self.watch.place.seats.items()))
        return f"step {self.watch.step} at {self.world.now:.2f} s; {seats}; {says}"


class Scattered(Remnant):
    """One of those that are left is cut off from the others for a while, before or after they went on. All become one again."""

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
