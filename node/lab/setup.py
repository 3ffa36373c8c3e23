"""What the lab trains: a small model of the paper's kind on real text, many times over with other seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from protocol.manifest import DataSection, Manifest, from_mapping

VERSION = 1
"""Of what is measured and how: raw results of another one are not mixed with these."""
SHADOWS = {"shadow_10": 10, "shadow_50": 50}
"""Policy -> a copy is made every so many steps."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Shape of the model and of the runs. A stage is lost right after a warm step."""

    layers_per_stage: int = 2
    num_block_stages: int = 4
    hidden: int = 64
    heads: int = 4
    vocab: int = 2048
    context_tokens: int = 64
    samples: int = 16
    learning_rate: float = 3e-3
    seeds: tuple[int, ...] = (0, 1, 2)
    warm_steps: tuple[int, ...] = (150, 300, 600)
    fork_steps: int = 120

    @property
    def steps(self) -> int:
        """Of the undisturbed run."""
        return max(self.warm_steps) + self.fork_steps

    @property
    def ages(self) -> tuple[int, ...]:
        """How old copies of a stage's own weights are at a failure: on the average and at the worst, of each shadow."""
        return tuple(sorted({age for every in SHADOWS.values() for age in (every // 2, every)}))

    def with_layers(self, layers_per_stage: int) -> Setup:
        """The same with stages of another size."""
        return replace(self, layers_per_stage=layers_per_stage)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def manifest(self, data: DataSection, seed: int, swapped: bool) -> Manifest:
        """Of one run. Clipping is per stage, as in the paper; two microbatches, one of which is swapped under CheckFree+."""
        return from_mapping(
            {
                "name": "lab",
                "seed": seed,
                "model": {
                    "vocab_size": self.vocab,
                    "hidden_size": self.hidden,
                    "intermediate_size": 4 * self.hidden,
                    "num_hidden_layers": self.num_block_stages * self.layers_per_stage,
                    "num_attention_heads": self.heads,
                    "num_key_value_heads": self.heads,
                    "max_position_embeddings": self.context_tokens,
                    "initializer_range": 0.02,
                },
                "num_block_stages": self.num_block_stages,
                "data": data.model_dump(mode="json"),
                "batch": {
                    "microbatch_samples": self.samples // 2,
                    "global_samples": self.samples,
                    "context_tokens": self.context_tokens,
                },
                "optimizer": {"learning_rate": self.learning_rate, "warmup_steps": 10, "clip_scope": "per_stage"},
                "max_steps": 1_000_000,
                "recovery": {"policy": "checkfree_plus" if swapped else "checkfree"},
                "local": True,
            }
        )

    def name(self, data: DataSection) -> str:
        """Of the folder of its results: what is trained, wherever the data lie and however many runs and forks there are."""
        digests = [shard.digest for shard in (*data.train, *data.validation)]
        left_out = ("seeds", "warm_steps", "fork_steps")
        shape = {key: value for key, value in self.plain().items() if key not in left_out}
        named = hashlib.sha256(json.dumps([VERSION, shape, digests]).encode()).hexdigest()
        return f"{self.layers_per_stage}-layers-{named[:10]}"


def setup_of(plain: Mapping[str, Any]) -> Setup:
    """The inverse of `Setup.plain`."""
    lists = {key: tuple(value) for key, value in plain.items() if isinstance(value, list | tuple)}
    return Setup(**{**plain, **lists})


DEFAULT = Setup()
QUICK = Setup(
    layers_per_stage=1, hidden=32, heads=2, context_tokens=32, samples=8, seeds=(0, 1), warm_steps=(60,), fork_steps=12
)
