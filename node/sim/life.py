"""What all simulated lives have: a world each of whose events is looked at, a beginning, and a word about it if it breaks."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from node.sim.faults import Faults
from node.sim.heap import World
from node.sim.invariants import Invariants
from node.sim.machine import BrokenError, require
from node.sim.network import Network
from node.sim.nodes import MakeState, NodeSpec, SimNode, real_state
from protocol.manifest import Manifest

START_S = 300.0
"""Within this time a swarm begins to train."""

Came = TypeVar("Came")
"""What comes of a life."""


class Life(ABC, Generic[Came]):
    """One seed of one kind of swarm: `inhabit` makes its world, `_run` is what happens in it."""

    name: ClassVar[str]
    """As `regrow sim --life` calls it."""
    manifest: Manifest
    specs: Sequence[NodeSpec]
    watch: Invariants
    faults: Faults
    network: Network
    world: World

    def __init__(self, seed: int, rng: random.Random) -> None:
        self.seed, self.rng = seed, rng
        self.counts: Counter[str] = Counter()

    def inhabit(
        self,
        specs: Sequence[NodeSpec],
        faults: Faults,
        make_state: MakeState = real_state,
        wire: Callable[[Any], Any] | None = None,
    ) -> None:
        """A world for the manifest and these nodes, none of which runs yet. `wire`: what each message goes through."""
        self.specs, self.faults = specs, faults
        self.watch = Invariants(self.manifest, next(spec.member for spec in specs if spec.founder))
        self.network = Network(self.rng, faults.weather)
        self.world = World(self.manifest, self.rng, self.network, faults, self.watch, make_state, wire)
        self.watch.now = lambda: self.world.now

    @property
    def replay(self) -> str:
        """What a person types to see this life again."""
        return f"regrow sim --life {self.name} --seed {self.seed}"

    def about(self) -> str:
        """What is special in this seed, for whoever reads that it broke."""
        return ""

    def run(self) -> Came:
        """Live through it. Raises `BrokenError`, also where a node raised, with the command that replays it in a note."""
        note = "; ".join(filter(None, (self.about(), f"replay: {self.replay}")))
        try:
            return self._run()
        except BrokenError as error:
            error.add_note(note)
            raise
        except Exception as error:  # the edge of a life: a defect of a node is what it looks for, and costs one seed
            broken = BrokenError(f"a node raised {type(error).__name__}: {error}")
            broken.add_note(note)
            raise broken from error

    @abstractmethod
    def _run(self) -> Came: ...

    # ---- what most of them do ----

    def _boot(self, spread_s: float) -> None:
        """All nodes: the founder at once, the others within so many seconds."""
        for index, spec in enumerate(self.specs):
            self.world.boot(spec, 0.0 if not index else self.rng.uniform(0.0, spread_s))

    def _until(self, step: int, limit_s: float, what: str) -> None:
        """Let the swarm commit the step; `what` it does if it does not."""
        require(self.world.run(lambda: self.watch.step >= step, limit_s), f"{what}: {self._situation()}")

    def _holder(self, stage: int) -> SimNode:
        return self.world.nodes[self.watch.place.active(stage)[0].peer]

    def _without_holder(self) -> list[int]:
        """Stages of which nobody who lives has the state."""
        alive = {node.spec.member for node in self.world.alive()}
        return [stage for stage in range(self.manifest.num_stages) if not alive & set(self.watch.place.holders(stage))]

    def _situation(self) -> str:
        says = "; ".join(f"{node!r}: {node.says}" for node in self.world.alive())
        seats = ", ".join(f"{s}:{m.peer}/{m.incarnation}:{x.role}" for (s, m), x in sorted(self.watch.place.seats.items()))
        return f"step {self.watch.step} at {self.world.now:.2f} s; {seats}; {says}"
