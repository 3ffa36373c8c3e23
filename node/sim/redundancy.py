"""One seed of a swarm under policy redundant that loses stages one after the other, or several at once that are not next to
each other: each comes back as it was, by promotion, and none is ever rebuilt.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from node.sim.faults import Faults, Phase, Strike
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.nodes import NodeSpec, chain_of
from node.sim.scenario import a_manifest
from protocol.copies import hosts
from protocol.events import LeaveAsked
from protocol.ids import Member
from protocol.manifest import from_mapping

STEPS = 2
LOSSES = (2, 4)
PATIENCE_S = 240.0
LEAVE_S = 20.0
PHASES: tuple[Phase, ...] = ("forward", "backward", "reduce", "apply")


@dataclass(slots=True)
class Kept:
    """What came of it."""

    seed: int
    commits: int
    num_lost: int
    counts: Counter[str] = field(default_factory=Counter)


class Redundant(Life[Kept]):
    """See the module. Raises `BrokenError`."""

    name = "redundant"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"redundant {seed}"))
        rng = self.rng
        self.num_stages, self.num_replicas = rng.randint(4, 7), rng.choice((1, 1, 2))
        self.manifest = from_mapping(self._data())
        seats = [stage for stage in range(self.num_stages) for _ in range(self.num_replicas)]
        specs = [self._spec(f"peer{number:02d}", not number, stage) for number, stage in enumerate(seats)]
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.05))).reorder(rng.choice((0.01, 0.05))))
        self._num_late = 0

    def _data(self) -> dict[str, Any]:
        rng = self.rng
        data = a_manifest(rng, self.num_stages - 1, self.num_replicas, 10_000, self.seed)
        data["recovery"] = {"policy": "redundant", "rebuild_grace_s": rng.choice((0.0, 4.0)), "newcomer_wait_s": 1.0}
        return data

    def _spec(self, peer: str, founder: bool, stage: int) -> NodeSpec:
        return NodeSpec(Member(peer, 1), peer, founder, stage, self.rng.uniform(0.005, 0.03))

    def about(self) -> str:
        """The swarm."""
        return f"{self.num_stages} stages, {self.num_replicas} replicas of each"

    def calm(self, step: int) -> None:
        """Nothing happens until this step is committed."""
        if not self.world.nodes:
            self._boot(3.0)
        self._until(step, START_S, "does not start")

    def _run(self) -> Kept:
        self.calm(STEPS)
        num_lost = 0
        for _ in range(self.rng.randint(*LOSSES)):
            require(self.world.run(self._is_covered, PATIENCE_S), f"no copy of each stage: {self._situation()}")
            num_lost += self._lose()
            self._until(self.watch.step + STEPS, PATIENCE_S, "stands still")
            for _ in range(self.rng.choice((0, 1, num_lost))):
                self._join()
        require(self.world.run(self._is_covered, PATIENCE_S), f"no copy of each stage: {self._situation()}")
        self._check_passes()
        self.counts.update(self.watch.num_checked)
        self.counts.update(self.watch.recovered.values())
        require(not self.counts["rebuilds"], f"something was rebuilt: {self._situation()}")
        return Kept(self.seed, len(self.watch.commits), num_lost, self.counts)

    def _is_covered(self) -> bool:
        """Everybody who is to hold a copy of a stage has it, and nobody has one who is not."""
        place = self.watch.place
        if any(seating.role == "learner" for seating in place.seats.values()):
            return False
        chain = max(
            map(chain_of, self.world.alive()), key=lambda chain: chain.height
        )  # its order says who is the first of several
        rows = [[s.member for s in chain.active(stage)] for stage in range(self.num_stages)]
        for stage in range(self.num_stages):
            passive = {m for (s, m), seating in place.seats.items() if (s, seating.role) == (stage, "passive")}
            if not rows[stage] or passive != set(hosts(stage, rows, self.manifest.has_exact_shadows)):
                return False
        return True

    # ---- what is lost ----

    def _lose(self) -> int:
        """Nodes none of which holds the only copy of what another one computes go at once, in some phase of a step."""
        place, rng = self.watch.place, self.rng
        going: list[Member] = []
        nodes = sorted({m for _, m in place.seats})
        rng.shuffle(nodes)
        for member in nodes:
            if self._may_go([*going, member]):
                going.append(member)
            if len(going) == rng.choice((1, 2, 3)):
                break
        if not going:  # fewer nodes than keep a quorum and everything twice
            self._join()
            return 0
        alone = [s for s in range(self.num_stages) if set(place.active(s)) <= set(going)]
        self.counts["stages lost"] += len(alone)
        self.counts["at once"] += len(going) > 1
        if len(going) == 1 and rng.random() < 0.3:
            self._leave(going[0])
            return len(going)
        first = self.world.nodes[going[0].peer]
        stage = next(s for (s, m), x in place.seats.items() if m == going[0] and x.role == "active")
        replica = place.active(stage).index(going[0])
        strike = Strike("crash", stage, self.watch.step + 1, rng.choice(PHASES), replica=replica, loud=rng.random() < 0.5)
        self.faults.add(strike)
        require(self.world.run(lambda: first.dead, START_S), f"no fault yet: {self._situation()}")
        gone = going[:1]
        for member in going[1:]:  # the roster may be another one by now
            loud = rng.random() < 0.5
            if self._may_go([*gone, member]):
                self.world.hit(self.world.nodes[member.peer], Strike("crash", 0, 0, "forward", loud=loud))
                gone.append(member)
        self.counts["killed"] += len(gone)
        return len(gone)

    def _may_go(self, going: list[Member]) -> bool:
        """Do the others hold every stage, by the roster as it is now, and have a quorum?"""
        place, lost = self.watch.place, set(going)
        return all(set(place.holders(stage)) - lost for stage in range(self.num_stages)) and place.has_quorum_without(*going)

    def _leave(self, member: Member) -> None:
        node = self.world.nodes[member.peer]
        self.world.handle(node, LeaveAsked("redundant"))
        require(self.world.run(lambda: node.dead, LEAVE_S), f"{node!r} does not leave: {node.says}; {self._situation()}")
        self.counts["left"] += 1

    def _join(self) -> None:
        self._num_late += 1
        self.world.boot(self._spec(f"late{self._num_late:02d}", False, -1), self.world.now)
        self.counts["joined"] += 1

    def _check_passes(self) -> None:
        """Whoever has held a copy for some steps has run its stage's passes as well."""
        seats = [seat for node in self.world.alive() for seat in node.seats.values()]
        self.counts["passed twice"] += sum(seat.num_passed_twice for seat in seats)


class ExactShadow(Redundant):
    """The same under policy shadow with `shadow_every` 1: one copy of each stage, half way round, and no second passes."""

    name = "exact-shadow"

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        data["recovery"] |= {"policy": "shadow", "shadow_every": 1}
        return data

    def _check_passes(self) -> None:
        super()._check_passes()
        require(not self.counts["passed twice"], "a shadow computes nothing")
