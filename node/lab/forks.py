"""The two things that are measured: an undisturbed run, and a fork of it in which a stage is lost.

The run leaves *warm states* behind: of all stages after some steps, and the weights of each stage some steps before. A fork
takes one up, puts what a policy makes in place of a stage, and goes on with the same samples as the run did: what differs
between the two curves is the loss of that stage. With nothing lost they are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from node.data.files import BlobFiles
from node.data.store import open_token_store
from node.lab.files import warm_path, write_whole
from node.lab.pipeline import Pace, Pipeline, StageState, Vector, without_moments
from node.lab.setup import Setup, setup_of
from node.lab.treatments import Treatment, treatment_of
from node.ports import UnusableError
from protocol.manifest import DataSection
from protocol.recipes import moment_shares

RESIDUAL = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What a block adds to the residual stream goes through one of these."""
Plain = dict[str, Any]
"""What JSON can hold."""


@dataclass(slots=True)
class Bench:
    """Of one process and one run: seed and order."""

    folder: Path
    setup: Setup
    data: DataSection
    seed: int
    swapped: bool
    pipeline: Pipeline = field(init=False)
    _warm: tuple[int, dict[str, Vector]] = (0, {})

    def __post_init__(self) -> None:
        manifest = self.setup.manifest(self.data, self.seed, self.swapped)
        self.pipeline = Pipeline(manifest, open_token_store(manifest, BlobFiles(self.folder / "cache")))

    # ---- the undisturbed run ----

    def reference(self) -> Plain:
        """Train from the beginning; leave warm states; return the losses, and the norms at the warm steps."""
        pipeline, setup = self.pipeline, self.setup
        for stage in pipeline.stages:
            pipeline.put(stage, without_moments(pipeline.drawn(stage, 0).weights))
        losses: list[float] = []
        norms: dict[str, list[float]] = {}
        older: dict[int, dict[int, Vector]] = {}
        kept = {warm - age for warm in setup.warm_steps for age in setup.ages}
        assert min(kept) > 0, f"warm steps {setup.warm_steps} are too early for copies {setup.ages} steps old"
        for step in range(1, setup.steps + 1):
            result = pipeline.step(step)
            losses.append(result.loss)
            if step in kept:
                older[step] = {stage: pipeline.get(stage).weights.copy() for stage in pipeline.stages[1:]}
            if step in setup.warm_steps:
                norms[str(step)] = list(result.squared_norms)
                self._keep(step, {age: older[step - age] for age in setup.ages})
        return {"losses": losses, "norms": norms}

    def _keep(self, warm: int, older: Mapping[int, Mapping[int, Vector]]) -> None:
        tensors: dict[str, Vector] = {}
        for stage in self.pipeline.stages:
            state = self.pipeline.get(stage)
            named = dict(zip(("weights", "exp_avg", "exp_avg_sq"), state.vectors, strict=True))
            tensors |= {f"{stage}.{name}": vector for name, vector in named.items()}
        tensors |= {f"{stage}.weights.{age}": vector for age, found in older.items() for stage, vector in found.items()}
        write_whole(warm_path(self.folder, self.seed, self.swapped, warm), save(tensors))

    # ---- a fork ----

    def fork(self, warm: int, stage: int, treatment: Treatment) -> Plain:
        """The losses of the steps after the warm one."""
        self.take_up(warm, stage, treatment)
        steps = range(warm + 1, warm + self.setup.fork_steps + 1)
        return {"losses": [self.pipeline.step(step).loss for step in steps]}

    def take_up(self, warm: int, stage: int, treatment: Treatment) -> None:
        """All stages are as after the warm step, but for the lost one."""
        pipeline, states = self.pipeline, self._states(warm)
        for other in pipeline.stages:
            pipeline.put(other, self._state(other, warm))
        if treatment.kind != "none":
            pace = Pace(treatment.lr_factor, treatment.warmup)
            pipeline.put(stage, self._treated(stage, treatment, states), pace)
        changes = {"lr_factor": treatment.lr_factor, "lr_factor_decay_steps": treatment.lr_decay_steps}
        pipeline.recovery = pipeline.manifest.recovery.model_copy(update=changes)

    def _states(self, warm: int) -> dict[str, Vector]:
        if self._warm[0] != warm:
            path = warm_path(self.folder, self.seed, self.swapped, warm)
            try:
                self._warm = warm, load(path.read_bytes())
            except OSError as error:
                why = f"{path} cannot be read ({error.strerror}); delete {path.parent} to begin anew"
                raise UnusableError(2, why) from None
        return self._warm[1]

    def _state(self, stage: int, warm: int) -> StageState:
        """Every stage has had an update at each step."""
        states = self._states(warm)
        return StageState(warm, *(states[f"{stage}.{name}"] for name in ("weights", "exp_avg", "exp_avg_sq")))

    def _treated(self, stage: int, treatment: Treatment, states: Mapping[str, Vector]) -> StageState:
        if treatment.kind == "own":
            return without_moments(states[f"{stage}.weights.{treatment.age}"])
        if treatment.kind == "drawn":
            return self.pipeline.drawn(stage, 1)
        made = self._mixed(treatment, states)
        if treatment.residual != 1.0:
            self._scale_residual(stage, made.weights, treatment.residual)
        return made

    def _mixed(self, treatment: Treatment, states: Mapping[str, Vector]) -> StageState:
        """As `node.mixing` makes it of decided coefficients."""
        names = [stage for stage, _ in treatment.sources]
        shares = [share for _, share in treatment.sources]
        weights = self.pipeline.mix([states[f"{s}.weights"] for s in names], shares).copy()
        if treatment.moments == "fresh":
            return without_moments(weights)
        moments = moment_shares(shares, [self._warm[0]] * len(names), self.pipeline.manifest.optimizer)
        first = self.pipeline.mix([states[f"{s}.exp_avg"] for s in names], list(moments.first))
        second = self.pipeline.mix([states[f"{s}.exp_avg_sq"] for s in names], list(moments.second))
        return StageState(moments.age, weights, first, second)

    def _scale_residual(self, stage: int, weights: Vector, factor: float) -> None:
        first = 0
        for name, shape in self.pipeline.executor.parameters(stage):
            size = int(np.prod(shape))
            if name.endswith(RESIDUAL):
                weights[first : first + size] *= factor
            first += size


@dataclass(slots=True)
class Hand:
    """Does jobs, one after another; what the last one needed is kept for the next. A job is plain data."""

    _bench: tuple[str, Bench] | None = None

    def do(self, job: Plain) -> Plain:
        """`job` with what came of it."""
        bench = self._at(job)
        name: Plain = job["name"]
        if job["what"] == "reference":
            return name | bench.reference()
        return name | bench.fork(name["warm"], name["stage"], treatment_of(name["treatment"]))

    def _at(self, job: Plain) -> Bench:
        place = repr((job["folder"], job["setup"], job["name"]["seed"], job["name"]["swapped"]))
        if self._bench is None or self._bench[0] != place:
            data = DataSection.model_validate(job["data"])
            name = job["name"]
            self._bench = place, Bench(Path(job["folder"]), setup_of(job["setup"]), data, name["seed"], name["swapped"])
        return self._bench[1]
