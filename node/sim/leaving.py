"""One seed of a swarm with one replica per stage whose holders go in order, where others have the room to compute their stages,
or only to keep them, or neither; undisturbed, or while somebody who has a part in it dies.

What must come of it: who goes ends in time; without a fault each stage has a holder at every moment and nothing is made of
others (S5); and the run goes on, at the latest when newcomers come.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from node.sim.faults import Faults, Strike
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.nodes import NodeSpec, SimNode
from node.sim.scenario import a_manifest
from protocol.events import LeaveAsked
from protocol.ids import Member
from protocol.manifest import from_mapping
from protocol.messages import LOST_STATE
from protocol.sizes import PROCESS_BYTES, need_bytes, passive_bytes, seat_bytes, state_bytes

Room = Literal["computing", "keeping", "nothing"]
Fault = Literal["none", "heir", "leaver", "coordinator"]
ROOMS: tuple[Room, ...] = ("computing", "keeping", "nothing")
FAULTS: tuple[Fault, ...] = ("none", "none", "heir", "leaver", "coordinator")
STEPS = 3
NOTICE_S = 20.0
GRACE_S = 3.0
SLOW_BYTES_S = 8e5
"""At this rate a copy takes most of the notice."""


@dataclass(slots=True)
class Left:
    """What came of it."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)


class Leaving(Life[Left]):
    """See the module. Raises `BrokenError`."""

    name = "leaving"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"leaving {seed}"))
        rng = self.rng
        self.room: Room = ROOMS[seed % len(ROOMS)]
        self.fault: Fault = FAULTS[seed // len(ROOMS) % len(FAULTS)]
        self.num_stages = rng.randint(3, 6)
        self.manifest = from_mapping(self._data())
        specs = [self._spec(f"peer{stage:02d}", stage == 0, stage) for stage in range(self.num_stages)]
        self.spares = [self._spec(f"spare{n:02d}", False, -1) for n in range(rng.choice((0, 0, 1)))]
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.05))).reorder(rng.choice((0.01, 0.05))))
        self._struck = False

    def _data(self) -> dict[str, Any]:
        rng = self.rng
        data = a_manifest(rng, self.num_stages - 1, 1, 10_000, self.seed)
        policy = rng.choice(("none", "checkfree", "checkfree_plus" if self.num_stages > 4 else "checkfree"))
        copies = rng.choice((0, 2))
        data["recovery"] = {"policy": policy, "embedding_copies": copies, "rebuild_grace_s": GRACE_S, "newcomer_wait_s": 1.0}
        data["timing"] |= {"leave_notice_s": NOTICE_S, "fork_after_s": 20.0}
        return data

    def _spec(self, peer: str, founder: bool, stage: int) -> NodeSpec:
        return NodeSpec(Member(peer, 1), peer, founder, stage, self.rng.uniform(0.005, 0.03), self._memory(stage))

    def _memory(self, stage: int) -> int:
        """For its own seat and a copy of the embedding, and for one more of any stage as the seed has it."""
        if stage < 0:
            return 0
        every = range(self.num_stages)
        most = {"computing": seat_bytes, "keeping": state_bytes}.get(self.room)
        more = max(most(self.manifest, s) for s in every) if most else 0
        return need_bytes(self.manifest, stage) + passive_bytes(self.manifest) + more

    def about(self) -> str:
        """The room of the others, and the fault."""
        return f"{self.room}, {self.fault}"

    def _run(self) -> Left:
        world, rng = self.world, self.rng
        self._boot(3.0)
        self._until(STEPS, START_S, "does not start")
        for spec in self.spares:
            world.boot(spec, world.now)
        world.run(lambda: False, rng.uniform(0.0, 3.0))
        before = self.watch.num_checked["rebuilds"]
        leavers = [self._holder(stage) for stage in rng.sample(range(self.num_stages), rng.choice((1, 1, 2)))]
        if rng.random() < 0.3:
            self.network.set_rate(leavers[0].peer, SLOW_BYTES_S)
        for node in leavers:
            self._leave(node)
        self._see_them_off(leavers)
        if not self._struck and self.watch.num_checked["rebuilds"] == before:
            self.counts["exact"] += 1
        self._go_on()
        self.counts.update(self.watch.num_checked)
        self.counts[f"{self.room}, {self.fault}"] += 1
        return Left(self.seed, self.counts)

    def _leave(self, node: SimNode) -> None:
        if not node.dead:
            self.world.tell(node, "LEAVES")
            self.world.handle(node, LeaveAsked("the seed"))

    def _see_them_off(self, leavers: list[SimNode]) -> None:
        """Until all are gone; on the way the fault strikes once."""
        told_at, parked = self.world.now, Counter[str]()

        def gone() -> bool:
            if not self._struck:
                self._strike(leavers)
            if not self._struck:
                empty = [s for s in range(self.num_stages) if not self.watch.place.holders(s)]
                waits_for_room = self.room == "nothing" or self.world.now > told_at + NOTICE_S - 1.0
                require(not empty or waits_for_room, f"S5: stages {empty} have no holder: {self._situation()}")
            parked["parked"] += any(s.role == "parked" for s in self.watch.place.seats.values())
            return all(node.dead for node in leavers)

        require(self.world.run(gone, NOTICE_S + 5.0), f"they do not go: {self._situation()}")
        self.counts["parked"] += parked["parked"] > 0
        for node in leavers:
            fine = node.exit is None or node.exit.code == 0 or (node.exit.code == LOST_STATE and self._has_lost_stage_0())
            require(fine, f"{node!r} ends with {node.exit}")

    def _has_lost_stage_0(self) -> bool:
        """Has the fault taken it, and nobody who lives holds it?"""
        return self._struck and not any(0 in node.seats for node in self.world.alive())

    def _strike(self, leavers: list[SimNode]) -> None:
        """Whoever is meant dies, once a stage is being handed over."""
        place = self.watch.place
        heirs = [m for (_, m), seating in place.seats.items() if seating.role == "learner"]
        if self.fault == "none" or not heirs:
            return
        leads = next((n for n in self.world.alive() if n.state.coordinator), None)  # type: ignore[attr-defined]
        victim = {"heir": self.world.nodes[heirs[0].peer], "leaver": leavers[0], "coordinator": leads}[self.fault]
        if victim and not victim.dead:
            self._struck = True
            self.counts[f"killed {self.fault}"] += 1
            self.world.hit(victim, Strike("crash", 0, 0, "forward", loud=self.rng.random() < 0.5))

    def _go_on(self) -> None:
        """By itself, or when newcomers come, as many as stages."""
        wanted = self.watch.step + STEPS
        if self.world.run(lambda: self.watch.step >= wanted, 60.0):
            self.counts["went on"] += 1
            return
        if self._is_lost_for_good():
            self.counts["lost for good"] += 1
            return
        for number in range(self.num_stages):
            spec = self._spec(f"late{number:02d}", False, -1)
            self.world.boot(replace(spec, memory_bytes=PROCESS_BYTES << 3), self.world.now)
        self._until(wanted, 200.0, "stands still")
        self.counts["went on with newcomers"] += 1

    def _is_lost_for_good(self) -> bool:
        """Is there a stage that nobody who lives has, and that is not made of others?"""
        lost = self._without_holder()
        never = self.manifest.recovery.policy == "none" or 0 in lost or len(lost) >= self.num_stages - 1
        return bool(lost) and never
