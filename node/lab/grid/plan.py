"""What is fixed before the first run: the rig, the target, when which stage fails. One file holds all of it, `plan.json`, and
every result names the digest of the plan that it was made under.

The tensors are those of a small model; the clock and the bytes are charged as if they were those of the paper's 500M model
(arXiv 2506.15461), a third of whose batch one pipeline computes.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from node.lab.derived import RATES
from node.ports import UnusableError
from protocol.manifest import DataSection, Manifest, from_mapping
from protocol.sizes import stage_parameters

VERSION = 2
FROZEN = Path(__file__).parent / "plan.json"
MIB = 1 << 20


class Part(BaseModel):
    """Base: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Link(Part):
    """Between two regions, one way."""

    latency_s: float = Field(ge=0, description="Until the first byte is there.")
    mib_s: float = Field(gt=0, description="What one node gets through it while nothing else goes over its own line.")


class Shape(Part):
    """A model and the tokens of one pipeline in a step."""

    hidden: int = Field(gt=0, description="Width.")
    heads: int = Field(gt=0, description="Of attention.")
    layers_per_stage: int = Field(gt=0, description="Blocks of a block stage.")
    vocab: int = Field(gt=1, description="Token ids.")
    context_tokens: int = Field(gt=0, description="Tokens of a sample.")
    samples: int = Field(gt=0, description="Samples per step.")

    @property
    def tokens(self) -> int:
        """Per step."""
        return self.samples * self.context_tokens


class Rig(Part):
    """Where the stages are, what they compute, and what that takes."""

    small: Shape = Field(description="What is computed.")
    large: Shape = Field(description="What is charged for.")
    num_block_stages: int = Field(ge=1, description="Block stages; stage 0 comes in addition.")
    num_microbatches: int = Field(ge=1, description="Of a step.")
    learning_rate: float = Field(gt=0, description="AdamW, constant after a warm-up of 10 steps; clipped per stage.")
    places: tuple[str, ...] = Field(description="Region of each stage's holder, from stage 0 on; newcomers come up there too.")
    links: dict[str, Link] = Field(description="Between regions, by their names joined with '-'; the same both ways.")
    within: Link = Field(description="Between two nodes of one region.")
    store: str = Field(description="Region of the store of saved stages.")
    layer_s: float = Field(gt=0, description="Seconds for one sample's way forward and back through one layer.")
    head_layers: float = Field(ge=0, description="Final norm, head and loss cost as much as so many layers.")
    heartbeat_s: float = Field(gt=0, description="A node is given up after three.")
    replacement_s: float = Field(ge=0, description="Until a new node stands in for one that has gone.")
    step_s: float = Field(gt=0, description="What a step without trouble takes, about: moments of failures are shares of it.")
    evaluate_every: int = Field(ge=1, description="Steps between two looks at the held-out loss.")
    evaluate_microbatches: int = Field(ge=1, description="Held-out microbatches.")

    def manifest(self, shape: Shape, data: DataSection, seed: int, recovery: dict[str, Any]) -> Manifest:
        """Of a run with this shape. Raises `ValueError` for a policy that this version does not have."""
        return from_mapping(
            {
                "name": "lab-grid",
                "seed": seed,
                "model": {
                    "vocab_size": shape.vocab,
                    "hidden_size": shape.hidden,
                    "intermediate_size": 4 * shape.hidden,
                    "num_hidden_layers": self.num_block_stages * shape.layers_per_stage,
                    "num_attention_heads": shape.heads,
                    "num_key_value_heads": shape.heads,
                    "max_position_embeddings": shape.context_tokens,
                    "initializer_range": 0.02,
                },
                "num_block_stages": self.num_block_stages,
                "data": data.model_dump(mode="json"),
                "batch": {
                    "microbatch_samples": shape.samples // self.num_microbatches,
                    "global_samples": shape.samples,
                    "context_tokens": shape.context_tokens,
                },
                "optimizer": {"learning_rate": self.learning_rate, "warmup_steps": 10, "clip_scope": "per_stage"},
                "max_steps": 1_000_000,
                "recovery": {"rebuild_grace_s": 0.0, "newcomer_wait_s": 3600.0, "embedding_copies": 0} | recovery,
                "wire": {"activations": "bf16", "gradients": "bf16"},
                "timing": {
                    "heartbeat_s": self.heartbeat_s,
                    "lease_s": 12 * self.heartbeat_s,
                    "first_microbatch_s": 20 * self.step_s,
                },
                "evaluation": {"every_steps": self.evaluate_every, "num_microbatches": self.evaluate_microbatches},
            }
        )

    def link(self, one: str, other: str) -> Link:
        """Between two regions."""
        return self.within if one == other else self.links.get(f"{one}-{other}") or self.links[f"{other}-{one}"]


