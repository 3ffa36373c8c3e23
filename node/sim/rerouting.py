"""One seed of a swarm with two replicas of each block stage, of which one dies, hangs or is cut off from a neighbour in the
middle of a step: what becomes of the attempt, and what it cost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from node.sim.faults import Faults, Phase, Strike
from node.sim.life import START_S, Life
from node.sim.machine import require
from node.sim.nodes import Decider, NodeSpec, real_state
from node.sim.scenario import a_manifest
from protocol.chain import Chain
from protocol.commands import Command, Compute, Note
from protocol.events import Event
from protocol.ids import Member
from protocol.manifest import Manifest, from_mapping
from protocol.workbench import Workbench

Fault = Literal["crash", "silent", "freeze", "cut", "two", "cut, then lost"]
FAULTS: tuple[Fault, ...] = ("crash", "silent", "freeze", "cut", "two", "cut, then lost")
PHASES: tuple[Phase, ...] = ("forward", "backward", "accumulated", "reduce", "reduced")
AT_STEP = 3
STEPS_AFTER = 2


@dataclass(slots=True)
class Rerouted:
    """What came of it. `computed`: passes of one microbatch through one stage, all that were begun at the struck step."""

    seed: int
    fault: Fault
    phase: Phase
    commits: int
    attempts: int
    computed: int
    least: int
    """The passes of an undisturbed step."""
    seconds: float
    """From the fault to the commit of the step."""
    counts: Counter[str] = field(default_factory=Counter)


class _Counted:
    """A node whose passes are counted, by step."""

    def __init__(self, state: Decider, life: Rerouting) -> None:
        self._state, self._life = state, life

    @property
    def chain(self) -> Chain:
        """The decided records, for those that check them."""
        return self._state.chain  # type: ignore[attr-defined,no-any-return]

    @property
    def bench(self) -> Workbench:
        """What the node works on, for those that count payloads."""
        return self._state.bench  # type: ignore[attr-defined,no-any-return]

    def handle(self, event: Event, now: float) -> list[Command]:
        """See `Decider`."""
        commands = self._state.handle(event, now)
        for command in commands:
            if isinstance(command, Compute) and not command.work.evaluate:
                self._life.passes[command.work.step] += 1
            elif isinstance(command, Note) and command.type == "voided":
                self._life.voided.add((command.fields["step"], command.fields["attempt"]))
        return commands


class Rerouting(Life[Rerouted]):
    """See the module. Raises `BrokenError`."""

    name = "reroute"

    def __init__(self, seed: int, cell: tuple[Fault, Phase] | None = None) -> None:
        super().__init__(seed, random.Random(f"rerouting {seed} {cell}"))
        rng = self.rng
        self.fault, self.phase = cell or (FAULTS[seed % len(FAULTS)], PHASES[seed // len(FAULTS) % len(PHASES)])
        stages = rng.randint(2, 3)
        self.replicas = [rng.choice((1, 2)), *(3 if self.fault == "two" else 2 for _ in range(stages))]
        self.manifest = self._manifest(stages)
        specs = self._specs()
        self.inhabit(specs, Faults().duplicate(rng.choice((0.01, 0.1))).reorder(rng.choice((0.01, 0.05))), self._make)
        self.passes: Counter[int] = Counter()
        self.voided: set[tuple[int, int]] = set()

    def _make(self, manifest: Manifest, spec: NodeSpec, address: str) -> Decider:
        return _Counted(real_state(manifest, spec, address), self)

    def _manifest(self, stages: int) -> Manifest:
        data: dict[str, Any] = a_manifest(self.rng, stages, min(self.replicas), 10_000, self.seed)
        data["recovery"] = {"policy": "none"}
        data["evaluation"]["every_steps"] = 0
        data["batch"]["global_samples"] = self.rng.randint(6, 12)
        return from_mapping(data)

    def _specs(self) -> list[NodeSpec]:
        """The founder holds stage 0, where nobody is struck."""
        seats = [stage for stage, count in enumerate(self.replicas) for _ in range(count)]
        return [
            NodeSpec(Member(f"peer{i:02d}", 1), f"node-{i}", i == 0, stage, self.rng.uniform(0.01, 0.04))
            for i, stage in enumerate(seats)
        ]

    def about(self) -> str:
        """Which fault."""
        return f"{self.fault} in {self.phase}"

    def _run(self) -> Rerouted:
        world, watch = self.world, self.watch
        for spec in self.specs[1:]:
            world.boot(spec, self.rng.uniform(0.0, 3.0))
        world.boot(self.specs[0], 0.0)
        require(world.run(self._is_whole, START_S), f"does not start: {self._situation()}")
        self._strike()
        struck_at, step = world.now, watch.step + 1
        limit_s = 10 * self.manifest.timing.lapse_s + self.manifest.timing.first_microbatch_s + 60.0
        self._until(step, limit_s, f"step {step} is not committed")
        seconds = world.now - struck_at
        self._until(step + STEPS_AFTER, limit_s, "stands still")
        attempts = 1 + len({at for at in self.voided if at[0] == step})
        self.counts.update(watch.num_checked)
        least = self.manifest.batch.num_microbatches * (2 * self.manifest.num_block_stages + 3)
        return Rerouted(
            self.seed,
            self.fault,
            self.phase,
            len(watch.commits),
            attempts,
            self.passes[step],
            least,
            seconds,
            self.counts,
        )

    def _is_whole(self) -> bool:
        """All replicas compute, and a few steps are done."""
        place = self.watch.place
        whole = all(len(place.active(stage)) == count for stage, count in enumerate(self.replicas))
        return whole and self.watch.step >= AT_STEP

    def _strike(self) -> None:
        """Hit a replica of a block stage just before it does something of the phase."""
        rng, stage = self.rng, self.rng.randint(1, self.manifest.num_block_stages)
        more: dict[str, Any] = {"replica": rng.randrange(self.replicas[stage]), "skip": rng.choice((0, 1, 2))}
        if self.phase in ("reduce", "reduced"):
            more["skip"] = 0
        at_step = self.watch.step + 1
        if self.fault == "freeze":
            for_s = rng.choice((0.5, 1.0, 3.0)) * self.manifest.timing.lapse_s
            self.faults.freeze(stage=stage, at_step=at_step, phase=self.phase, for_s=for_s, forgetful=True, **more)
        elif self.fault in ("cut", "cut, then lost"):
            self._cut(stage)
            return
        else:
            self.faults.crash(stage=stage, at_step=at_step, phase=self.phase, loud=self.fault != "silent", **more)
        if self.fault == "two" and self.phase not in ("reduce", "reduced"):
            other = rng.randint(1, self.manifest.num_block_stages)
            again = {"replica": 0 if more["replica"] else 1, "skip": rng.choice((0, 1, 3))} if other == stage else more
            self.faults.crash(stage=other, at_step=at_step, phase=rng.choice(("forward", "backward")), **again)
        self.world.run(lambda: not self.faults.armed, START_S)
        require(not self.faults.armed, f"no fault: {self._situation()}")

    def _cut(self, stage: int) -> None:
        """Nothing passes between two neighbours on the way, and both live."""
        place, now = self.watch.place, self.world.now
        near = stage - 1 if stage > 1 else 0
        row, next_to_it = place.active(stage), place.active(near)
        rank = self.rng.randrange(len(row))
        one, other = row[rank], next_to_it[rank % len(next_to_it)]
        self.faults.cut((one.peer, other.peer), (now, now + 4.0 * self.manifest.timing.lapse_s))
        if self.fault == "cut, then lost":
            before = self.watch.num_checked["relieved"]
            led_around = self.world.run(lambda: self.watch.num_checked["relieved"] > before, 2.0 * self.manifest.timing.lapse_s)
            if led_around:
                self.world.run(lambda: False, self.rng.choice((0.05, 0.3, 1.0)))
            self.world.hit(self.world.nodes[one.peer], Strike("crash", stage, 0, "forward", loud=self.rng.random() < 0.5))
