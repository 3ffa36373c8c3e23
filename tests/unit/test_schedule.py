"""Learning rates and gradient scales against their definitions, written out once more."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protocol.manifest import Manifest, OptimizerSection, RecoverySection, from_mapping
from protocol.schedule import gradient_norm, gradient_scale, later_lr_factor, learning_rate


def optimizer(**fields: Any) -> OptimizerSection:
    return OptimizerSection(**{"learning_rate": 0.1, **fields})


def manifest(**optimizer_fields: Any) -> Manifest:
    shard = {"digest": "0" * 64, "num_bytes": 2000, "num_tokens": 1000}
    return from_mapping(
        {
            "name": "schedule",
            "model": {
                "vocab_size": 16,
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "max_position_embeddings": 8,
            },
            "num_block_stages": 2,
            "data": {"train": [shard]},
            "batch": {"microbatch_samples": 1, "global_samples": 2, "context_tokens": 8},
            "optimizer": {"learning_rate": 0.1, **optimizer_fields},
            "max_steps": 10,
            "recovery": {"policy": "none"},
        }
    )


def test_warm_up_climbs_in_equal_parts_and_stays_below_the_peak() -> None:
    rates = [learning_rate(optimizer(warmup_steps=3), step, 10) for step in (1, 2, 3, 4, 10)]
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1], rel=1e-15)


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    for schedule in ("constant", "linear", "cosine"):
        assert learning_rate(optimizer(schedule=schedule, min_learning_rate=0.01), 1, 10) == pytest.approx(0.1)


def test_linear_decay() -> None:
    o = optimizer(schedule="linear", warmup_steps=2, min_learning_rate=0.02)
    assert [learning_rate(o, step, 6) for step in range(3, 9)] == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02])


def test_cosine_decay() -> None:
    o = optimizer(schedule="cosine", warmup_steps=1, min_learning_rate=0.02)
    expected = [0.02 + 0.04 * (1 + math.cos(math.pi * p)) for p in (0, 0.25, 0.5, 0.75, 1, 1)]
    assert [learning_rate(o, step, 5) for step in range(2, 8)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_without_room_to_decay_does_not_divide_by_zero(schedule: str) -> None:
    assert learning_rate(optimizer(schedule=schedule, warmup_steps=3), 4, 3) == pytest.approx(0.1)


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="step 0"):
        learning_rate(optimizer(), 0, 10)


NORMS = {0: 4.0 * 100, 1: 9.0 * 100, 2: 36.0 * 100}
"""With 10 tokens the mean gradient's norms are 2, 3 and 6, and 7 together."""


def test_global_clip_uses_the_norm_over_all_stages() -> None:
    for stage in range(3):
        expected = 0.1 * 1.5 / (7 + 1e-6)
        assert gradient_scale(manifest(clip_norm=1.5), 10, NORMS, stage) == pytest.approx(expected, rel=1e-15)


def test_per_stage_clip_uses_the_own_norm() -> None:
    m = manifest(clip_norm=2.5, clip_scope="per_stage")
    scales = [gradient_scale(m, 10, NORMS, stage) for stage in range(3)]
    assert scales == pytest.approx([0.1, 0.1 * 2.5 / (3 + 1e-6), 0.1 * 2.5 / (6 + 1e-6)], rel=1e-15)


@pytest.mark.parametrize("clip", [0.0, 7.1])
def test_no_clip_and_a_wide_clip_only_divide_by_the_tokens(clip: float) -> None:
    assert gradient_scale(manifest(clip_norm=clip), 10, NORMS, 1) == 0.1


def test_a_clip_never_enlarges() -> None:
    assert gradient_scale(manifest(clip_norm=1.0), 10, dict.fromkeys(range(3), 0.0), 0) == 0.1


def test_the_order_of_the_mapping_does_not_matter() -> None:
    norms = {0: 0.1, 1: 1e16, 2: 0.3}
    backwards = dict(reversed(norms.items()))
    assert gradient_scale(manifest(), 7, norms, 0) == gradient_scale(manifest(), 7, backwards, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("scope", ["global", "per_stage"])
def test_a_norm_that_is_no_norm_is_refused(bad: float, clip: float, scope: str) -> None:
    with pytest.raises(ValueError, match="not a finite"):
        gradient_scale(manifest(clip_norm=clip, clip_scope=scope), 10, {**NORMS, 1: bad}, 0)


def test_norms_that_overflow_together_are_refused() -> None:
    with pytest.raises(ValueError, match="sum of the squared"):
        gradient_norm(1, [1.7e308, 1.7e308])


def test_a_missing_or_unknown_stage_is_refused() -> None:
    for norms in ({0: 1.0, 1: 1.0}, {**NORMS, 3: 1.0}):
        with pytest.raises(ValueError, match=r"0\.\.2 are needed"):
            gradient_scale(manifest(), 10, norms, 0)


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        gradient_scale(manifest(), 0, NORMS, 0)


@pytest.mark.parametrize("start", [1.1, 2.0, 0.3, 10.0])
@pytest.mark.parametrize("steps", [1, 3, 7, 1000])
def test_the_factor_of_a_rebuilt_stage_falls_back_to_1_linearly_and_stays_there(start: float, steps: int) -> None:
    recovery, factor = RecoverySection(lr_factor=start, lr_factor_decay_steps=steps), start
    for done in range(steps + 3):
        assert factor == pytest.approx(1.0 + (start - 1.0) * max(0, steps - done) / steps, rel=1e-12)
        factor = later_lr_factor(recovery, factor)
    assert factor == 1.0


def test_the_factor_stays_without_decay_and_a_stage_that_was_never_rebuilt_has_none() -> None:
    assert later_lr_factor(RecoverySection(lr_factor=1.1), 1.1) == 1.1
    decays = RecoverySection(lr_factor=1.1, lr_factor_decay_steps=10)
    assert later_lr_factor(decays, 1.0) == 1.0
    assert later_lr_factor(RecoverySection(lr_factor=1.0, lr_factor_decay_steps=10), 1.0) == 1.0
    assert later_lr_factor(decays, 7.0) == pytest.approx(1.09), "what no state of this run has falls too"
