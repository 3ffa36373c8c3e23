"""Building small runs, and holding what a swarm did against what the reference does on the same manifest and data.

For a swarm in any form: take `manifest_of(...)`, run it, collect a `Trajectory`, then
`assert_same(trajectory, reference_run(manifest, tokens))`.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from node.stage.init import initialise
from node.stage.model import skeleton
from node.stage.tokens import Tokens, TokenSource
from protocol.manifest import Manifest, from_mapping
from tests.numerics import reference

LOSS_TOLERANCE = 1e-6
NORM_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-5


@dataclass
class Trajectory:
    """Mean token loss and unclipped global norm of the mean-loss gradient per step; weights by Hugging Face name."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, np.ndarray]


# --- manifests and data


def manifest_of(num_block_stages: int = 2, *, swapped: bool = False, **changes: Any) -> Manifest:
    """A run that takes a second: hidden 32, vocabulary 199, four layers, or one per block stage where these are more.

    `changes` are dotted keys with '__' for the dot: optimizer__kind="sgd".
    """
    layers = max(4, num_block_stages)
    plain: dict[str, Any] = {
        "name": "numerics",
        "seed": 7,
        "model": {
            "vocab_size": 199,
            "hidden_size": 32,
            "intermediate_size": 56,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32,
        },
        "num_block_stages": num_block_stages,
        "data": {"train": [{"digest": "0" * 64, "num_bytes": 2000, "num_tokens": 1000}]},
        "batch": {"microbatch_samples": 2, "global_samples": 8, "context_tokens": 16},
        "optimizer": {"kind": "adamw", "learning_rate": 2e-3, "warmup_steps": 4, "weight_decay": 0.1},
        "max_steps": 20,
        "recovery": {"policy": "checkfree_plus" if swapped else "none"},
        "local": True,
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        section = plain
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return from_mapping(plain)


class RandomTokens:
    """A `TokenSource` of seeded noise with structure enough to learn: half of the tokens repeat the one before, plus one."""

    def __init__(self, manifest: Manifest, seed: int = 0) -> None:
        self._seed = seed
        self._shape = (manifest.batch.microbatch_samples, manifest.batch.context_tokens + 1)
        self._vocabulary = manifest.model.vocab_size

    def microbatch(self, step: int, microbatch: int) -> Tokens:
        """See `TokenSource`."""
        random = np.random.default_rng([self._seed, step, microbatch])
        tokens = random.integers(0, self._vocabulary, self._shape)
        follows = random.random(self._shape) < 0.5
        for at in range(1, self._shape[1]):
            tokens[:, at] = np.where(follows[:, at], (tokens[:, at - 1] + 1) % self._vocabulary, tokens[:, at])
        return tokens

    def validation(self, microbatch: int) -> Tokens:
        """See `TokenSource`."""
        return self.microbatch(1 << 20, microbatch)


def stage_order(manifest: Manifest, microbatch: int) -> list[int]:
    """Block stages in the order in which a microbatch visits them, as the design has it."""
    last = manifest.num_block_stages
    if not (manifest.swapped and microbatch % 2):
        return list(range(1, last + 1))
    return [2, 1, *range(3, last - 1), last, last - 1]


# --- the reference on a manifest


def initial_weights(manifest: Manifest) -> dict[str, np.ndarray]:
    """The weights that the manifest's seed stands for, of all stages, by Hugging Face name."""
    weights: dict[str, np.ndarray] = {}
    for stage in range(manifest.num_stages):
        weights |= drawn_weights(manifest, stage)
    return weights


def drawn_weights(manifest: Manifest, stage: int, generation: int = 0) -> dict[str, np.ndarray]:
    """Those of one stage; of another generation than 0: as it is drawn anew."""
    parameters = [(name, tuple(p.shape)) for name, p in skeleton(manifest, stage).named_parameters()]
    flat = torch.empty(sum(math.prod(shape) for _, shape in parameters))
    initialise(manifest, parameters, flat, generation)
    return split_flat(parameters, flat.numpy())


def split_flat(parameters: list[tuple[str, tuple[int, ...]]], flat: np.ndarray) -> dict[str, np.ndarray]:
    """A stage's flat vector as arrays by name."""
    ends = np.cumsum([math.prod(shape) for _, shape in parameters])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(parameters, parts, strict=True)}


def llama_config(manifest: Manifest) -> dict[str, Any]:
    """Arguments of transformers' LlamaConfig."""
    config = manifest.model.model_dump()
    scaling, theta = config.pop("rope_scaling"), config.pop("rope_theta")
    config["rope_parameters"] = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    if scaling and scaling["rope_type"] == "linear":
        config["rope_parameters"] = {"rope_theta": theta, "rope_type": "linear", "factor": scaling["factor"]}
    return config


def plan_of(manifest: Manifest) -> reference.Plan:
    """The manifest as the reference reads it."""
    o = manifest.optimizer
    stages = range(manifest.num_stages)
    groups = [[name for name, _ in skeleton(manifest, s).named_parameters()] for s in stages]
    odd_layers = [layer for stage in stage_order(manifest, 1) for layer in manifest.blocks_of(stage)]
    return reference.Plan(
        model=llama_config(manifest),
        kind=o.kind,
        learning_rate=o.learning_rate,
        last_step=manifest.last_step,
        betas=(o.beta1, o.beta2),
        eps=o.eps,
        weight_decay=o.weight_decay,
        schedule=o.schedule,
        min_learning_rate=o.min_learning_rate,
        warmup_steps=o.warmup_steps,
        clip_norm=o.clip_norm,
        clip_groups=groups if o.clip_scope == "per_stage" else (),
        odd_order=odd_layers if manifest.swapped else None,
    )


def reference_run(manifest: Manifest, tokens: TokenSource, num_steps: int | None = None) -> Trajectory:
    """What a plain loop computes from the manifest's seed and these tokens."""
    steps = [
        [tokens.microbatch(step, microbatch) for microbatch in range(manifest.batch.num_microbatches)]
        for step in range(1, (num_steps or manifest.last_step) + 1)
    ]
    result = reference.train(plan_of(manifest), initial_weights(manifest), steps)
    return Trajectory(result.losses, result.norms, result.weights)


# --- looking


def at_once(work: Coroutine[Any, Any, memoryview]) -> memoryview:
    """An inline executor waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return memoryview(done.value)
    raise AssertionError("it waits")


# --- comparing


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """||a - b|| / ||b|| in f64."""
    difference = np.linalg.norm(a.astype(np.float64) - b.astype(np.float64))
    return float(difference / np.linalg.norm(b.astype(np.float64)))


def differences(actual: Trajectory, expected: Trajectory) -> dict[str, float]:
    """The worst relative difference of losses, norms and weights."""

    def worst(a: list[float], b: list[float]) -> float:
        return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))

    assert actual.weights.keys() == expected.weights.keys()
    return {
        "loss": worst(actual.losses, expected.losses),
        "norm": worst(actual.norms, expected.norms),
        "weights": max(relative(actual.weights[name], expected.weights[name]) for name in expected.weights),
    }


def assert_same(actual: Trajectory, expected: Trajectory) -> Mapping[str, float]:
    """Per-step losses, gradient norms and final weights agree within the tolerances. Returns the worst differences."""
    found = differences(actual, expected)
    limits = {"loss": LOSS_TOLERANCE, "norm": NORM_TOLERANCE, "weights": WEIGHT_TOLERANCE}
    too_far = {what: f"{found[what]:.2e} > {limit:.0e}" for what, limit in limits.items() if not found[what] <= limit}
    assert not too_far, f"differs from the reference: {too_far}; all: {found}"
    return found
