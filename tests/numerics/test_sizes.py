"""The sizes that peers compute from the manifest are those of the tensors: parameters exactly, retained activations nearly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from node.stage.meta import split
from node.stage.model import HEAD_ROWS, BlockStage
from protocol import sizes
from protocol.manifest import Manifest, from_mapping
from protocol.presets import PRESETS, preset

SHARD = {"digest": "0" * 64, "num_bytes": 2_000_000, "num_tokens": 1_000_000}
ROWS = 128


def manifest_of(name: str, model: dict[str, Any], **sections: Any) -> Manifest:
    data = preset(name) | {"data": {"train": [SHARD], "validation": [SHARD]}}
    data["model"] |= model
    for section, fields in sections.items():
        data[section] = data.get(section, {}) | fields
    return from_mapping(data)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kv_heads", [None, 2])
@pytest.mark.parametrize("name", PRESETS)
def test_parameters(name: str, kv_heads: int | None, tied: bool) -> None:
    shape = {"tie_word_embeddings": tied} | ({"num_key_value_heads": kv_heads} if kv_heads else {})
    m = manifest_of(name, shape)
    assert [sizes.stage_parameters(m, stage) for stage in range(m.num_stages)] == split(m)


def test_an_uneven_split() -> None:
    m = manifest_of("tiny", {}, recovery={"policy": "none"})
    m = from_mapping(m.model_dump() | {"blocks_per_stage": [5, 1, 4, 2]})
    assert [sizes.stage_parameters(m, stage) for stage in range(5)] == split(m)


def test_the_head_is_cut_as_told() -> None:
    assert sizes.HEAD_ROWS == HEAD_ROWS


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_retained_activations(kv_heads: int, recompute: bool) -> None:
    """What autograd saves in a forward pass, against the formula."""
    m = manifest_of(
        "tiny",
        {"num_key_value_heads": kv_heads},
        batch={"microbatch_samples": 1, "context_tokens": ROWS},
        compute={"recompute_activations": recompute},
    )
    saved = saved_bytes(m)
    told = sizes.F32 * ROWS * sizes._retained_width(m, 1)
    print(f"kv heads {kv_heads}, recompute {recompute}: saved {saved}, formula {told}")
    assert 0.95 * saved < told < 1.1 * saved


def saved_bytes(m: Manifest) -> int:
    stage = BlockStage(m, 1)
    stage.place(torch.device("cpu"))
    for parameter in stage.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    own = {t.untyped_storage().data_ptr() for t in (*stage.parameters(), stage.cos_T1K, stage.sin_T1K)}
    seen: dict[int, torch.Tensor] = {}  # kept, so that no two of them share an address

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    h_BTD = torch.randn(1, ROWS, m.model.hidden_size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out_BTD = stage(h_BTD)
    seen[out_BTD.untyped_storage().data_ptr()] = out_BTD
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
