"""The same code on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from node.stage.digest import state_digest
from node.stage.update import Vectors, decay_runs, scalars, update
from protocol.manifest import OptimizerSection
from tests.numerics.chain import run_chain
from tests.numerics.harness import RandomTokens, assert_same, differences, manifest_of, reference_run
from tests.numerics.update_digest import SIZE, vectors

pytestmark = pytest.mark.gpu


async def test_chain_on_cuda_equals_reference(seed: int) -> None:
    manifest = manifest_of(4, swapped=True)
    tokens = RandomTokens(manifest, seed)
    print(assert_same(await run_chain(manifest, tokens, 2, device="cuda"), reference_run(manifest, tokens)))


async def test_autocast_on_cuda_trains_nearly_the_same(seed: int) -> None:
    changes: dict[str, Any] = {"compute__autocast": "bf16", "wire__activations": "bf16"}
    exact = manifest_of(2)
    tokens = RandomTokens(exact, seed)
    found = differences(await run_chain(manifest_of(2, **changes), tokens, device="cuda"), reference_run(exact, tokens))
    assert 1e-6 < found["loss"] < 1e-2, found


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_the_update_has_the_bits_of_the_cpu(kind: str) -> None:
    optimizer = OptimizerSection.model_validate({"kind": kind, "learning_rate": 1.0, "weight_decay": 0.1})
    found = []
    for device in ("cpu", "cuda"):
        x = vectors()
        x = Vectors(*(getattr(x, name).to(device) for name in ("weights", "exp_avg", "exp_avg_sq", "gradient")))
        for age in (1, 2, 3):
            update(optimizer, x, decay_runs([("w", (SIZE, 1))], 0.1), scalars(optimizer, 0.37, 1.7e-3, age))
        assert x.weights.device.type == torch.device(device).type
        found.append(state_digest((x.weights, x.exp_avg, x.exp_avg_sq), 3))
    assert found[0] == found[1]
