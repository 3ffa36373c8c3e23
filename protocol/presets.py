"""Presets: everything of a manifest but its data.

`tiny` is for a first look on one small machine; `124m`, `500m` and `1.5b` have the shapes and the training settings of
"All is Not Lost: LLM Recovery without Checkpoints" (arXiv 2506.15461): SwiGLU four times as wide as the model, an untied head,
32,000 token ids, constant learning rate, each stage clipped to 1.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from protocol.manifest import slug


def _paper(
    *,
    hidden: int,
    heads: int,
    layers: int,
    stages: int,
    context: int,
    learning_rate: float,
    tokens_per_step: int,
    microbatch_samples: int,
    max_steps: int,
    recompute: bool,
) -> dict[str, Any]:
    return {
        "model": {
            "vocab_size": 32000,
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": context,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "initializer_range": 0.02,
        },
        "num_block_stages": stages,
        "batch": {
            "microbatch_samples": microbatch_samples,
            "global_samples": tokens_per_step // context,
            "context_tokens": context,
        },
        "optimizer": {
            "kind": "adamw",
            "learning_rate": learning_rate,
            "beta1": 0.9,
            "beta2": 0.999,
            "weight_decay": 0.0,
            "schedule": "constant",
            "clip_norm": 1.0,
            "clip_scope": "per_stage",
        },
        "max_steps": max_steps,
        "recovery": {"policy": "checkfree_plus"},
        "wire": {"activations": "bf16"},
        "evaluation": {"every_steps": 100, "num_microbatches": 8},
        "compute": {"recompute_activations": recompute},
    }


PRESETS: dict[str, dict[str, Any]] = {
    # 1.3 M block parameters, 2,048 tokens and about 22 GFLOP a step: a second on one slow core.
    "tiny": {
        "model": {
            "vocab_size": 2048,
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_hidden_layers": 12,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128,
            "initializer_range": 0.05,
        },
        "num_block_stages": 4,
        "batch": {"microbatch_samples": 2, "global_samples": 16, "context_tokens": 128},
        "optimizer": {"learning_rate": 3e-3, "beta2": 0.95, "warmup_steps": 5},
        "max_steps": 200,
        "recovery": {"policy": "checkfree_plus", "rebuild_grace_s": 2.0},
        "evaluation": {"every_steps": 50, "num_microbatches": 4},
        "local": True,
    },
    "124m": _paper(
        hidden=512,
        heads=8,
        layers=12,
        stages=4,
        context=512,
        learning_rate=6e-4,
        tokens_per_step=262_144,
        microbatch_samples=8,
        max_steps=20_000,
        recompute=False,
    ),
    "500m": _paper(
        hidden=1024,
        heads=16,
        layers=24,
        stages=6,
        context=1024,
        learning_rate=3e-4,
        tokens_per_step=262_144,
        microbatch_samples=8,
        max_steps=30_000,
        recompute=True,
    ),
    "1.5b": _paper(
        hidden=2048,
        heads=16,
        layers=24,
        stages=6,
        context=4096,
        learning_rate=3e-4,
        tokens_per_step=524_288,
        microbatch_samples=2,
        max_steps=30_000,
        recompute=True,
    ),
}


def preset(name: str) -> dict[str, Any]:
    """The sections of a preset as a fresh mapping that lacks only `data`. Raises `ValueError` for an unknown name."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return {"name": slug(name), "seed": 0, **deepcopy(PRESETS[name])}
