"""A seat's tensors: flat f32 vectors for weights, moments and gradients, and the module whose parameters are views of them.

A replica that is alone in its stage takes 16 bytes per parameter: weights, two moments, one gradient. A second gradient vector
exists only where the sum over several replicas has to be kept apart from the local one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from node.ports import PeerError, SeatInfo
from node.stage.digest import state_digest
from node.stage.init import initialise
from node.stage.model import skeleton
from node.stage.update import Run, decay_runs
from protocol.manifest import Manifest

Attempt = tuple[int, int]
"""(step, attempt); the greater one is newer."""


@dataclass(slots=True)
class Retained:
    """What a forward keeps for its backward: `input` and `output` of a block stage, or stage 0's `tokens` [B, T + 1]."""

    input: Tensor | None = None
    output: Tensor | None = None
    tokens: Tensor | None = None


@dataclass(slots=True)
class Gradients:
    """The accumulated gradient, the attempt whose microbatches are in it, and what is known of the reduced one."""

    accumulated: Tensor | None = None
    attempt: Attempt | None = None
    summed: Tensor | None = None
    """Sum over several replicas; None as long as none was installed."""
    installed: dict[int, int] = field(default_factory=dict)
    """first -> end of the ranges of `summed` that are there."""
    local: bool = False
    """The accumulated gradient is the reduced one."""
    keep: int = 0
    """How many reduced gradients outlive their update, for learners."""
    kept: dict[int, Tensor] = field(default_factory=dict)
    """Optimizer age -> the reduced gradient whose update led to it, oldest first."""


