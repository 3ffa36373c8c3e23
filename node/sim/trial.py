"""One seed lived through, and what must come of it: the swarm goes on, or waits and says for what."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from node.sim.faults import Faults
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.nodes import MakeState, SimNode, real_state
from node.sim.scenario import STEPS_AFTER, STEPS_BEFORE, Scenario, make_scenario
from protocol.events import LeaveAsked

SETTLE_S = 40.0
OVERDUE_STEPS = 3


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    seed: int
    commits: int
    events: int
    virtual_s: float
    fired: str
    verdict: str
    """went on / waits for ... / resumed / stopped."""
    counts: Counter[str] = field(default_factory=Counter)
    most_payloads: int = 0


def replay_command(seed: int, takeover: str = "") -> str:
    """What a person types to see this seed again."""
    return f"regrow sim --life {f'takeover-{takeover}' if takeover else 'static'} --seed {seed}"


class Trial(Life[Outcome]):
    """One scenario being lived through."""

    name = "static"

    def __init__(
        self,
        scenario: Scenario,
        make_state: MakeState = real_state,
        wire: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(scenario.seed, random.Random(f"world {scenario.seed}"))
        self.scenario, self.manifest = scenario, scenario.manifest
        specs = [spec for _, spec in scenario.nodes]
        faults = Faults().duplicate(scenario.duplicate).reorder(scenario.reorder).add(scenario.strike)
        self.inhabit(specs, faults, make_state, wire)
        self.founder = next(spec.member for spec in specs if spec.founder)
        for at, spec in scenario.nodes:
            self.world.boot(spec, at)

    @property
    def replay(self) -> str:
        """See `Life`."""
        return replay_command(self.scenario.seed, self.scenario.takeover)

    def about(self) -> str:
        """The strike."""
        return str(self.scenario.strike)

    def _run(self) -> Outcome:
        world, watch = self.world, self.watch
        reached = world.run(lambda: not self.faults.armed or self._is_overdue(), START_S)
        require(reached, f"no fault yet: {self._situation()}")
        self._strike_now()
        before = watch.step
        require(before >= STEPS_BEFORE, f"the fault came after only {before} steps")
        fired_at, struck = world.now, self._struck()
        must_go_on, waits_for = self._expectation(struck)
        if must_go_on:
            verdict = self._must_go_on(before, fired_at)
        elif waits_for:
            verdict = self._must_wait(before, waits_for)
        else:
            verdict = self._may_do_either()
        self.faults.assert_fired()
        return self._outcome(verdict)

    def _is_overdue(self) -> bool:
        """Does the replica that is to be struck not come to its phase? It may be at another stage by now, or get no work."""
        return self.watch.step >= self.scenario.strike.at_step + OVERDUE_STEPS

    def _strike_now(self) -> None:
        """What is overdue strikes a replica of the stage between two of its events."""
        strike = self.faults.spring()
        if strike:
            active = self.watch.place.active(strike.stage)
            self.world.hit(self.world.nodes[active[min(strike.replica, len(active) - 1)].peer], strike)

    def _struck(self) -> SimNode:
        nodes = self.world.nodes.values()
        return next(node for node in nodes if node.frozen or (node.dead and node.exit is None))

    def _expectation(self, struck: SimNode) -> tuple[bool, str]:
        """(must the swarm go on, else what survivors must say they wait for). A short freeze is no loss. To go on without the
        coordinator the others need a quorum of the voters, and all stages or the means to make them of others; else they go on
        when it thaws. A quorum that may make stages leads itself, and says which one cannot be made. After a long freeze of the
        only holder of such a stage both may happen.
        """
        strike, lapse_s = self.scenario.strike, self.manifest.timing.lapse_s
        if strike.kind == "freeze" and strike.for_s < 0.5 * lapse_s:
            return True, ""
        place, recovers = self.watch.place, self.manifest.recovery.policy != "none"
        stages = [s for s in range(self.manifest.num_stages) if place.holders(s) == [struck.spec.member]]
        if recovers and 0 not in stages:
            stages = []
        if struck.spec.member == self.founder:
            can_lead = place.has_quorum_without(self.founder)
            if strike.kind == "freeze" and (stages or not can_lead):
                return True, ""
            if not can_lead or (stages and not recovers):
                return False, "coordinator"
        if strike.kind == "freeze" and stages:
            return False, ""
        return not stages, f"stage {stages[0]}" if stages else ""

    def _must_go_on(self, before: int, fired_at: float) -> str:
        manifest = self.manifest
        per_step = (fired_at - self.watch.commits[0][0]) / max(1, before - 1)
        limit_s = 6 * manifest.timing.lapse_s + 20 * per_step + manifest.timing.first_microbatch_s
        recovery = manifest.recovery
        limit_s += self.scenario.strike.for_s + recovery.rebuild_grace_s + recovery.newcomer_wait_s
        self._until(before + STEPS_AFTER, limit_s, f"stuck {limit_s:.1f} s after step {before}")
        return self._finish()

    def _finish(self) -> str:
        limit_s = 10 * self.manifest.timing.lapse_s + 60
        self._until(self.manifest.last_step, limit_s, "not finished")
        self.world.run(lambda: all(node.dead for node in self._seated()), limit_s)
        for node in self._seated():
            require(node.exit is not None, f"{node!r} does not exit after the last step: {self._situation()}")
            require(not node.exit or node.exit.code == 0, f"{node!r} exits with {node.exit}")
        self._quiet()
        return "went on"

    def _seated(self) -> list[SimNode]:
        members = {member for _, member in self.watch.place.seats}
        nodes = [node for node in self.world.nodes.values() if node.spec.member in members]
        return [node for node in nodes if not (node.dead and node.exit is None)]

    def _must_wait(self, before: int, waits_for: str) -> str:
        self.world.run(lambda: False, SETTLE_S)
        require(self.watch.step <= before + 1, f"{self.watch.step - before} commits without {waits_for}")
        for node in self.world.alive():
            if node.spec.member in {member for _, member in self.watch.place.seats}:
                require(waits_for in node.says, f"{node!r} says {node.says!r} and not what it waits for: {waits_for}")
        if waits_for != "coordinator":
            self._quiet()
        self._leave()
        return f"waits for {waits_for.split(maxsplit=1)[0]}"

    def _may_do_either(self) -> str:
        before = self.watch.step
        self.world.run(lambda: self.watch.step >= self.manifest.last_step, 3 * SETTLE_S)
        if self.watch.step >= before + STEPS_AFTER:
            return "resumed"
        place, stages = self.watch.place, range(self.manifest.num_stages)
        lost = [f"stage {stage}" for stage in stages if not place.active(stage)]
        require(bool(lost), f"stopped, and every stage has a holder: {self._situation()}")
        for node in self._seated():
            require(lost[0] in node.says, f"{node!r} says {node.says!r} and not what it waits for: {lost}")
        self._leave()
        return "stopped"

    def _leave(self) -> None:
        """Everybody is told to go and goes at once, owing nothing."""
        for node in self.world.alive():
            require(not node.frozen, f"{node!r} is still frozen")
            self.world.handle(node, LeaveAsked("the simulation ends"))
            if node.exit is None:
                self.world.handle(node, LeaveAsked("at once"))
            require(node.exit is not None, f"{node!r} does not leave")

    def _quiet(self) -> None:
        for node in self.world.alive():
            self.watch.quiet(node)

    def _outcome(self, verdict: str) -> Outcome:
        weather, strike = self.faults.weather, self.scenario.strike
        counts = Counter(
            duplicates=weather.num_duplicates,
            reorders=weather.num_reorders,
            unreachable=self.world.num_unreachable,
            **self.watch.num_checked,
        )
        commits, events = len(self.watch.commits), self.world.num_events
        most = self.watch.most_payloads
        return Outcome(self.scenario.seed, commits, events, self.world.now, strike.kind, verdict, counts, most)


def run_seed(seed: int, observe: Callable[[Trial], None] | None = None) -> Outcome:
    """One seed, start to end; `observe` sees the trial also if it fails."""
    trial = Trial(make_scenario(seed))
    try:
        return trial.run()
    finally:
        if observe:
            observe(trial)
