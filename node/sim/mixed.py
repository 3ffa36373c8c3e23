"""One seed of everything at once: a swarm to which mishaps of all kinds happen, also several at a time (`node.sim.mixture`),
and what must come of it.

- What `node.sim.invariants` says holds after every event.
- L1: once everything that passes has passed, and newcomers offer seats, steps advance within a bound, and those that hold seats
  (or think so) are of one lineage again; unless state is gone for good, or whoever holds it (`Mixed.why_over`).
- Whoever is asked to leave at the end goes, and owes nothing.

*Goodput*: steps that were committed from the first mishap to the third step after the last one, as a share of those that the
same swarm would have made in that time at its speed just before, when nothing had happened yet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from node.sim.faults import Faults
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.mishaps import Mishaps
from node.sim.mixture import WEATHER, Mixture, Options
from node.sim.nodes import MakeState, real_state
from protocol.chain import is_quorum
from protocol.events import LeaveAsked
from protocol.shadow_ledger import shadow_misfit

CALM_STEPS = 3
STEPS_AFTER = 3


@dataclass(slots=True)
class Lived:
    """What came of it. `steps` of `possible` ones: see *goodput*."""

    seed: int
    verdict: str
    """went on / lost for good."""
    why: str
    """Why it is over, where it is."""
    commits: int
    steps: int
    possible: float
    events: int
    virtual_s: float
    asked: Counter[str]
    fired: Counter[str]
    recoveries: Counter[str]
    """By rung."""
    counts: Counter[str] = field(default_factory=Counter)


class Mixed(Life[Lived]):
    """See the module."""

    name = "mixed"

    def __init__(self, options: Options, make_state: MakeState = real_state) -> None:
        self.options = options
        self.mixture = mixture = Mixture(options)
        super().__init__(options.seed, mixture.rng)
        self.manifest = mixture.manifest
        self.inhabit(mixture.specs, Faults(), make_state)
        self.world.directory_parts = mixture.directory_parts
        self.mishaps = Mishaps(self.world, self.faults, self.rng, mixture.is_careful, mixture.newcomer)

    @property
    def replay(self) -> str:
        """See `Life`."""
        return self.options.replay

    def _run(self) -> Lived:
        world, watch = self.world, self.watch
        self._boot(3.0)
        self._until(2, START_S, "does not start")
        first_at = world.now
        self._until(watch.step + CALM_STEPS, START_S, "does not train though nothing happened yet")
        step_s = (world.now - first_at) / CALM_STEPS
        began, before = world.now, watch.step
        self._break_things()
        verdict = self._recover()
        steps, possible = watch.step - before, (world.now - began) / step_s
        if verdict == "went on":
            self._end()
        return self._lived(verdict, steps, possible)

    def _break_things(self) -> None:
        """All of the plan, then wait until it has passed."""
        self.faults.duplicate(self.mixture.duplicate).reorder(self.mixture.reorder)
        for mishap in self.mixture.plan:
            self.world.run(lambda: False, mishap.after_s)
            self.mishaps.befall(mishap)
        self.world.run(lambda: False, max(0.0, self.mishaps.until - self.world.now))

    def _recover(self) -> str:
        """Give it newcomers and time."""
        for _ in range(2):
            self.world.boot(self.mixture.newcomer(), self.world.now)
        wanted = self.watch.num_grown + STEPS_AFTER
        if self.world.run(lambda: self.watch.num_grown >= wanted, self._limit_s()):
            require(self.world.run(self._is_one, self._limit_s()), f"lineages stay apart: {self._situation()}")
            return "went on"
        why = self.why_over()
        require(bool(why), f"stands still: {self._situation()}")
        return "lost for good"

    def _limit_s(self) -> float:
        timing, recovery = self.manifest.timing, self.manifest.recovery
        waits_s = timing.fork_after_s + recovery.rebuild_grace_s + recovery.newcomer_wait_s + 4 * timing.join_pause_s
        return 20 * timing.lapse_s + 2 * waits_s + 3 * timing.first_microbatch_s + timing.leave_notice_s + 60.0

    def why_over(self) -> str:
        """Why the swarm need not go on: a stage of which nobody who lives has the state and which is not made of others, or no
        quorum and no source for every stage; '' if it must."""
        place, manifest = self.watch.place, self.manifest
        alive = {node.spec.member for node in self.world.alive()}
        decides = is_quorum(alive & set(place.voters), place.voters)
        lost = [stage for stage in self._without_holder() if not (decides and self._is_kept(stage))]
        if not lost:
            return ""
        if manifest.recovery.policy == "none":
            return f"nobody holds stages {lost}"
        if manifest.recovery.policy == "checkpoint":
            return ""
        unsure = {0, *lost} if decides else {0, *lost, *place.made}
        over = 0 in lost or len(unsure) > manifest.num_block_stages
        return f"stages {lost} cannot be made of others" if over else ""

    def _is_kept(self, stage: int) -> bool:
        """Has somebody who lives sealed a shadow of it that may be restored now?"""
        step, every = self.watch.place.step, self.manifest.recovery.shadow_every
        found = [
            kept.sealed for (node, of), kept in self.world.works.copies.shadows.kept.items() if of == stage and not node.dead
        ]
        return any(sealed and not shadow_misfit(sealed, step, every) for sealed in found)

    def _is_one(self) -> bool:
        place = self.watch.place
        seated = {member for _, member in place.seats}
        states: list[Any] = [node.state for node in self.world.alive()]
        theirs = [s for s in states if s.config.member in seated or s.chain.is_seated(s.config.member)]
        return all(str(state.chain.lineage) == place.lineage for state in theirs)

    def _end(self) -> None:
        """Everybody goes at once, owing nothing."""
        for node in self.world.alive():
            for _ in range(2):
                if node.exit is None and not node.thread.hung:
                    self.world.handle(node, LeaveAsked("the end"))
            require(node.exit is not None or node.thread.hung, f"{node!r} does not leave at once when asked twice")

    def _lived(self, verdict: str, steps: int, possible: float) -> Lived:
        asked, fired = Counter[str](mishap.kind for mishap in self.mixture.plan), self.mishaps.fired()
        weather, world = self.faults.weather, self.world
        happened = {"duplicate": weather.num_duplicates, "reorder": weather.num_reorders, "clock": len(world.nodes)}
        for kind in WEATHER:
            if kind in self.options.faults:
                asked[kind] += 1
                fired[kind] += happened[kind] > 0
        rungs = Counter(self.watch.recovered.values())
        commits = len(self.watch.commits)
        counts = self.watch.num_checked + Counter(nodes=len(world.nodes))
        return Lived(
            self.options.seed,
            verdict,
            "" if verdict == "went on" else self.why_over(),
            commits,
            steps,
            possible,
            world.num_events,
            world.now,
            asked,
            fired,
            rungs,
            counts,
        )


def live_mixed(seed: int) -> Lived:
    """One seed with everything, start to end."""
    return Mixed(Options(seed)).run()