class Failure(Part):
    """The holder of a stage dies. Steps are counted as they are executed, those that are done again after a rollback too, so
    that every policy meets the same."""

    step: int = Field(ge=2, description="During the so-manieth executed step.")
    stage: int = Field(ge=0, description="Whose holder.")
    moment: float = Field(ge=0, le=1, description="How far within the step, in shares of `step_s`.")


class Schedule(Part):
    """The failures of all runs of one rate and seed. `stage0`: of the second set, in which stage 0 fails like any other."""

    rate: str = Field(description="Failures per hour in per cent, as the paper calls it: a key of `derived.RATES`.")
    seed: int = Field(ge=0, description="Of weights, data and failures.")
    stage0: bool = Field(False, description="Does stage 0 fail too?")
    failures: tuple[Failure, ...] = Field(description="In order.")


class Plan(Part):
    """All of it."""

    version: int = Field(VERSION, description="Of the file and of what is measured.")
    rig: Rig = Field(description="See `Rig`.")
    target_loss: float = Field(gt=0, description="A run ends when its held-out loss is there.")
    max_steps: int = Field(ge=2, description="Or after so many executed steps.")
    schedules: tuple[Schedule, ...] = Field(description="One for each rate and seed of either set.")

    @property
    def digest(self) -> str:
        """Names the plan in the results."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def schedule(self, rate: str, seed: int, stage0: bool) -> tuple[Failure, ...]:
        """None at rate 0."""
        wanted = (rate, seed, stage0)
        found = [s.failures for s in self.schedules if (s.rate, s.seed, s.stage0) == wanted]
        assert found or rate == "0", f"the plan has no schedule for {wanted}"
        return found[0] if found else ()


def draw(rate: str, seed: int, stage0: bool, num_block_stages: int, max_steps: int, per_stage: float) -> Schedule:
    """Each stage fails in each step with the same probability, independent of all else. The first step is spared: until it is
    committed nobody knows of a gradient's norm."""
    rng = random.Random(f"failures {rate} {seed} {stage0}")
    stages = range(0 if stage0 else 1, num_block_stages + 1)
    drawn = [
        Failure(step=step, stage=stage, moment=round(rng.random(), 3))
        for step in range(2, max_steps + 1)
        for stage in stages
        if rng.random() < per_stage
    ]
    return Schedule(rate=rate, seed=seed, stage0=stage0, failures=tuple(sorted(drawn, key=lambda f: (f.step, f.moment))))


def schedules(
    rates: tuple[str, ...], seeds: tuple[int, ...], num_block_stages: int, max_steps: int, factor: float = 1.0
) -> tuple[Schedule, ...]:
    """Of the first set at each rate, and of the second at 10 %. `factor`: times as many failures."""
    wanted = [(rate, seed, False) for rate in rates for seed in seeds] + [("10", seed, True) for seed in seeds if "10" in rates]
    return tuple(draw(rate, seed, stage0, num_block_stages, max_steps, factor * RATES[rate]) for rate, seed, stage0 in wanted)


def read_plan(path: Path = FROZEN) -> Plan:
    """Raises `UnusableError(2)` with one line."""
    try:
        plan = Plan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UnusableError(2, f"--plan {path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise UnusableError(2, f"--plan {path}: {first_fault(error)}") from None
    if plan.version != VERSION:
        raise UnusableError(2, f"--plan {path}: version {plan.version}; this program reads {VERSION}")
    return plan


def first_fault(error: ValidationError) -> str:
    """Which field, and what is wrong with it."""
    fault = error.errors()[0]
    where = ".".join(map(str, fault["loc"]))
    return f"{where}: {fault['msg']}" if where else fault["msg"]


def scales(rig: Rig, small: Manifest, large: Manifest) -> tuple[float, tuple[float, ...]]:
    """What a byte here counts for: of activations and their gradients; of each stage's weights and their gradients."""
    activations = rig.large.tokens * rig.large.hidden / (rig.small.tokens * rig.small.hidden)
    weights = tuple(stage_parameters(large, s) / stage_parameters(small, s) for s in range(small.num_stages))
    return activations, weights