class Seat:
    """One stage on `device`, with zero moments and weights from the manifest's seed and the generation (None: zero too). Not
    thread-safe."""

    def __init__(self, manifest: Manifest, stage: int, device: torch.device, generation: int | None = 0) -> None:
        self.stage = stage
        self.device = device
        self.module = skeleton(manifest, stage)
        self.parameters = [(name, tuple(p.shape)) for name, p in self.module.named_parameters()]
        self.num_elements = sum(math.prod(shape) for _, shape in self.parameters)
        self.weights, self.exp_avg, self.exp_avg_sq = (self._zeros() for _ in range(3))
        self.runs: list[Run] = decay_runs(self.parameters, manifest.optimizer.weight_decay)
        self.optimizer_age = 0
        self.gradients = Gradients()
        self.retained: dict[tuple[int, int, int], Retained] = {}
        self._digest: str | None = "" if generation is None else None
        if generation is not None:
            initialise(manifest, self.parameters, self.weights, generation)
        self._bind_parameters()
        self.module.place(device)

    def _zeros(self) -> Tensor:
        return torch.zeros(self.num_elements, dtype=torch.float32, device=self.device)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of a flat vector by parameter name, in their shapes."""
        sizes = [math.prod(shape) for _, shape in self.parameters]
        parts = zip(self.parameters, flat.split(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    def _bind_parameters(self) -> None:
        for name, view in self.views(self.weights).items():
            owner, _, leaf = name.rpartition(".")
            self.module.get_submodule(owner).register_parameter(leaf, nn.Parameter(view))

    # --- gradients

    def accumulate_for(self, attempt: Attempt) -> None:
        """The next gradient is of this attempt. A newer attempt than what is accumulated starts from zero, an older one is a
        `PeerError`."""
        gradients = self.gradients
        if gradients.accumulated is None:
            self._accumulate_into(self._zeros())
        elif gradients.attempt is not None and gradients.attempt < attempt:
            self.clear_gradients()
        elif gradients.attempt is not None and gradients.attempt > attempt:
            raise PeerError("", f"attempt {attempt} is older than {gradients.attempt}, which accumulates already")
        gradients.attempt = attempt

    def _accumulate_into(self, zeros: Tensor) -> None:
        self.gradients.accumulated = zeros
        for name, view in self.views(zeros).items():
            self.module.get_parameter(name).grad = view

    def accumulated(self) -> Tensor:
        """The flat sum over this replica's microbatches; zeros where there was none."""
        if self.gradients.accumulated is None:
            return torch.zeros(1, device=self.device).expand(self.num_elements)
        first = self.module.get_parameter(self.parameters[0][0]).grad
        assert first is not None
        assert first.data_ptr() == self.gradients.accumulated.data_ptr(), "autograd replaced the flat gradient"
        return self.gradients.accumulated

    def install(self, first: int, part: Tensor) -> None:
        """Put a range of the sum over all replicas in place."""
        gradients = self.gradients
        if gradients.summed is None:
            gradients.summed = self._zeros()
        gradients.local = False
        gradients.summed[first : first + len(part)] = part
        gradients.installed[first] = max(first + len(part), gradients.installed.get(first, 0))

    def forget_sum(self) -> None:
        """What was summed counts for nothing; what is accumulated here stays, and may grow."""
        self.gradients.local = False
        self.gradients.installed.clear()

    def use_local(self) -> None:
        """The reduced gradient is the accumulated one."""
        if self.gradients.accumulated is None:
            self.accumulate_for((0, 0))
        self.gradients.local = True

    def reduced(self) -> Tensor:
        """The whole reduced gradient; it must be complete."""
        gradients = self.gradients
        if gradients.local:
            return self.accumulated()
        reached = 0
        for first, end in sorted(gradients.installed.items()):
            assert first <= reached, f"stage {self.stage}: elements {reached}..{first} of the reduced gradient are missing"
            reached = max(reached, end)
        assert gradients.summed is not None, f"stage {self.stage}: nothing was reduced"
        assert reached == self.num_elements, f"stage {self.stage}: the reduced gradient ends at element {reached}"
        return gradients.summed

    def clear_gradients(self) -> None:
        """Forget what was accumulated and reduced; keeps the memory for the next step."""
        gradients = self.gradients
        if gradients.accumulated is not None and gradients.attempt is not None:
            gradients.accumulated.zero_()
        gradients.attempt, gradients.local = None, False
        gradients.installed.clear()

    def discard(self, attempt: Attempt) -> None:
        """Forget retained activations and gradients of this attempt and older ones."""
        for key in [key for key in self.retained if key[:2] <= attempt]:
            del self.retained[key]
        if self.gradients.attempt is None or self.gradients.attempt <= attempt:
            self.clear_gradients()

    # --- kept gradients

    def keep_gradients(self, count: int) -> None:
        """From the next update on the last `count` reduced gradients are kept; what is more is freed now."""
        self.gradients.keep = count
        while len(self.gradients.kept) > count:
            self._forget_oldest()

    def _forget_oldest(self) -> Tensor:
        kept = self.gradients.kept
        return kept.pop(next(iter(kept)))

    def _keep(self) -> None:
        """The buffer of the reduced gradient changes hands, and the one that falls out takes its place: nothing is copied."""
        gradients = self.gradients
        if not gradients.keep:
            return
        free = self._forget_oldest() if len(gradients.kept) >= gradients.keep else None
        gradients.kept[self.optimizer_age] = self.reduced()
        if gradients.local:
            self._accumulate_into(self._zeros() if free is None else free.zero_())
            gradients.attempt = None
        else:
            gradients.summed = free

    # --- state

    def adopted(self, optimizer_age: int) -> None:
        """The vectors hold a state of this age now, which came from elsewhere."""
        self.optimizer_age = optimizer_age
        self._digest = None
        self.gradients.kept.clear()

    def updated(self) -> None:
        """An optimizer update was done: age, gradients and activations follow."""
        self.optimizer_age += 1
        self._digest = None
        self._keep()
        self.retained.clear()
        self.clear_gradients()

    def section(self, name: str) -> Tensor:
        """`weights`, `exp_avg` or `exp_avg_sq`."""
        assert name in ("weights", "exp_avg", "exp_avg_sq"), f"no section {name!r}"
        flat: Tensor = getattr(self, name)
        return flat

    def info(self) -> SeatInfo:
        """Sizes and the digest of weights, moments and age (computed once per update; '' of a blank seat)."""
        if self._digest is None:
            self._digest = state_digest((self.weights, self.exp_avg, self.exp_avg_sq), self.optimizer_age)
        return SeatInfo(self.stage, self.num_elements, 12 * self.num_elements, self.optimizer_age, self._digest)
