"""One run of the grid: a node for each stage, failures as planned, newcomers in their places, until the target is reached."""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from node.checkpoints.places import PlaceError
from node.checkpoints.store import CheckpointStore
from node.lab.grid.charged import ChargedExecutor
from node.lab.grid.plan import Failure, Plan, scales
from node.lab.grid.policies import Cell
from node.lab.grid.regions import RegionLibrary, Regions, Scale, StoreLine
from node.runtime import Runtime
from node.sim.loop import START_S, run_virtual
from node.sim.swarm import MemorySink, MemorySwarm, Outfit
from node.stage.tokens import TokenSource
from node.transport.config import Direction, Hooks, Kind
from protocol.ids import PeerId
from protocol.manifest import DataSection, Manifest
from protocol.seat import SeatPhase

TOLD = frozenset("lost rebuild promoted rolled_back forked took_over save_failed restore_failed evaluation_skipped".split())
"""Event lines that the result keeps, each once."""
KEPT: tuple[str, ...] = ("stage", "step", "stages", "to_step", "policy", "rung", "reason")
"""Of such a line."""
PATIENCE = 200
"""A run that commits nothing for the time of so many steps is given up: it stands still."""
Plain = dict[str, Any]


@dataclass(slots=True)
class MemoryPlace:
    """A `node.checkpoints.places.Place` without a disk."""

    where: str = "memory"
    _files: dict[str, bytes] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        """See `Place`."""
        return {name: len(data) for name, data in self._files.items()}

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """See `Place`."""
        self._files[name] = b"".join(parts)
        return len(self._files[name])

    @contextmanager
    def read(self, name: str) -> Iterator[IO[bytes]]:
        """See `Place`."""
        if name not in self._files:
            raise PlaceError(f"{name} is not there")
        yield io.BytesIO(self._files[name])

    def remove(self, name: str) -> None:
        """See `Place`."""
        self._files.pop(name, None)


@dataclass(slots=True)
class _Ear(MemorySink):
    """Hands on what a node notes, and keeps nothing."""

    hear: Callable[[str, Plain], None] = lambda *_: None

    def note(self, type_: str, fields: Plain) -> None:
        """See `EventSink`."""
        self.hear(type_, fields)


