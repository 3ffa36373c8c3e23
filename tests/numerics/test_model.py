"""Our block and model against transformers': logits, gradients, causality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from node.stage.meta import split
from node.stage.model import Block, BlockStage, EmbeddingStage, skeleton
from node.stage.rope import rope_table
from node.stage.seat import Seat
from protocol.manifest import Manifest
from tests.numerics import reference
from tests.numerics.harness import initial_weights, llama_config, manifest_of, relative

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one kv head": {"model__num_key_value_heads": 1},
    "all kv heads": {"model__num_key_value_heads": 4},
    "tied": {"model__tie_word_embeddings": True},
    "rope theta": {"model__rope_theta": 5e5},
    "linear": {"model__rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"model__rope_scaling": LLAMA3},
    "recomputed": {"compute__recompute_activations": True},
    "uneven": {"num_block_stages": 2, "blocks_per_stage": [1, 3]},
}


class Whole:
    """All stages of a run, one after the other."""

    def __init__(self, manifest: Manifest) -> None:
        self.modules = [Seat(manifest, stage, CPU).module for stage in range(manifest.num_stages)]

    def logits(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        first = self.modules[0]
        assert isinstance(first, EmbeddingStage)
        h_BTD = first.embed(tokens_BT)
        for module in self.modules[1:]:
            assert isinstance(module, BlockStage)
            h_BTD = module(h_BTD)
        return first.logits(h_BTD)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for module in self.modules for name, p in module.named_parameters()}


def some_tokens(manifest: Manifest, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, manifest.batch.context_tokens + 1)
    return torch.randint(0, manifest.model.vocab_size, shape, generator=generator)


def rough(manifest: Manifest) -> Manifest:
    """Weights ten times as large, so that attention is far from uniform and a wrong angle or mask shows."""
    model = manifest.model.model_copy(update={"initializer_range": 0.2})
    return manifest.model_copy(update={"model": model})


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_logits_and_gradients_equal_transformers(changes: dict[str, Any], seed: int) -> None:
    changes = dict(changes)
    manifest = rough(manifest_of(changes.pop("num_block_stages", 4), batch__context_tokens=32, **changes))
    tokens = some_tokens(manifest, seed)
    ours, theirs = Whole(manifest), reference.build(llama_config(manifest), initial_weights(manifest))
    results = []
    for logits in (ours.logits(tokens[:, :-1]), theirs(input_ids=tokens[:, :-1]).logits):
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").backward()
        results.append(logits.detach().numpy())
    assert relative(*results) < 2e-6
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    assert ours.parameters().keys() == expected.keys()
    for name, parameter in ours.parameters().items():
        gradient = expected[name]
        assert parameter.grad is not None
        assert gradient is not None
        assert relative(parameter.grad.numpy(), gradient.numpy()) < 1e-5, name


def test_rope_scaling_is_not_ignored(seed: int) -> None:
    tables = [
        rope_table(manifest_of(1, **VARIANTS[name]).model, 32, CPU)[0].numpy() for name in ("grouped", "linear", "llama3")
    ]
    assert relative(tables[0], tables[1]) > 0.1
    assert relative(tables[0], tables[2]) > 0.1
    assert relative(tables[1], tables[2]) > 0.1


def test_one_block_equals_transformers(seed: int) -> None:
    manifest = rough(manifest_of(4))
    config = reference.LlamaConfig(**llama_config(manifest), attn_implementation="sdpa")
    theirs = reference.LlamaDecoderLayer(config, 0)
    ours = Block(manifest.model)
    ours.load_state_dict(theirs.state_dict())
    context = manifest.batch.context_tokens
    values = torch.randn(2, context, manifest.model.hidden_size, generator=torch.Generator().manual_seed(seed))
    inputs = [values.clone().requires_grad_() for _ in range(2)]
    angles = reference.LlamaRotaryEmbedding(config)(values, torch.arange(context)[None])
    outputs = [
        ours(inputs[0], *rope_table(manifest.model, context, CPU)),
        theirs(inputs[1], position_embeddings=angles),
    ]
    for output in outputs:
        output.pow(2).sum().backward()
    assert relative(outputs[0].detach().numpy(), outputs[1].detach().numpy()) < 1e-6
    gradients = [value.grad for value in inputs]
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert relative(gradients[0].numpy(), gradients[1].numpy()) < 1e-5


@pytest.mark.parametrize("autocast", [False, True])
def test_no_position_sees_a_later_one(autocast: bool, seed: int) -> None:
    manifest = rough(manifest_of(2))
    whole, tokens = Whole(manifest), some_tokens(manifest, seed)[:, :-1]
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % manifest.model.vocab_size
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        before, after = whole.logits(tokens).numpy(), whole.logits(changed).numpy()
    assert np.array_equal(before[:, :9], after[:, :9])
    for position in range(9, tokens.shape[1]):
        assert not np.array_equal(before[:, position], after[:, position]), f"position {position} does not see position 9"


def test_autocast_keeps_the_residual_stream_in_f32(seed: int) -> None:
    manifest = manifest_of(1)
    module = Seat(manifest, 1, CPU).module
    with torch.autocast("cpu", torch.bfloat16):
        out = module(torch.randn(1, 16, 32, requires_grad=True))
    assert out.dtype == torch.float32


PAPER = {
    "124m": ({"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8}, 4, 83),
    "500m": ({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}, 6, 468),
    "1.5b": ({"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16}, 6, 1742),
}


@pytest.mark.parametrize(("model", "stages", "millions"), PAPER.values(), ids=list(PAPER))
def test_the_papers_models_have_their_parameters(model: dict[str, int], stages: int, millions: int) -> None:
    shape = {f"model__{key}": value for key, value in model.items()}
    width = model["hidden_size"]
    manifest = manifest_of(
        stages,
        **shape,
        model__vocab_size=32000,
        model__intermediate_size=4 * width,
        model__num_key_value_heads=model["num_attention_heads"],
    )
    block = 4 * width**2 + 3 * 4 * width**2 + 2 * width
    per_stage = block * model["num_hidden_layers"] // stages
    assert split(manifest) == [2 * 32000 * width + width, *[per_stage] * stages]
    assert round(sum(split(manifest)) / 1e6) == millions
    assert all(p.is_meta for stage in range(stages + 1) for p in skeleton(manifest, stage).parameters())
