"""All stages of a run in one process: the stage executor of a node, and the same step without a swarm around it.

A step is what the swarm computes: each microbatch along its route and back, one sum per stage, gradient scale and learning rate
of `protocol.schedule`, the canonical update.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from node.ports import Payload, Update
from node.stage.executor import TorchExecutor
from node.stage.tokens import TokenSource
from protocol.assignment import stage_order
from protocol.commands import Work
from protocol.manifest import Manifest, RecoverySection
from protocol.schedule import gradient_scale, later_lr_factor, learning_rate

T = TypeVar("T")
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StageState:
    """Of one stage, flat."""

    age: int
    weights: Vector
    exp_avg: Vector
    exp_avg_sq: Vector

    @property
    def vectors(self) -> tuple[Vector, Vector, Vector]:
        """Weights and both moments."""
        return self.weights, self.exp_avg, self.exp_avg_sq


def without_moments(weights: Vector) -> StageState:
    """Where the optimizer begins anew."""
    return StageState(0, weights, np.zeros_like(weights), np.zeros_like(weights))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a stage learns: the factor on its learning rate, and over how many updates it rises to that (0: it is there)."""

    lr_factor: float = 1.0
    warmup: int = 0
    done: int = 0

    @property
    def factor(self) -> float:
        """Of the next update."""
        return self.lr_factor * min(1.0, (self.done + 1) / (self.warmup + 1))


@dataclass(frozen=True, slots=True)
class StepResult:
    """Mean token loss before the update, and each stage's squared norm of the unclipped gradient sum."""

    loss: float
    squared_norms: tuple[float, ...]


@dataclass(slots=True)
class Pipeline:
    """See the module. Its stages are at step 0 until `put`."""

    manifest: Manifest
    tokens: TokenSource
    executor: TorchExecutor = field(init=False)
    sizes: tuple[int, ...] = field(init=False)
    """Elements of each stage."""
    pace: dict[int, Pace] = field(init=False)
    recovery: RecoverySection = field(init=False)
    """Says how a raised learning rate falls back."""

    def __post_init__(self) -> None:
        self.recovery = self.manifest.recovery
        self.executor = TorchExecutor(self.manifest, self.tokens, inline=True)
        self.sizes = tuple(at_once(self.executor.create(stage)).num_elements for stage in self.stages)
        self.pace = dict.fromkeys(self.stages, Pace())

    @property
    def stages(self) -> range:
        """Stage 0 among them."""
        return range(self.manifest.num_stages)

    # ---- state ----

    def get(self, stage: int) -> StageState:
        """A copy of the stage's state."""
        age, data = at_once(self.executor.export_state(stage, 0, self.sizes[stage]))
        return StageState(age, *np.split(np.frombuffer(data, "<f4"), 3))

    def put(self, stage: int, state: StageState, pace: Pace | None = None) -> None:
        """The stage goes on from there."""
        vectors = [_bytes_of(vector) for vector in state.vectors]
        at_once(self.executor.adopt_range(stage, 0, *vectors))
        at_once(self.executor.adopted(stage, state.age))
        self.pace[stage] = pace or Pace()

    def drawn(self, stage: int, generation: int) -> StageState:
        """The stage as it is drawn from the seed; it is left so."""
        at_once(self.executor.create(stage, generation))
        return self.get(stage)

    def mix(self, vectors: Iterable[Vector], coefficients: list[float]) -> Vector:
        """As an averager does."""
        parts: list[bytes | bytearray | memoryview] = [_bytes_of(vector) for vector in vectors]
        return np.frombuffer(at_once(self.executor.mix(parts, coefficients)), "<f4")

    # ---- steps ----

    def step(self, step: int) -> StepResult:
        """One update of every stage."""
        losses = [self._microbatch(step, microbatch) for microbatch in range(self.manifest.batch.num_microbatches)]
        norms = tuple(self._squared_norm(stage) for stage in self.stages)
        optimizer, tokens = self.manifest.optimizer, self.manifest.batch.tokens_per_step
        rate = learning_rate(optimizer, step, self.manifest.last_step)
        for stage in self.stages:
            scale, pace = gradient_scale(self.manifest, tokens, dict(enumerate(norms)), stage), self.pace[stage]
            at_once(self.executor.apply(stage, Update(scale, rate * pace.factor)))
            later = later_lr_factor(self.recovery, pace.lr_factor)
            self.pace[stage] = replace(pace, lr_factor=later, done=pace.done + 1)
        return StepResult(sum(losses) / tokens, norms)

    def _squared_norm(self, stage: int) -> float:
        at_once(self.executor.use_local(stage))
        return at_once(self.executor.reduced(stage))[1]

    def _microbatch(self, step: int, microbatch: int) -> float:
        order = stage_order(self.manifest.num_block_stages, microbatch, self.manifest.swapped)
        payload: Payload | None = at_once(self.executor.compute(Work("embed", 0, step, 1, microbatch), None)).payload
        for stage in order:
            payload = at_once(self.executor.compute(Work("forward", stage, step, 1, microbatch), payload)).payload
        head = at_once(self.executor.compute(Work("head", 0, step, 1, microbatch), payload))
        payload = head.payload
        for stage in reversed(order):
            payload = at_once(self.executor.compute(Work("backward", stage, step, 1, microbatch), payload)).payload
        at_once(self.executor.compute(Work("embed_backward", 0, step, 1, microbatch), payload))
        return head.loss_sum


def _bytes_of(vector: Vector) -> memoryview:
    return np.ascontiguousarray(vector).data.cast("B")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of what an inline executor does: it waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("an inline executor waits")
