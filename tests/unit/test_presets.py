"""The presets: the paper's shapes, and a tiny model that fits a small machine."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.manifest import Manifest
from protocol.presets import PRESETS, preset

DATA = {"train": [{"digest": "0" * 64, "num_bytes": 2_000_000, "num_tokens": 1_000_000}]}


def manifest_of(name: str) -> Manifest:
    return Manifest.model_validate(preset(name) | {"data": DATA})


def num_parameters(m: Manifest) -> tuple[int, int]:
    """(all, those of the transformer blocks)"""
    c = m.model
    kv = c.num_key_value_heads * c.head_dim
    attention = 2 * c.hidden_size**2 + 2 * c.hidden_size * kv
    block = attention + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size
    blocks = c.num_hidden_layers * block
    return blocks + 2 * c.vocab_size * c.hidden_size + c.hidden_size, blocks


@pytest.mark.parametrize(
    ("name", "shape", "stages", "rate", "tokens", "millions"),
    [
        ("124m", (512, 8, 12, 512), 4, 6e-4, 262_144, 83),
        ("500m", (1024, 16, 24, 1024), 6, 3e-4, 262_144, 468),
        ("1.5b", (2048, 16, 24, 4096), 6, 3e-4, 524_288, 1742),
    ],
)
def test_paper_presets(name: str, shape: tuple[int, ...], stages: int, rate: float, tokens: int, millions: int) -> None:
    m = manifest_of(name)
    c, o = m.model, m.optimizer
    assert (
        c.hidden_size,
        c.num_attention_heads,
        c.num_hidden_layers,
        c.max_position_embeddings,
    ) == shape
    assert (c.num_key_value_heads, c.intermediate_size, c.vocab_size) == (shape[1], 4 * shape[0], 32000)
    assert not c.tie_word_embeddings
    assert (c.rope_theta, c.rope_scaling, c.initializer_range) == (1e4, None, 0.02)
    assert (m.num_block_stages, m.batch.tokens_per_step, m.batch.context_tokens) == (
        stages,
        tokens,
        shape[3],
    )
    assert (o.kind, o.learning_rate, o.beta1, o.beta2, o.schedule, o.warmup_steps) == (
        "adamw",
        rate,
        0.9,
        0.999,
        "constant",
        0,
    )
    assert (o.weight_decay, o.clip_norm, o.clip_scope) == (0.0, 1.0, "per_stage")
    assert m.recovery.policy == "checkfree_plus"
    assert round(num_parameters(m)[0] / 1e6) == millions


def test_tiny_fits_a_small_machine() -> None:
    m = manifest_of("tiny")
    total, blocks = num_parameters(m)
    c = m.model
    assert (c.num_hidden_layers, m.num_block_stages) == (12, 4)
    assert 1e6 < blocks < 3e6
    assert m.batch.num_microbatches >= 8
    per_token = 6 * (total - c.vocab_size * c.hidden_size) + 12 * c.num_hidden_layers * c.hidden_size * 128
    # 5 processes on two cores share 20-60 GFLOP/s: 100 steps have to fit into 2.5 minutes.
    assert per_token * m.batch.tokens_per_step < 30e9


@pytest.mark.parametrize("name", PRESETS)
def test_preset_lacks_only_the_data(name: str) -> None:
    assert manifest_of(name).batch.num_microbatches >= 2 * 4
    with pytest.raises(ValueError, match=r"1 validation error for Manifest\ndata\n"):
        Manifest.model_validate(preset(name))


def test_a_preset_is_a_fresh_copy() -> None:
    changed: dict[str, Any] = preset("tiny")
    changed["model"]["hidden_size"] = 1
    assert preset("tiny")["model"]["hidden_size"] != 1


def test_unknown_preset() -> None:
    with pytest.raises(ValueError, match=r"no preset '7b'; there are tiny, 124m, 500m, 1\.5b"):
        preset("7b")
