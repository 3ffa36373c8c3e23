"""What befalls a simulated swarm in no order at all, as data: who is killed, what breaks, for how long, and whether it did.

A `Mishap` says what kind, how long after the one before, and for how long; whom it befalls is decided when it comes, among
those who are there. One that finds nobody, or somebody who goes before it shows, has no effect; see `Mishaps.fired`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from node.sim.faults import COORDINATOR, COORDINATOR_PHASES, SEAT_PHASES, Faults, Phase, Strike
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.network import Cut, Squeeze
from node.sim.nodes import NodeSpec, SimNode
from protocol.chain import is_quorum
from protocol.events import LeaveAsked
from protocol.ids import PeerId

MishapKind = Literal[
    "kill",
    "restart",
    "freeze",
    "hang",
    "slow",
    "leave",
    "join",
    "cut",
    "half_open",
    "partition",
    "asymmetric",
    "reset",
    "squeeze",
    "directory",
]
MISHAPS: tuple[MishapKind, ...] = get_args(MishapKind)
LINK_KINDS = frozenset({"cut", "half_open", "partition", "asymmetric", "reset"})
LEAD_S = 0.5
"""A link breaks so long after it is decided that it will: what is on it by then is lost too."""
RESET_S = 0.05
"""For so long a connection that breaks takes nothing."""
PHASE_S = 8.0
"""For so long a strike waits for its phase."""
AGAIN_S = 3.0
"""After so long a node is started again that went because its device hung."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """One thing that goes wrong. See the module; `phase`: the node is hit when it is about to do this."""

    kind: MishapKind
    after_s: float
    for_s: float
    phase: Phase | None = None
    loud: bool = True
    forgetful: bool = False

    def __str__(self) -> str:
        return f"{self.kind} for {self.for_s:.1f} s" + (f" before '{self.phase}'" if self.phase else "")


class Mishaps:
    """Lets them happen. `is_careful`: nobody is taken for good without whom, by what is there, the run could not go on."""

    def __init__(
        self, world: World, faults: Faults, rng: random.Random, is_careful: bool, newcomer: Callable[[], NodeSpec]
    ) -> None:
        self._world, self._faults, self._rng = world, faults, rng
        self._is_careful, self._newcomer = is_careful, newcomer
        self.until = 0.0
        """World time when the last one that passes will have passed."""
        self._effects: list[tuple[Mishap, Callable[[], bool]]] = []
        self._do: dict[MishapKind, Callable[[Mishap], Callable[[], bool] | None]] = {
            "kill": self._strike,
            "restart": self._strike,
            "freeze": self._strike,
            "hang": self._hang,
            "slow": self._slow,
            "leave": self._leave,
            "join": self._join,
            "squeeze": self._squeeze,
            "directory": self._directory,
        }

    @property
    def _watch(self) -> Invariants:
        return self._world.watch

    def befall(self, mishap: Mishap) -> None:
        """It happens now, or as soon as its phase comes."""
        do = self._cut if mishap.kind in LINK_KINDS else self._do[mishap.kind]
        effect = do(mishap)
        self._effects.append((mishap, effect or (lambda: False)))

    def fired(self) -> Counter[str]:
        """How many of each kind had an effect so far."""
        return Counter(mishap.kind for mishap, effect in self._effects if effect())

    # ---- whom ----

    def _somebody(self, fits: Callable[[SimNode], bool] = lambda _: True) -> SimNode | None:
        """Most often a holder or the coordinator, of those that are well."""
        well = [node for node in self._world.alive() if self._is_well(node) and fits(node)]
        seated = {member for _, member in self._watch.place.seats}
        leads = [node for node in well if self._leads(node)]
        holders = [node for node in well if node.spec.member in seated]
        among = leads if leads and self._rng.random() < 0.2 else holders or well
        return self._rng.choice(among) if among else None

    def _leads(self, node: SimNode) -> bool:
        return bool(getattr(node.state, "coordinator", None))

    def _is_well(self, node: SimNode) -> bool:
        return not node.frozen and not node.thread.hung

    def _computes(self, node: SimNode) -> bool:
        return any(m == node.spec.member and seating.role == "active" for (_, m), seating in self._watch.place.seats.items())

    def _may_go(self, node: SimNode) -> bool:
        return not self._is_careful or self.can_spare(node)

    def can_spare(self, node: SimNode) -> bool:
        """Could the run go on without the node? Others are a quorum and hold each stage or, where stages are made of others,
        stage 0 and two block stages. What is saved can be had again."""
        place, manifest = self._watch.place, self._world.manifest
        well = {n.spec.member for n in self._world.alive() if self._is_well(n)} - {node.spec.member}
        if not is_quorum(well & set(place.voters), place.voters):
            return False
        held = [stage for stage in range(manifest.num_stages) if well & set(place.holders(stage))]
        if len(held) == manifest.num_stages:
            return True
        if manifest.recovery.policy == "checkpoint":
            return True
        return manifest.recovery.policy != "none" and 0 in held and len(held) >= min(3, manifest.num_block_stages)

    # ---- nodes ----

    def _strike(self, mishap: Mishap) -> Callable[[], bool] | None:
        node = self._somebody(self._may_go) if mishap.kind != "freeze" else self._somebody()
        if node is None:
            return None
        strike = self._strike_of(mishap, node)
        self.until = max(self.until, self._world.now + strike.for_s)
        if mishap.phase and self._wait_for(strike, node):
            return lambda: True
        if node.dead or node.frozen:
            return None
        self._world.hit(node, strike)
        return lambda: True

    def _strike_of(self, mishap: Mishap, node: SimNode) -> Strike:
        """As the node is the holder of a stage, or coordinates."""
        phase = mishap.phase or "forward"
        stages = [stage for stage in range(self._world.manifest.num_stages) if self._world.rank(node, stage) >= 0]
        stage = COORDINATOR if phase in COORDINATOR_PHASES else self._rng.choice(stages or [0])
        rank = max(0, self._world.rank(node, stage))
        kind = "crash" if mishap.kind == "kill" else mishap.kind
        facts = {"for_s": mishap.for_s, "loud": mishap.loud, "forgetful": mishap.forgetful}
        return Strike(kind, stage, self._watch.step + 1, phase, rank, **facts)  # type: ignore[arg-type]

    def _wait_for(self, strike: Strike, node: SimNode) -> bool:
        """Whether the strike came in its phase; it hits nobody else than whoever may go."""
        if strike.stage == COORDINATOR and not self._leads(node):
            return False
        if strike.stage != COORDINATOR and self._world.rank(node, strike.stage) < 0:
            return False
        before = self._faults.fired.total()
        self._faults.add(strike)
        self._world.run(lambda: not self._faults.armed, PHASE_S)
        self._faults.disarm()
        return self._faults.fired.total() > before

    def _hang(self, _mishap: Mishap) -> Callable[[], bool] | None:
        node = self._somebody(lambda n: bool(n.seats) and self._may_go(n))
        if node is None:
            return None
        self._world.tell(node, "FAULT its device hangs")
        node.thread.hung = True
        self._world.post(self._world.now + AGAIN_S, None, self._start_again, node)
        return lambda: True

    def _start_again(self, node: SimNode) -> None:
        """Whoever watches over the process does so, once it has gone."""
        if not node.dead:
            self._world.post(self._world.now + AGAIN_S, None, self._start_again, node)
        elif self._world.nodes[node.peer] is node:
            member = replace(node.spec.member, incarnation=node.spec.member.incarnation + 1)
            self._world.boot(replace(node.spec, member=member, founder=False), self._world.now)

    def _slow(self, mishap: Mishap) -> Callable[[], bool] | None:
        node = self._somebody(self._computes)
        if node is None:
            return None
        node.slowness = self._rng.choice((2.0, 5.0, 10.0))
        self._world.tell(node, f"FAULT computes {node.slowness:.0f} x slower for {mishap.for_s:.1f} s")
        self._passes(mishap, lambda: setattr(node, "slowness", 1.0))
        return lambda: node.num_slowed > 0

    def _leave(self, _mishap: Mishap) -> Callable[[], bool] | None:
        node = self._somebody(self._may_go)
        if node is None:
            return None
        self._world.tell(node, "FAULT is told to leave")
        self._world.handle(node, LeaveAsked("the seed"))
        self.until = max(self.until, self._world.now + self._world.manifest.timing.leave_notice_s)
        return lambda: node.exit is not None

    def _join(self, _mishap: Mishap) -> Callable[[], bool] | None:
        spec = self._newcomer()
        self._world.boot(spec, self._world.now)
        return lambda: spec.member.peer in self._world.nodes

    # ---- links ----

    def _cut(self, mishap: Mishap) -> Callable[[], bool] | None:
        peers = [node.peer for node in self._world.alive()]
        begins = self._world.now + LEAD_S
        ends = begins + (RESET_S if mishap.kind == "reset" else mishap.for_s)
        one_way = mishap.kind in ("half_open", "asymmetric")
        if len(peers) < 2:
            return None
        one, other = self._sides(peers) if mishap.kind in ("partition", "asymmetric") else self._pair(peers)
        if mishap.kind == "reset" and mishap.loud:
            other = []  # its router has restarted: all of its connections
        cut = Cut(frozenset(one), frozenset(other), begins, ends, one_way)
        self._faults.weather.cuts.append(cut)
        self.until = max(self.until, ends)
        self._world.story.append(
            (self._world.now, "links", f"FAULT {mishap}: {', '.join(one)} / {', '.join(other) or 'others'}")
        )
        return lambda: self._faults.weather.taken[cut] > 0

    def _sides(self, peers: list[PeerId]) -> tuple[list[PeerId], list[PeerId]]:
        """Some of them, and everybody else who is or will be there."""
        share = self._rng.choice((1, len(peers) // 4, len(peers) // 2))
        return sorted(self._rng.sample(peers, max(1, share))), []

    def _pair(self, peers: list[PeerId]) -> tuple[list[PeerId], list[PeerId]]:
        """Two that have something to say to each other: one of the two coordinates, or they hold seats next to each other."""
        node = self._somebody()
        one = node.peer if node else self._rng.choice(peers)
        stages = sorted(stage for stage, member in self._watch.place.seats if member.peer == one)
        near = {s + d for s in stages for d in (-1, 0, 1)}
        others = sorted({m.peer for s, m in self._watch.place.seats if s in near} & set(peers) - {one})
        leads = [n.peer for n in self._world.alive() if self._leads(n) and n.peer != one]
        other = self._rng.choice(leads if leads and self._rng.random() < 0.5 else others or [p for p in peers if p != one])
        return ([one], [other]) if self._rng.random() < 0.5 else ([other], [one])

    def _squeeze(self, mishap: Mishap) -> Callable[[], bool] | None:
        node = self._somebody(self._computes)
        if node is None:
            return None
        network, peer = self._world.network, node.peer
        squeeze = Squeeze(self._rng.choice((0.02, 0.1, 0.5)), self._rng.choice((0.0, 0.2, 0.8)))
        self._world.tell(node, f"FAULT its link for {mishap.for_s:.1f} s: {squeeze}")
        network.squeeze(peer, squeeze)
        before = network.num_squeezed[peer]
        self._passes(mishap, lambda: network.squeeze(peer, None))
        return lambda: network.num_squeezed[peer] > before

    def _directory(self, mishap: Mishap) -> Callable[[], bool] | None:
        world = self._world
        world.story.append((world.now, "directory", f"FAULT answers nobody for {mishap.for_s:.1f} s"))
        before, world.directory_down_until = world.num_lookups_failed, world.now + mishap.for_s
        self.until = max(self.until, world.directory_down_until)
        return lambda: world.num_lookups_failed > before

    def _passes(self, mishap: Mishap, end: Callable[[], None]) -> None:
        self.until = max(self.until, self._world.now + mishap.for_s)
        self._world.post(self._world.now + mishap.for_s, None, end)


def draw(rng: random.Random, kinds: tuple[MishapKind, ...], lapse_s: float) -> Mishap:
    """One at random. Half of the strikes wait for a phase; times lie around the lapse, where decisions are made."""
    kind = rng.choice(kinds)
    for_s = rng.choice((0.3, 0.8, 1.5, 4.0)) * lapse_s * rng.uniform(0.8, 1.2)
    phase = rng.choice((*SEAT_PHASES, *COORDINATOR_PHASES)) if rng.random() < 0.5 else None
    after_s = rng.choice((0.0, rng.expovariate(1 / 3.0)))
    return Mishap(kind, after_s, for_s, phase, rng.random() < 0.5, rng.random() < 0.5)
