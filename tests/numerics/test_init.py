"""Weights at step 0 are a function of seed and name alone."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

from node.stage.init import CHUNK, initialise
from tests.numerics.harness import initial_weights, manifest_of

FIRST = [-0.0012438815319910645, 0.01749170944094658]
DIGEST = "ed6152d12a0d2f842be8a0c1f198d4db75af9af0daa9a12f8018ecca4e876e36"


def made(parameters: list[tuple[str, tuple[int, ...]]], seed: int = 7, std: float = 0.02) -> np.ndarray:
    manifest = manifest_of(1, seed=seed, model__initializer_range=std)
    flat = torch.full((sum(math.prod(shape) for _, shape in parameters),), torch.nan)
    initialise(manifest, parameters, flat)
    return flat.numpy()


def test_the_bits_never_change() -> None:
    """These digests were taken when runs could first be started; another value breaks every manifest in use."""
    values = made([("model.embed_tokens.weight", (300, 500)), ("model.norm.weight", (3,)), ("lm_head.weight", (2, 2))])
    assert values[:2].tolist() == FIRST
    assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == DIGEST


def test_another_generation_is_another_draw() -> None:
    parameters, manifest = [("w", (300, 500)), ("norm", (3,))], manifest_of(1, seed=7)
    drawn = [torch.empty(150_003) for _ in range(3)]
    for generation, flat in enumerate(drawn):
        initialise(manifest, parameters, flat, generation)
    assert drawn[0].numpy().tobytes() == made(parameters).tobytes(), "step 0 is generation 0"
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(drawn[one][:150_000], drawn[other][:150_000])[0, 1]) < 2e-2


def test_values_look_normal() -> None:
    values = made([("w", (1000, 1000))], std=0.5).astype(np.float64) / 0.5
    assert abs(values.mean()) < 4e-3
    assert abs(values.std() - 1) < 3e-3
    assert abs(values.clip(-1, 1).std() - 0.7184) < 5e-3, "a normal clipped at one deviation has this deviation"
    assert 4 < np.abs(values).max() < math.sqrt(24)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4e-3
    assert abs(np.corrcoef(values[:CHUNK], values[CHUNK : 2 * CHUNK])[0, 1]) < 2e-2


def test_a_tensor_depends_on_its_name_and_the_seed_only() -> None:
    alone = made([("a.weight", (70, 1000))])
    among = made([("n.weight", (5,)), ("a.weight", (70, 1000)), ("b.weight", (70, 1000))])
    assert np.array_equal(alone, among[5:70005])
    assert not np.array_equal(alone, among[70005:])
    assert not np.array_equal(alone, made([("a.weight", (70, 1000))], seed=8))
    assert np.all(among[:5] == 1.0)


def test_stages_together_are_the_whole_model_however_it_is_cut() -> None:
    for stages in (2, 4):
        cut, whole = initial_weights(manifest_of(stages)), initial_weights(manifest_of(1))
        assert cut.keys() == whole.keys()
        assert all(np.array_equal(cut[name], whole[name]) for name in whole)
