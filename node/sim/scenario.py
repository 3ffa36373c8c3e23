"""A random swarm, a random fault and what must come of it, all from one seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from node.sim.faults import COORDINATOR, COORDINATOR_PHASES, SEAT_PHASES, Faults, Strike
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.machine import require
from node.sim.network import Network
from node.sim.nodes import Decider, MakeState, NodeSpec, SimNode
from protocol.events import LeaveAsked
from protocol.ids import Member
from protocol.manifest import Manifest, from_mapping
from protocol.node_state import NodeConfig, NodeState

MAX_NODES = 12
STEPS_BEFORE = 5
STEPS_AFTER = 5
START_LIMIT_S = 300.0
SETTLE_S = 40.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed stands for."""

    seed: int
    manifest: Manifest
    nodes: tuple[tuple[float, NodeSpec], ...]
    """(when it boots, which it is)."""
    strike: Strike
    duplicate: float
    reorder: float


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    seed: int
    commits: int
    events: int
    virtual_s: float
    fired: str
    verdict: str
    """went on / waits / unharmed / resumed."""
    counts: Counter[str] = field(default_factory=Counter)


def replay_command(seed: int) -> str:
    """What a person types to see this seed again."""
    return f"python -m node.sim --seed {seed}"


def make_scenario(seed: int) -> Scenario:
    """Deterministic: the seed is all that it depends on."""
    rng = random.Random(seed)
    num_block_stages = rng.randint(2, 5)
    replicas = _replicas(rng, num_block_stages + 1)
    at_step = STEPS_BEFORE + rng.randint(1, 3)
    manifest = from_mapping(_manifest(rng, num_block_stages, min(replicas), at_step + STEPS_AFTER + 3, seed))
    nodes = _nodes(rng, replicas)
    strike = _strike(rng, replicas, manifest, at_step)
    return Scenario(seed, manifest, nodes, strike, rng.choice((0.01, 0.05, 0.2)), rng.choice((0.01, 0.05, 0.1)))


def _replicas(rng: random.Random, num_stages: int) -> list[int]:
    replicas = [rng.choice((1, 1, 2, 2, 3)) for _ in range(num_stages)]
    while sum(replicas) > MAX_NODES:
        replicas[max(range(num_stages), key=replicas.__getitem__)] -= 1
    least, second = sorted(range(num_stages), key=replicas.__getitem__)[:2]
    replicas[second] = replicas[least]  # so that one of the two is not the founder's stage
    return replicas


def _manifest(rng: random.Random, stages: int, start_replicas: int, steps: int, seed: int) -> dict[str, Any]:
    microbatches = rng.randint(3, 12)
    policies = ["none", "checkfree"] + ["checkfree_plus"] * 2 * (stages >= 4)
    shard = {"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19}
    model = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2 * stages}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    return {
        "name": "sim",
        "seed": seed,
        "model": model | heads,
        "num_block_stages": stages,
        "start_replicas": start_replicas,
        "data": {"train": [shard], "validation": [shard] if rng.random() < 0.4 else []},
        "batch": {
            "microbatch_samples": 1,
            "global_samples": microbatches,
            "context_tokens": 128,
            "max_in_flight": rng.choice((0, 1, 2, 4)),
        },
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": rng.choice((0, 4)), "clip_norm": rng.choice((0.0, 1.0))},
        "max_steps": steps,
        "recovery": {"policy": rng.choice(policies), "embedding_copies": rng.choice((0, 1, 2))},
        "timing": {"first_microbatch_s": rng.choice((5.0, 20.0))},
        "evaluation": {"every_steps": rng.choice((0, 2, 3)), "num_microbatches": rng.randint(1, 4)},
    }


def _nodes(rng: random.Random, replicas: list[int]) -> tuple[tuple[float, NodeSpec], ...]:
    """One node per seat. The last to boot is one without whom the run cannot start: so all are there at the start."""
    seats = [stage for stage, count in enumerate(replicas) for _ in range(count)]
    rng.shuffle(seats)
    if rng.random() < 0.7:
        seats.sort(key=lambda stage: stage != 0)
    last = max(i for i, stage in enumerate(seats) if i and replicas[stage] == min(replicas[s] for s in seats[1:]))
    seats.append(seats.pop(last))
    wishes = rng.random() < 0.6 or len(set(replicas)) > 1
    nodes = []
    for index, stage in enumerate(seats):
        founder, is_last = index == 0, index == len(seats) - 1
        boot_s = 0.0 if founder else 12.0 if is_last else rng.uniform(0.0, 4.0)
        member = Member(f"peer{index:02d}", rng.randint(1, 9))
        wished = stage if wishes or founder else -1
        nodes.append((boot_s, NodeSpec(member, f"node-{index}", founder, wished, rng.uniform(0.005, 0.05))))
    return tuple(nodes)


