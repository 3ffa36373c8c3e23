"""The canonical optimizer update: the same bits on every machine that follows IEEE 754.

Each kernel is elementwise and rounds once per element (mul, add, sub, div, sqrt); no lerp, addcmul or fused kernel, whose
multiply-adds are contracted on one CPU and not on another. Scalars are computed in Python floats and rounded to f32 once.
The work goes block by block, so that a block's vectors stay in the cache between kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from protocol.manifest import OptimizerSection

CPU_BLOCK = 1 << 17
"""Elements per block: small enough for the cache, large enough to pay for the calls and for two threads (32,768 each)."""
GPU_BLOCK = 1 << 24


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive elements of the flat vector that share whether they decay."""

    first: int
    count: int
    decays: bool


def decay_runs(parameters: Sequence[tuple[str, tuple[int, ...]]], weight_decay: float) -> list[Run]:
    """The flat vector cut where weight decay starts or stops: matrices decay, vectors (norms) never."""
    runs: list[Run] = []
    first = 0
    for _, shape in parameters:
        count, decays = math.prod(shape), weight_decay > 0 and len(shape) > 1
        if runs and runs[-1].decays == decays:
            runs[-1] = Run(runs[-1].first, runs[-1].count + count, decays)
        else:
            runs.append(Run(first, count, decays))
        first += count
    return runs


def runs_within(runs: Sequence[Run], first: int, count: int) -> list[Run]:
    """The part of the runs that lies in a range, counted from its first element."""
    end = first + count
    cut = [(max(r.first, first), min(r.first + r.count, end), r.decays) for r in runs]
    return [Run(begin - first, stop - begin, decays) for begin, stop, decays in cut if begin < stop]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Equally long flat f32 vectors: what an update changes, and the gradient that it reads."""

    weights: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradient: Tensor

    def part(self, first: int, count: int) -> Vectors:
        """Views of a range."""
        of = slice(first, first + count)
        return Vectors(self.weights[of], self.exp_avg[of], self.exp_avg_sq[of], self.gradient[of])


@dataclass(frozen=True, slots=True)
class Scalars:
    """What one update multiplies with; each is an f32 value. Unused ones are 0."""

    gradient: float
    """AdamW: scale * (1 - beta1). SGD: scale."""
    gradient_sq: float
    """AdamW: scale * sqrt(1 - beta2), to be squared with the gradient."""
    decay: float
    """AdamW: 1 - rate * weight_decay, on the weights. SGD: weight_decay, on the gradient."""
    eps: float
    """AdamW: eps * sqrt(1 - beta2^age)."""
    step: float
    """AdamW: rate * sqrt(1 - beta2^age) / (1 - beta1^age). SGD: rate."""
    beta1: float
    beta2: float


def scalars(optimizer: OptimizerSection, scale: float, rate: float, age: int) -> Scalars:
    """Scalars of the update that makes the optimizer's age `age` (1 = first), with the gradient scaled by `scale`.

    AdamW as in torch.optim: m += (1 - beta1)(g - m), v = beta2 v + (1 - beta2) g^2,
    w = (1 - rate wd) w - rate / (1 - beta1^age) * m / (sqrt(v) / sqrt(1 - beta2^age) + eps), the fraction being multiplied by
    sqrt(1 - beta2^age) above and below.
    """
    o = optimizer
    if o.kind == "sgd":
        return Scalars(_f32(scale), 0.0, _f32(o.weight_decay), 0.0, _f32(rate), _f32(o.beta1), 0.0)
    correction1, correction2 = 1.0 - _power(o.beta1, age), math.sqrt(1.0 - _power(o.beta2, age))
    return Scalars(
        gradient=_f32(scale * (1.0 - o.beta1)),
        gradient_sq=_f32(scale * math.sqrt(1.0 - o.beta2)),
        decay=_f32(1.0 - rate * o.weight_decay),
        eps=_f32(o.eps * correction2),
        step=_f32(rate * correction2 / correction1),
        beta1=_f32(o.beta1),
        beta2=_f32(o.beta2),
    )


def update(optimizer: OptimizerSection, vectors: Vectors, runs: Sequence[Run], s: Scalars) -> None:
    """Do one update in place; the gradient is left as it is."""
    kernel = _sgd if optimizer.kind == "sgd" else _adamw
    block = CPU_BLOCK if vectors.weights.device.type == "cpu" else GPU_BLOCK
    scratch = torch.empty(min(block, vectors.weights.numel()), device=vectors.weights.device)
    with torch.no_grad():
        for run in runs:
            for first in range(run.first, run.first + run.count, block):
                count = min(block, run.first + run.count - first)
                kernel(vectors.part(first, count), scratch[:count], s, run.decays)


def _adamw(x: Vectors, t: Tensor, s: Scalars, decays: bool) -> None:
    torch.mul(x.gradient, s.gradient, out=t)
    x.exp_avg.mul_(s.beta1)
    x.exp_avg.add_(t)
    torch.mul(x.gradient, s.gradient_sq, out=t)
    torch.mul(t, t, out=t)
    x.exp_avg_sq.mul_(s.beta2)
    x.exp_avg_sq.add_(t)
    torch.sqrt(x.exp_avg_sq, out=t)
    t.add_(s.eps)
    torch.div(x.exp_avg, t, out=t)
    t.mul_(s.step)
    if decays:
        x.weights.mul_(s.decay)
    x.weights.sub_(t)


def _sgd(x: Vectors, t: Tensor, s: Scalars, decays: bool) -> None:
    """As torch.optim.SGD: the first momentum buffer is the gradient itself, as the buffer starts at zero."""
    x.exp_avg.mul_(s.beta1)
    torch.mul(x.gradient, s.gradient, out=t)
    x.exp_avg.add_(t)
    if decays:
        torch.mul(x.weights, s.decay, out=t)
        x.exp_avg.add_(t)
    torch.mul(x.exp_avg, s.step, out=t)
    x.weights.sub_(t)


def _f32(value: float) -> float:
    """Round to the nearest f32."""
    return float(np.float32(value))


def _power(base: float, exponent: int) -> float:
    """base ** exponent by squaring: unlike libm's pow, the same double everywhere."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
