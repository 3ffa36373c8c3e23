"""Sample addressing: each window once per epoch, whatever the sizes, and the same numbers for ever."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.manifest import Manifest
from protocol.sampling import (
    check_data,
    epoch_of,
    num_windows,
    permuted,
    train_samples,
    validation_samples,
)


def a_manifest(tokens: int = 1000, held_out: int = 100, **changed: Any) -> Manifest:
    def shard(count: int) -> dict[str, Any]:
        return {"digest": "0" * 64, "num_bytes": 2 * count, "num_tokens": count}

    sections: dict[str, Any] = {
        "name": "test",
        "seed": 3,
        "model": {
            "vocab_size": 64,
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16,
        },
        "num_block_stages": 4,
        "data": {"train": [shard(tokens)], "validation": [shard(held_out)] if held_out else []},
        "batch": {"microbatch_samples": 3, "global_samples": 12, "context_tokens": 16},
        "optimizer": {"learning_rate": 0.001},
        "max_steps": 10,
    }
    return Manifest.model_validate(sections | changed)


@given(count=st.integers(1, 3000), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 50))
def test_permutation_is_a_bijection(count: int, seed: int, epoch: int) -> None:
    assert sorted(permuted(i, count, seed, epoch) for i in range(count)) == list(range(count))


def test_permutation_scatters_and_depends_on_seed_and_epoch() -> None:
    count = 5000
    orders = [[permuted(i, count, s, e) for i in range(count)] for s, e in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
        assert sum(a == b for a, b in enumerate(order)) < 10
        steps = [abs(a - b) for a, b in pairwise(order)]
        assert 0.9 < sum(steps) / len(steps) / (count / 3) < 1.1  # a random order moves by a third on average
    assert all(sum(x == y for x, y in zip(a, b, strict=True)) < 10 for a, b in ((orders[0], orders[1]), (orders[0], orders[2])))


def test_permutation_never_changes() -> None:
    """Peers of different releases must read the same tokens: these numbers are part of the protocol."""
    assert [permuted(i, 1000, 7, 2) for i in range(6)] == GOLDEN
    assert permuted(10**12 - 1, 10**12, 2**31 - 1, 10**4) == GOLDEN_LARGE


def test_steps_cover_each_window_once_per_epoch() -> None:
    manifest = a_manifest(tokens=16 * 60 + 1)
    windows = num_windows(16 * 60 + 1, 16)
    assert windows == 60
    seen: dict[int, list[int]] = {}
    for step in range(1, 11):
        for microbatch in range(4):
            for sample in train_samples(manifest, step, microbatch):
                assert sample.first_token == 16 * sample.window
                seen.setdefault(sample.epoch, []).append(sample.window)
    assert {epoch: sorted(w) for epoch, w in seen.items()} == {0: list(range(60)), 1: list(range(60))}
    assert seen[0] != seen[1]
    assert [epoch_of(manifest, step) for step in (1, 5, 6, 10, 11)] == [0, 0, 1, 1, 2]


def test_an_epoch_may_end_inside_a_microbatch() -> None:
    manifest = a_manifest(tokens=16 * 7 + 1)
    rows = [s for step in (1, 2) for m in range(4) for s in train_samples(manifest, step, m)]
    assert [s.epoch for s in rows] == [i // 7 for i in range(24)]


def test_more_samples_per_step_than_windows() -> None:
    samples = train_samples(a_manifest(tokens=17, held_out=0), 1, 0)
    assert [(s.epoch, s.window) for s in samples] == [(0, 0), (1, 0), (2, 0)]


def test_held_out_windows_come_in_order_and_wrap() -> None:
    manifest = a_manifest(held_out=16 * 4 + 1)
    rows = [s for m in range(3) for s in validation_samples(manifest, m)]
    assert [s.window for s in rows] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert [s.epoch for s in rows] == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_a_tail_shorter_than_a_window_is_left_out() -> None:
    assert [num_windows(n, 16) for n in (0, 1, 16, 17, 32, 33)] == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (a_manifest(tokens=16), r"data\.train holds 16 tokens, fewer than the 17 of one sample"),
        (a_manifest(held_out=5), r"data\.validation holds 5 tokens"),
        (a_manifest(held_out=0, evaluation={"every_steps": 5}), r"evaluation\.every_steps is 5 but"),
        (
            a_manifest(data={"train": [{"digest": "0" * 64, "num_bytes": 401, "num_tokens": 200}]}),
            r"data\.train\[0\]: num_bytes 401 is not num_tokens 200 x 2 bytes of uint16",
        ),
    ],
)
def test_impossible_data_is_refused(manifest: Manifest, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_data(manifest)


def test_possible_data_passes() -> None:
    check_data(a_manifest(evaluation={"every_steps": 5}))


GOLDEN = [68, 361, 470, 243, 461, 196]
GOLDEN_LARGE = 116370535808
