"""One seed of a swarm that people walk in and out of: joins, leaves, kills, restarts and pauses every few steps, as long as
each stage keeps a replica, and what must come of it.

The next disturbance comes when the one before has been dealt with, so that what is asked of the swarm is possible: another
holder for each stage of whoever goes, and a quorum of voters without him.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
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

Kind = Literal["join", "leave", "kill", "restart", "freeze"]
KINDS: tuple[Kind, ...] = ("join", "join", "leave", "kill", "restart", "freeze")
DISTURBANCES = 10
DOUBLING = 0.15
"""Part of all swarms whose policy is `redundant`."""
SLOW_BYTES_S = (1e6, 4e6)
PATIENCE_S = 240.0
"""A newcomer that comes too late for the hold of a step waits ten times as long for the next one (`protocol.learners`)."""
LEAVE_S = 10.0


@dataclass(slots=True)
class Lived:
    """What came of it."""

    seed: int
    commits: int
    events: int
    virtual_s: float
    counts: Counter[str] = field(default_factory=Counter)


class Churn(Life[Lived]):
    """See the module. Raises `BrokenError`."""

    name = "churn"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"churn {seed}"))
        rng = self.rng
        stages = rng.randint(2, 4)
        self.manifest = from_mapping(self._data(rng, stages))
        seats = [s for s in range(stages + 1) for _ in range(2)]
        rng.shuffle(seats)
        specs = [self._spec(f"peer{i:02d}", i == 0, s) for i, s in enumerate(seats)]
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.1))).reorder(rng.choice((0.01, 0.05))))
        self._num_born = len(specs)

    def _data(self, rng: random.Random, stages: int) -> dict[str, Any]:
        data = a_manifest(rng, stages, 2, 10_000, self.seed)
        data["batch"]["global_samples"] = rng.randint(6, 12)
        if random.Random(f"doubles {self.seed}").random() < DOUBLING:  # of its own: other seeds stay what they are
            data["recovery"] = {"policy": "redundant"}
        return data

    def _spec(self, peer: str, founder: bool, stage: int) -> NodeSpec:
        return NodeSpec(Member(peer, self.rng.randint(1, 9)), peer, founder, stage, self.rng.uniform(0.005, 0.03))

    def _run(self) -> Lived:
        world = self.world
        self._boot(4.0)
        self._until(3, START_S, "does not start")
        for _ in range(DISTURBANCES):
            self._disturb(self.rng.choice(KINDS))
            self._go_on(self.rng.randint(1, 3))
        require(world.run(self._now_and_then(self._is_whole), PATIENCE_S), f"not whole at the end: {self._situation()}")
        self._go_on(2)
        self._end()
        self.counts.update(self.watch.num_checked)
        self.counts["copies_failed"] = world.works.copies.num_failed
        return Lived(self.seed, len(self.watch.commits), world.num_events, world.now, self.counts)

    # ---- disturbances ----

    def _disturb(self, kind: Kind) -> None:
        settled = self.world.run(self._now_and_then(self._is_settled), PATIENCE_S)
        require(settled, f"not settled before '{kind}': {self._situation()}")
        if kind == "join":
            self._join()
            return
        going = [node for node in self._seated() if self._can_spare(node)]
        if not going:
            self.counts["nobody_to_spare"] += 1
            self._join()
            return
        node = self.rng.choice(going)
        self.world.tell(node, f"CHURN {kind}")
        self.counts[kind] += 1
        if kind == "leave":
            self.world.handle(node, LeaveAsked("churn"))
            require(self.world.run(lambda: node.dead, LEAVE_S), f"{node!r} does not leave: {node.says}; {self._situation()}")
            require(node.exit is not None and node.exit.code == 0, f"{node!r} ends with {node.exit}")
            return
        lapse_s, loud = self.manifest.timing.lapse_s, self.rng.random() < 0.5
        for_s = {"freeze": self.rng.choice((0.3, 0.8, 1.5, 4.0)), "restart": self.rng.uniform(0.1, 2.0)}.get(
            kind, 0.0
        ) * lapse_s
        strike = Strike("crash" if kind == "kill" else kind, 0, 0, "forward", for_s=for_s, loud=loud)
        self.world.hit(node, strike)

    def _join(self) -> None:
        self.counts["join"] += 1
        stage = self.rng.choice((-1, -1, self.rng.randrange(self.manifest.num_stages)))
        spec = self._spec(f"late{self._num_born:02d}", False, stage)
        self._num_born += 1
        if self.rng.random() < 0.3:
            self.counts["join_slow"] += 1
            self.network.set_rate(spec.member.peer, self.rng.uniform(*SLOW_BYTES_S))
        self.world.boot(replace(spec, member=Member(spec.member.peer, 1)), self.world.now)

    # ---- what holds ----

    def _now_and_then(self, holds: Callable[[], bool]) -> Callable[[], bool]:
        """The same condition, looked at ten times a second: it is not cheap."""
        next_at = self.world.now

        def looked_at() -> bool:
            nonlocal next_at
            if self.world.now < next_at:
                return False
            next_at = self.world.now + 0.1
            return holds()

        return looked_at

    def _seated(self) -> list[SimNode]:
        place = self.watch.place
        members = {member for _, member in place.seats}
        return [node for node in self.world.alive() if node.spec.member in members and not node.frozen]

    def _is_settled(self) -> bool:
        """Everybody on the roster lives, and follows one coordinator who is there."""
        members = {member for _, member in self.watch.place.seats}
        live = {node.spec.member for node in self._seated()}
        return members == live and not any(node.frozen for node in self.world.alive())

    def _is_whole(self) -> bool:
        """... and everybody who lives has a seat that is not a learner's, or there is no room for him."""
        full = len([1 for s in self.watch.place.seats.values() if s.role == "active"]) >= self._room()
        roles = {member: seating.role for (_, member), seating in self.watch.place.seats.items() if seating.role != "learner"}
        everybody = all(node.spec.member in roles for node in self.world.alive())
        return self._is_settled() and (everybody or full)

    def _room(self) -> int:
        return self.manifest.num_stages * self.manifest.batch.num_microbatches

    def _can_spare(self, node: SimNode) -> bool:
        member, place = node.spec.member, self.watch.place
        held = [stage for (stage, m), seating in place.seats.items() if m == member and seating.role != "learner"]
        others = all(any(m != member and self._holds(stage, m) for m in place.holders(stage)) for stage in held)
        return others and place.has_quorum_without(member)

    def _holds(self, stage: int, member: Member) -> bool:
        """Will the member have the stage's newest state after the open attempt, too? Who is excluded from it will not, and who
        missed the last commit has not."""
        node = self.world.nodes[member.peer]
        leaders = [other.state.coordinator for other in self.world.alive()]  # type: ignore[attr-defined]
        excluded = {m for leader in leaders if leader and leader.ledger for m in leader.ledger.excluded}
        has_it = node.spec.member == member and not node.dead and stage in node.state.bench.seats  # type: ignore[attr-defined]
        return has_it and member not in excluded

    def _go_on(self, steps: int) -> None:
        self._until(self.watch.step + steps, PATIENCE_S + self.manifest.timing.join_pause_s, "stands still")

    def _end(self) -> None:
        """Everybody's state is the one of the chain, and nobody owes a payload."""
        place = self.watch.place
        self.counts["active_at_end"] = sum(s.role == "active" for s in place.seats.values())
        for node in self.world.alive():
            for _ in range(2):
                if node.exit is None:
                    self.world.handle(node, LeaveAsked("the end"))
            require(node.exit is not None, f"{node!r} does not leave at once when asked twice")


def live_through(seed: int) -> Lived:
    """One seed, start to end."""
    return Churn(seed).run()
