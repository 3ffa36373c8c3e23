"""The canonical optimizer update: torch's mathematics, the same bits everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from node.stage.digest import NORM_BLOCK, squared_norm
from node.stage.update import CPU_BLOCK, Run, Vectors, decay_runs, scalars, update
from protocol.manifest import OptimizerSection
from tests.numerics.harness import relative

ROOT = Path(__file__).parents[2]
LEVELS = ("default", "avx2", "avx512")
SHAPES: list[tuple[str, tuple[int, ...]]] = [("norm", (5,)), ("matrix", (300, 700)), ("norm2", (9,)), ("matrix2", (3, 4))]
SIZE = sum(int(np.prod(shape)) for _, shape in SHAPES)


def section(**fields: Any) -> OptimizerSection:
    return OptimizerSection(**{"learning_rate": 1.0, "weight_decay": 0.1, **fields})


def stock(o: OptimizerSection, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": o.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    if o.kind == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=o.beta1)
    return torch.optim.AdamW(groups, lr=rate, betas=(o.beta1, o.beta2), eps=o.eps)


@pytest.mark.parametrize(
    "o",
    [
        section(kind="adamw"),
        section(kind="adamw", beta1=0.0, beta2=0.95, eps=1e-3),
        section(kind="adamw", weight_decay=0.0),
        section(kind="sgd"),
        section(kind="sgd", beta1=0.0, weight_decay=0.0),
    ],
    ids=lambda o: f"{o.kind} beta1 {o.beta1} decay {o.weight_decay}",
)
def test_equals_torch_optim(o: OptimizerSection, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = Vectors(*(torch.randn(SIZE, generator=generator), torch.zeros(SIZE), torch.zeros(SIZE), torch.zeros(SIZE)))
    sizes = [int(np.prod(shape)) for _, shape in SHAPES]
    pieces = zip(x.weights.split(sizes), SHAPES, strict=True)
    parameters = [nn.Parameter(part.clone().view(shape)) for part, (_, shape) in pieces]
    theirs = stock(o, parameters, 0.02)
    for age in range(1, 8):
        x.gradient.normal_(generator=generator)
        for p, part in zip(parameters, x.gradient.split(sizes), strict=True):
            p.grad = part.view(p.shape) / 64
        theirs.step()
        update(o, x, decay_runs(SHAPES, o.weight_decay), scalars(o, 1 / 64, 0.02, age))
    for p, part in zip(parameters, x.weights.split(sizes), strict=True):
        assert relative(part.numpy(), p.detach().flatten().numpy()) < 5e-7


def digests(level: str) -> list[list[str]]:
    """[what torch says of the CPU, optimizer, threads, digest], ..."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": level, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "tests.numerics.update_digest"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_bits_are_the_same_for_all_vector_units_and_thread_counts() -> None:
    found = [line for level in LEVELS for line in digests(level)]
    used = {capability for capability, *_ in found}
    assert "default" in used
    assert len(used) > 1, f"this machine has only {used}: nothing was compared"
    for kind in ("adamw", "sgd"):
        bits = {(capability, threads): value for capability, k, threads, value in found if k == kind}
        assert {threads for _, threads in bits} == {"1", "2"}
        assert len(set(bits.values())) == 1, bits


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    o = section()
    results = []
    for block in (CPU_BLOCK, 1000, 7919):
        monkeypatch.setattr("node.stage.update.CPU_BLOCK", block)
        generator = torch.Generator().manual_seed(seed)
        x = Vectors(*(torch.randn(SIZE, generator=generator).abs() for _ in range(4)))
        update(o, x, decay_runs(SHAPES, 0.1), scalars(o, 1.0, 0.1, 3))
        results.append([v.numpy().tobytes() for v in (x.weights, x.exp_avg, x.exp_avg_sq)])
    assert results[0] == results[1] == results[2]


def test_only_matrices_decay() -> None:
    assert decay_runs(SHAPES, 0.1) == [Run(0, 5, False), Run(5, 210_000, True), Run(210_005, 9, False), Run(210_014, 12, True)]
    assert decay_runs(SHAPES, 0.0) == [Run(0, SIZE, False)]


def test_squared_norm_is_exact_to_1e12(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=3 * NORM_BLOCK + 77).astype(np.float32)
    exact = float(np.sum(np.square(values.astype(np.longdouble))))
    assert squared_norm(torch.tensor(values)) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_squared_norm_of_a_diverged_gradient_is_not_finite(bad: float) -> None:
    assert not np.isfinite(squared_norm(torch.tensor([1.0] * NORM_BLOCK + [bad, float("inf")])))
