"""What one plain process computes: transformers' LLaMA, torch's optimizers, nothing else.

It imports nothing of ours, so that it cannot share our mistakes: all that it needs comes as plain dicts and numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

__all__ = ["LlamaDecoderLayer", "LlamaRotaryEmbedding", "Plan", "build", "gradients", "train"]

Arrays = dict[str, np.ndarray]
STEP_LAMBDAS: dict[str, Callable[[float, float], float]] = {
    "constant": lambda progress, floor: 1.0,
    "linear": lambda progress, floor: 1.0 - (1.0 - floor) * progress,
    "cosine": lambda progress, floor: floor + (1.0 - floor) * (1.0 + float(np.cos(np.pi * progress))) / 2.0,
}


@dataclass(frozen=True)
class Plan:
    """A training run as a plain loop sees it."""

    model: dict[str, Any]
    """Arguments of LlamaConfig."""
    kind: str
    learning_rate: float
    last_step: int
    betas: tuple[float, float] = (0.9, 0.999)
    """SGD uses the first as its momentum."""
    eps: float = 1e-8
    weight_decay: float = 0.0
    schedule: str = "constant"
    min_learning_rate: float = 0.0
    warmup_steps: int = 0
    clip_norm: float = 0.0
    clip_groups: Sequence[Sequence[str]] = ()
    """Names of the parameters that are clipped together; none = all together."""
    odd_order: Sequence[int] | None = None
    """Order of the layers for odd microbatches; None = as they are numbered."""


@dataclass
class Result:
    """Mean token loss and unclipped global gradient norm of every step, and the weights after the last one."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: Arrays = field(default_factory=dict)


def build(model: dict[str, Any], initial: Arrays, attention: str = "sdpa") -> LlamaForCausalLM:
    """transformers' model with these weights; every weight must be given."""
    llama = LlamaForCausalLM(LlamaConfig(**model, attn_implementation=attention, use_cache=False))
    state = {name: torch.tensor(value) for name, value in initial.items()}
    missing, unexpected = llama.load_state_dict(state, strict=False)
    assert not unexpected, f"transformers knows no {unexpected}"
    tied = ["lm_head.weight"] if model.get("tie_word_embeddings") else []
    assert missing == tied, f"no weights for {missing}"
    return llama.train()


def train(plan: Plan, initial: Arrays, steps: Sequence[Sequence[np.ndarray]]) -> Result:
    """One update per entry of `steps`, each a list of microbatches of tokens [samples, context + 1]."""
    llama = build(plan.model, initial)
    optimizer = _optimizer(plan, llama)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: _factor(plan, done))
    result = Result()
    for microbatches in steps:
        optimizer.zero_grad()
        result.losses.append(_accumulate(plan, llama, microbatches))
        result.norms.append(_clip(plan, llama))
        optimizer.step()
        scheduler.step()
    result.weights = {name: p.detach().numpy().copy() for name, p in llama.named_parameters()}
    return result


def gradients(plan: Plan, weights: Arrays, microbatches: Sequence[np.ndarray]) -> Arrays:
    """Of the mean loss over these microbatches, by name."""
    llama = build(plan.model, weights)
    _accumulate(plan, llama, microbatches)
    return {name: p.grad.numpy().copy() for name, p in llama.named_parameters() if p.grad is not None}


def _accumulate(plan: Plan, llama: LlamaForCausalLM, microbatches: Sequence[np.ndarray]) -> float:
    numbered = llama.model.layers
    total = 0.0
    for index, tokens in enumerate(torch.tensor(np.stack(microbatches))):
        if index % 2 and plan.odd_order is not None:
            llama.model.layers = nn.ModuleList(numbered[layer] for layer in plan.odd_order)
        logits = llama(input_ids=tokens[:, :-1]).logits
        llama.model.layers = numbered
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        (loss / len(microbatches)).backward()
        total += loss.item()
    return total / len(microbatches)


def _clip(plan: Plan, llama: LlamaForCausalLM) -> float:
    parameters = dict(llama.named_parameters())
    groups = plan.clip_groups or [list(parameters)]
    assert sorted(name for group in groups for name in group) == sorted(parameters)
    limit = plan.clip_norm or float("inf")
    norms = [nn.utils.clip_grad_norm_([parameters[name] for name in group], limit).item() for group in groups]
    return float(np.sqrt(np.sum(np.square(norms))))


def _optimizer(plan: Plan, llama: LlamaForCausalLM) -> torch.optim.Optimizer:
    matrices = [p for p in llama.parameters() if p.ndim > 1]
    vectors = [p for p in llama.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    if plan.kind == "sgd":
        return torch.optim.SGD(groups, lr=plan.learning_rate, momentum=plan.betas[0])
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=plan.betas, eps=plan.eps)


def _factor(plan: Plan, done: int) -> float:
    """Multiplier of the learning rate after `done` updates."""
    if done < plan.warmup_steps:
        return (done + 1) / (plan.warmup_steps + 1)
    progress = min(1.0, (done - plan.warmup_steps) / max(1, plan.last_step - plan.warmup_steps))
    return STEP_LAMBDAS[plan.schedule](progress, plan.min_learning_rate / plan.learning_rate)
