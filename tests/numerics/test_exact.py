"""Stages joined by hand compute what a plain loop over transformers' LLaMA computes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.numerics.chain import run_chain
from tests.numerics.harness import RandomTokens, Trajectory, assert_same, differences, manifest_of, reference_run

ADAMW: dict[str, Any] = {"optimizer__kind": "adamw", "optimizer__learning_rate": 2e-3}
SGD: dict[str, Any] = {"optimizer__kind": "sgd", "optimizer__learning_rate": 0.05, "optimizer__weight_decay": 1e-2}
CLIPPED: dict[str, Any] = {"optimizer__clip_norm": 0.25}
UNCLIPPED: dict[str, Any] = {"optimizer__clip_norm": 0.0}
PER_STAGE: dict[str, Any] = {"optimizer__clip_norm": 0.1, "optimizer__clip_scope": "per_stage"}


@pytest.mark.parametrize(("splits", "swapped"), [((1, 2, 4), False), ((4,), True)], ids=["plain", "swapped"])
@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])
@pytest.mark.parametrize("clip", [CLIPPED, UNCLIPPED], ids=["clipped", "unclipped"])
async def test_chain_equals_reference(
    splits: tuple[int, ...], swapped: bool, optimizer: dict[str, Any], clip: dict[str, Any], seed: int
) -> None:
    manifests = [manifest_of(stages, swapped=swapped, **optimizer, **clip) for stages in splits]
    tokens = RandomTokens(manifests[0], seed)
    expected = reference_run(manifests[0], tokens)
    limit = manifests[0].optimizer.clip_norm
    assert not limit or min(expected.norms) > limit, f"the clip is never active: {min(expected.norms)}"
    for manifest, num_replicas in product(manifests, (1, 2)):
        found = assert_same(await run_chain(manifest, tokens, num_replicas), expected)
        print(f"{manifest.num_block_stages} block stages, {num_replicas} replicas: {found}")
    assert expected.losses[-1] < expected.losses[0]


@pytest.mark.parametrize(
    "changes",
    [
        PER_STAGE,
        {"model__tie_word_embeddings": True, **CLIPPED},
        {"optimizer__schedule": "cosine", "optimizer__min_learning_rate": 1e-4},
        {"optimizer__schedule": "linear", "model__rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"compute__recompute_activations": True},
        {"stages": 6},
    ],
    ids=["clip per stage", "tied", "cosine", "linear and rope scaling", "recomputed", "six stages"],
)
async def test_variants_equal_reference(changes: dict[str, Any], seed: int) -> None:
    changes = dict(changes)
    manifest = manifest_of(changes.pop("stages", 4), swapped=True, **changes)
    tokens = RandomTokens(manifest, seed)
    print(assert_same(await run_chain(manifest, tokens), reference_run(manifest, tokens)))


async def test_bf16_wire_and_autocast_train_nearly_the_same(seed: int) -> None:
    exact = manifest_of(2)
    tokens = RandomTokens(exact, seed)
    coarse = {"wire__activations": "bf16", "wire__gradients": "bf16", "compute__autocast": "bf16"}
    found = differences(await run_chain(manifest_of(2, **coarse), tokens, 2), reference_run(exact, tokens))
    assert 1e-6 < found["loss"] < 1e-2, found


@pytest.mark.parametrize(
    ("what", "factor"), [("losses", 1 + 3e-6), ("norms", 1 + 3e-5), ("weights", 1 + 3e-5), ("losses", float("nan"))]
)
def test_the_comparison_can_fail(what: str, factor: float, seed: int) -> None:
    manifest = manifest_of(1)
    expected = reference_run(manifest, RandomTokens(manifest, seed), num_steps=1)
    wrong = Trajectory(list(expected.losses), list(expected.norms), dict(expected.weights))
    if what == "weights":
        wrong.weights["model.norm.weight"] = wrong.weights["model.norm.weight"] * factor
    else:
        getattr(wrong, what)[0] *= factor
    with pytest.raises(AssertionError, match="differs from the reference"):
        assert_same(wrong, expected)


def test_the_swapped_order_is_not_the_plain_one(seed: int) -> None:
    swapped, plain = manifest_of(4, swapped=True), manifest_of(4)
    tokens = RandomTokens(plain, seed)
    assert differences(reference_run(swapped, tokens, 2), reference_run(plain, tokens, 2))["norm"] > 1e-4