@dataclass(slots=True)
class Play:
    """See the module. `on_step` is told the number of executed steps; `result` is what there is to keep."""

    plan: Plan
    cell: Cell
    data: DataSection
    tokens: Callable[[Manifest], TokenSource]
    on_step: Callable[[int], None] = lambda _: None
    manifest: Manifest = field(init=False)
    executed: int = 0
    losses: list[float] = field(default_factory=list)
    curve: list[Plain] = field(default_factory=list)
    struck: list[Plain] = field(default_factory=list)
    story: list[Plain] = field(default_factory=list)
    bytes: Counter[str] = field(default_factory=Counter)
    reached: bool = False
    _swarm: MemorySwarm = field(init=False)
    _links: Regions = field(init=False)
    _decided: set[str] = field(default_factory=set)
    _last: str = ""
    _told: set[str] = field(default_factory=set)
    _to_come: list[Failure] = field(init=False)
    _watchdog: asyncio.TimerHandle | None = None
    _hours_at_end: float = 0.0

    def __post_init__(self) -> None:
        rig, cell = self.plan.rig, self.cell
        self.manifest = rig.manifest(rig.small, self.data, cell.seed, cell.recovery)
        large = rig.manifest(rig.large, self.data, cell.seed, cell.recovery)
        self._to_come = list(self.plan.schedule(cell.rate, cell.seed, cell.stage0))
        rng = random.Random(f"world {cell.seed}")
        self._links = Regions(rig, rng)
        library = RegionLibrary(rng, links=self._links, scale=Scale(*scales(rig, self.manifest, large)), counted=self.bytes)
        assert library.scale, "given"
        is_saved = cell.recovery["policy"] == "checkpoint"
        tokens = self.tokens(self.manifest)
        self._links.place |= {f"peer{stage:03d}": rig.places[stage] for stage in range(self.manifest.num_stages)}

        def equip(peer: PeerId, runtime: Runtime) -> None:
            runtime.savings.in_thread = StoreLine(library, peer)

        self._swarm = MemorySwarm(
            self.manifest,
            list(range(self.manifest.num_stages)),
            lambda _: ChargedExecutor(self.manifest, tokens, rig),
            seed=cell.seed,
            encode=False,
            hooks=Hooks(on_bytes=self._count),
            outfit=Outfit(
                self._links,
                library,
                library.scale.payload,
                sink=lambda _: _Ear(hear=self._hear),
                store=CheckpointStore(MemoryPlace(), self.manifest.run_id) if is_saved else None,
                equip=equip,
                piece=library.scale.piece,
            ),
        )

    def result(self) -> Plain:
        """Play it."""
        began = time.process_time()
        run_virtual(self._run(), limit_s=float("inf"))
        return {
            "cell": self.cell.name,
            "reached": self.reached,
            "executed": self.executed,
            "hours": round(self._hours_at_end, 4),
            "bytes": dict(sorted(self.bytes.items())),
            "curve": self.curve,
            "failures": self.struck,
            "story": self.story,
            "cpu_s": round(time.process_time() - began, 1),
        }

    async def _run(self) -> None:
        self._wait_for_a_step()
        await self._swarm.run()
        self._hours_at_end = self._hours()

    def _hours(self) -> float:
        return (asyncio.get_running_loop().time() - START_S) / 3600

    def _count(self, kind: Kind, direction: Direction, num_bytes: int) -> None:
        if direction == "out":
            self.bytes[kind] += num_bytes

    # ---- what is heard of the run

    def _hear(self, type_: str, fields: Plain) -> None:
        if type_ == "decided":
            self._last = fields["record"]
        elif type_ == "loss" and self._last not in self._decided:
            self._decided.add(self._last)
            self._step(fields["value"])
        elif type_ == "validation":
            self._look(fields)
        elif type_ in TOLD:
            self._tell(type_, fields)

    def _tell(self, type_: str, fields: Plain) -> None:
        """Every node says what was decided: it is kept once."""
        kept = {key: fields[key] for key in KEPT if key in fields}
        key = f"{type_} {kept} {fields.get('generation')}"
        if key not in self._told:
            self._told.add(key)
            self.story.append({"hours": round(self._hours(), 4), "executed": self.executed, "type": type_, **kept})

    def _step(self, loss: float) -> None:
        self.executed += 1
        self.losses.append(round(loss, 3))
        self.on_step(self.executed)
        for struck in self.struck:
            struck.setdefault("back_hours", round(self._hours(), 4))
        if self.executed >= self.plan.max_steps:
            self._swarm.halt()
            return
        self._wait_for_a_step()
        while self._to_come and self._to_come[0].step <= self.executed + 1:
            failure = self._to_come.pop(0)
            after_s = failure.moment * self.plan.rig.step_s
            asyncio.get_running_loop().call_later(after_s, self._strike, failure)

    def _look(self, fields: Plain) -> None:
        hours = round(self._hours(), 4)
        value = fields["value"]
        self.curve.append({"executed": self.executed, "step": fields["step"], "hours": hours, "loss": round(value, 5)})
        if value <= self.plan.target_loss:
            self.reached = True
            self._swarm.halt()

    def _wait_for_a_step(self) -> None:
        if self._watchdog:
            self._watchdog.cancel()
        seconds = PATIENCE * self.plan.rig.step_s
        self._watchdog = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self.story.append({"hours": round(self._hours(), 4), "executed": self.executed, "type": "stands still"})
        self._swarm.halt()

    # ---- failures

    def _strike(self, failure: Failure) -> None:
        """The holder that works for the stage dies; a stage that nobody holds at present is spared, and that is told."""
        told: Plain = {"executed": self.executed + 1, "stage": failure.stage, "hours": round(self._hours(), 4)}
        self.struck.append(told)
        holder = self._holder(failure.stage)
        if holder is None:
            told["missed"] = True
            return
        self._swarm.kill(holder)
        rig = self.plan.rig
        asyncio.get_running_loop().call_later(rig.replacement_s, self._replace, failure.stage)

    def _holder(self, stage: int) -> Any:
        for node in self._swarm.nodes:
            seat = None if node.killed or node.exit else node.state.bench.seats.get(stage)
            if seat and seat.state.role == "active" and seat.phase not in (SeatPhase.CREATING, SeatPhase.LEARNING):
                return node
        return None

    def _replace(self, stage: int) -> None:
        number = len(self._swarm.wishes)
        self._links.place[f"peer{number:03d}"] = self.plan.rig.places[stage]
        self._swarm.join(stage)