def _strike(rng: random.Random, replicas: list[int], manifest: Manifest, at_step: int) -> Strike:
    lapse_s = manifest.timing.lapse_s
    coordinator = rng.random() < 0.2
    stage = COORDINATOR if coordinator else rng.randrange(len(replicas))
    phases = COORDINATOR_PHASES if coordinator else SEAT_PHASES
    kind = rng.choice(("crash", "crash", "freeze", "freeze", "restart"))
    long = {"freeze": rng.choice((0.3, 0.8, 1.5, 4.0)) * lapse_s, "restart": rng.uniform(0.1, 2.0) * lapse_s}
    return Strike(
        kind,  # type: ignore[arg-type]
        stage,
        at_step,
        rng.choice(phases),
        replica=0 if coordinator else rng.randrange(replicas[stage]),
        skip=rng.choice((0, 0, 1, 2)),
        for_s=long.get(kind, 0.0),
        loud=rng.random() < 0.5,
        forgetful=rng.random() < 0.5,
    )


def real_state(manifest: Manifest, spec: NodeSpec, address: str) -> Decider:
    """The production decision object."""
    return NodeState(NodeConfig(manifest, spec.member, spec.name, address, spec.founder, spec.wished_stage))


class Trial:
    """One scenario being lived through."""

    def __init__(self, scenario: Scenario, make_state: MakeState = real_state) -> None:
        self.scenario = scenario
        rng = random.Random(f"world {scenario.seed}")
        self.faults = Faults().duplicate(scenario.duplicate).reorder(scenario.reorder).add(scenario.strike)
        founder = next(spec for _, spec in scenario.nodes if spec.founder)
        self.watch = Invariants(scenario.manifest, founder.member)
        network = Network(rng, self.faults.weather)
        self.world = World(scenario.manifest, rng, network, self.faults, self.watch, make_state)
        self.watch.now = lambda: self.world.now
        self.founder = founder.member
        for at, spec in scenario.nodes:
            self.world.boot(spec, at)

    def run(self) -> Outcome:
        """Live through it. Raises `BrokenError` with the seed's replay command in a note."""
        try:
            return self._run()
        except Exception as error:
            error.add_note(f"{self.scenario.strike}\nreplay: {replay_command(self.scenario.seed)}")
            raise

    def _run(self) -> Outcome:
        world, watch = self.world, self.watch
        require(world.run(lambda: not self.faults.armed, START_LIMIT_S), f"no fault yet: {self._situation()}")
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

    def _struck(self) -> SimNode:
        nodes = self.world.nodes.values()
        return next(node for node in nodes if node.frozen or (node.dead and node.exit is None))

    def _expectation(self, struck: SimNode) -> tuple[bool, str]:
        """(must the swarm go on, else what survivors must say they wait for). A short freeze is no loss."""
        strike, lapse_s = self.scenario.strike, self.scenario.manifest.timing.lapse_s
        if strike.kind == "freeze" and strike.for_s < 0.5 * lapse_s:
            return True, ""
        if struck.spec.member == self.founder:
            return False, "" if strike.kind == "freeze" else "coordinator"
        place = self.watch.place
        stages = [s for s in range(self.scenario.manifest.num_stages) if place.holders(s) == [struck.spec.member]]
        if strike.kind == "freeze" and stages:
            return False, ""
        return not stages, f"stage {stages[0]}" if stages else ""

    def _must_go_on(self, before: int, fired_at: float) -> str:
        manifest = self.scenario.manifest
        per_step = (fired_at - self.watch.commits[0][0]) / max(1, before - 1)
        limit_s = 6 * manifest.timing.lapse_s + 20 * per_step + manifest.timing.first_microbatch_s
        reached = self.world.run(lambda: self.watch.step >= before + STEPS_AFTER, limit_s)
        require(reached, f"stuck {limit_s:.1f} s after step {before}: {self._situation()}")
        return self._finish()

    def _finish(self) -> str:
        last = self.scenario.manifest.last_step
        limit_s = 10 * self.scenario.manifest.timing.lapse_s + 60
        require(self.world.run(lambda: self.watch.step >= last, limit_s), f"not finished: {self._situation()}")
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
        self.world.run(lambda: self.watch.step >= self.scenario.manifest.last_step, 3 * SETTLE_S)
        if self.watch.step >= before + STEPS_AFTER:
            return "resumed"
        self._leave()
        return "stopped"

    def _leave(self) -> None:
        """Everybody is told to go and goes at once, owing nothing."""
        for node in self.world.alive():
            require(not node.frozen, f"{node!r} is still frozen")
            self.world.handle(node, LeaveAsked("the simulation ends"))
            require(node.exit is not None, f"{node!r} does not leave")

    def _quiet(self) -> None:
        for node in self.world.alive():
            self.watch.quiet(node)

    def _situation(self) -> str:
        says = "; ".join(f"{node!r}: {node.says}" for node in self.world.alive())
        return f"step {self.watch.step} at {self.world.now:.2f} s; {says}"

    def _outcome(self, verdict: str) -> Outcome:
        weather, strike = self.faults.weather, self.scenario.strike
        counts = Counter(
            duplicates=weather.num_duplicates,
            reorders=weather.num_reorders,
            unreachable=self.world.num_unreachable,
            **self.watch.num_checked,
        )
        commits, events = len(self.watch.commits), self.world.num_events
        return Outcome(self.scenario.seed, commits, events, self.world.now, strike.kind, verdict, counts)


def run_seed(seed: int, observe: Callable[[Trial], None] | None = None) -> Outcome:
    """One seed, start to end; `observe` sees the trial also if it fails."""
    trial = Trial(make_scenario(seed))
    try:
        return trial.run()
    finally:
        if observe:
            observe(trial)
