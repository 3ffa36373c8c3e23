"""One seed of a swarm with one replica per stage that loses stages, and regrows them.

A *cell* is (which stages, in which phase): the holders of one stage, of two adjacent ones, of stage 0 and S1, or of a random
set are killed while the first of them does something of the phase, in the grace, or while what was lost is being made again.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from node.sim.faults import Faults, Phase, Strike
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.nodes import NodeSpec, SimNode
from node.sim.scenario import a_manifest
from protocol.ids import Member
from protocol.manifest import from_mapping

Which = Literal["single", "adjacent", "stage 0 and S1", "random"]
When = Literal["forward", "backward", "reduce", "commit", "grace", "handover"]
WHICH: tuple[Which, ...] = ("single", "adjacent", "stage 0 and S1", "random")
WHEN: tuple[When, ...] = ("forward", "backward", "reduce", "commit", "grace", "handover")
PHASES: dict[When, Phase] = {"forward": "forward", "backward": "backward", "reduce": "reduce", "commit": "apply"}
STEPS = 3
GRACE_S = 4.0
WAIT_S = 2.0


@dataclass(slots=True)
class Regrown:
    """What came of it. `seconds`: from the last fault to the next commit."""

    seed: int
    cell: tuple[Which, When]
    commits: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)


class Regrowth(Life[Regrown]):
    """See the module. Raises `BrokenError`."""

    name = "regrowth"
    regains: ClassVar[str] = "rebuilds"
    """Records by which lost stages come back, as the invariants count them."""

    def __init__(self, seed: int, cell: tuple[Which, When] | None = None) -> None:
        super().__init__(seed, random.Random(f"regrowth {seed} {cell}"))
        rng = self.rng
        self.cell = cell or (WHICH[seed % len(WHICH)], WHEN[seed // len(WHICH) % len(WHEN)])
        self.num_stages = rng.randint(5, 7)
        self.manifest = from_mapping(self._data())
        specs = [self._spec(f"peer{stage:02d}", stage == 0, stage) for stage in range(self.num_stages)]
        self.spares = [self._spec(f"spare{n:02d}", False, -1) for n in range(rng.choice((0, 1, 3)))]
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.05))).reorder(rng.choice((0.01, 0.05))))

    def _data(self) -> dict[str, Any]:
        rng = self.rng
        data = a_manifest(rng, self.num_stages - 1, 1, 10_000, self.seed)
        policy = rng.choice(("checkfree", "checkfree_plus", "copy", "uniform", "random"))
        data["recovery"] = {"policy": policy, "embedding_copies": 2, "rebuild_grace_s": GRACE_S, "newcomer_wait_s": WAIT_S}
        data["recovery"]["lr_factor_decay_steps"] = rng.choice((0, 2, 5))
        return data

    def _spec(self, peer: str, founder: bool, stage: int) -> NodeSpec:
        return NodeSpec(Member(peer, 1), peer, founder, stage, self.rng.uniform(0.005, 0.03))

    def about(self) -> str:
        """Which cell."""
        return str(self.cell)

    def _run(self) -> Regrown:
        world = self.world
        self._boot(3.0)
        self._until(STEPS, START_S, "does not start")
        for spec in self.spares:
            world.boot(spec, world.now)
        lost = self._lost()
        self._strike(lost)
        struck_at, before = world.now, self.watch.step
        self._until(before + STEPS, self._limit_s(), f"stages {lost} do not regrow")
        after = next(at for at, _, _ in self.watch.commits if at > struck_at)
        for stage in range(self.num_stages):
            require(bool(self.watch.place.active(stage)), f"stage {stage} has no holder: {self._situation()}")
        self._check_told(lost)
        self._check_more()
        copies = world.works.copies
        left = [f"{node!r} stage {stage}" for node, stage in copies.ahead if not node.dead]
        require(not left, f"still mixed ahead, though all is back: {left}")
        self.counts.update(self.watch.num_checked)
        self.counts["mixed ahead"] += copies.num_used
        return Regrown(self.seed, self.cell, len(self.watch.commits), after - struck_at, self.counts)

    def _check_told(self, lost: list[int]) -> None:
        """Each stage that was made again was told of, and so was each promotion. (By the time that it was hit, a stage may have
        had a second active replica, or a newcomer that had copied it.)"""
        told = {stage: rung for (stage, _, _), rung in self.watch.recovered.items()}
        for stage in lost:
            renewed = any(x.generation for (s, _), x in self.watch.place.seats.items() if s == stage)
            fine = ("recovery",) if renewed else ("promotion", "handover", None)
            require(told.get(stage) in fine, f"stage {stage} came back, and told is {told}: {self._situation()}")
            self.counts[told.get(stage) or "another replica lived"] += 1

    def _check_more(self) -> None:
        """What holds in other kinds of such swarms besides."""

    # ---- what is lost ----

    def _lost(self) -> list[int]:
        which, last = self.cell[0], self.num_stages - 1
        if which == "single":
            return [self.rng.randint(0, last)]
        if which == "stage 0 and S1":
            return [0, 1]
        if which == "adjacent":
            first = self.rng.randint(1, last - 1)
            return [first, first + 1]
        most = (self.num_stages - 1) // 2
        lost = self.rng.sample(range(self.num_stages), self.rng.randint(1, most))
        if {0, 1, last} <= set(lost):
            lost.remove(1)  # stage 0 with both of its copies: then the run is over, see test_protocol_end
        return lost

    def _strike(self, lost: list[int]) -> None:
        """The first one is hit in its phase; the others with it, or later, in the grace or the handover."""
        when, first = self.cell[1], lost[0]
        holders = [self._holder(stage) for stage in lost]
        phase = PHASES.get(when, "backward")
        self.faults.add(Strike("crash", first, self.watch.step + 1, phase, loud=self.rng.random() < 0.5))
        require(self.world.run(lambda: not self.faults.armed, START_S), f"no fault yet: {self._situation()}")
        self.counts[f"killed in {when}"] += 1
        if when in ("grace", "handover"):
            self.world.run(lambda: not any(m == holders[0].spec.member for _, m in self.watch.place.seats), START_S)
        if when == "handover":
            before = self.watch.num_checked[self.regains]
            self.world.run(lambda: self.watch.num_checked[self.regains] > before, GRACE_S + 2 * WAIT_S + 10.0)
        newcomer = self._newcomer(first) if when == "handover" and len(lost) == 1 else None
        for node in [newcomer] if newcomer else holders[1:]:
            if not node.dead:
                self.world.hit(node, Strike("crash", first, 0, "forward", loud=self.rng.random() < 0.5))
                self.counts["killed too"] += 1

    def _newcomer(self, stage: int) -> SimNode | None:
        """Whoever makes the lost stage now; nobody where that is a node which others need."""
        active = self.watch.place.active(stage)
        found = self.world.nodes[active[0].peer] if active else None
        others = found and any(m == found.spec.member and s != stage for s, m in self.watch.place.seats)
        return None if others else found

    def _limit_s(self) -> float:
        timing = self.manifest.timing
        return 20 * timing.lapse_s + 4 * (GRACE_S + WAIT_S) + 3 * timing.first_microbatch_s + 60.0
