"""Figures from raw results. Plain arithmetic: lists of losses in, numbers with their standard errors out.

*Excess loss* of a fork is the sum over its steps of (its training loss - that of the undisturbed run, on the same samples).

*Lost steps* of a fork is how many steps the undisturbed run is ahead of it at its end. The training loss of one step is noisy,
but the noise of both is that of the same samples: so how much the fork lies above the run, d, is the mean difference over the
last `TAIL` of the fork, and only the curve of the run has to be smoothed. Over the second half of its steps until then that is
a - b log(t), fitted by least squares to the mean over all seeds: the loss that a run which is d above has at t was passed at
t exp(-d / b), so

    lost = t (1 - exp(-d / b)),    t the middle of that last part.

A fork that came to lie below the run has lost steps below zero. The figure is kept within -t and t - 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TAIL = 0.25
"""Of a fork's steps: over which the difference at its end is averaged."""
SPAN = 0.5
"""The run's curve is smoothed from this share of its steps on."""
MIN_SLOPE = 1e-6
Cell = tuple[int, int]
"""(seed, warm step)"""


@dataclass(frozen=True, slots=True)
class Mean:
    """Of n values that count as independent; no error without two of them."""

    mean: float
    stderr: float | None
    n: int

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def mean_of(values: Sequence[float]) -> Mean:
    """With the standard error sqrt(sum (x - mean)^2 / (n (n - 1)))."""
    assert values, "the mean of nothing"
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Mean(mean, None, count)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Mean(mean, math.sqrt(squares / (count * (count - 1))), count)


def excess(fork: Sequence[float], run: Sequence[float]) -> float:
    """Summed over steps."""
    return math.fsum(a - b for a, b in zip(fork, run, strict=True))


def behind(fork: Sequence[float], run: Sequence[float]) -> float:
    """How much the fork lies above the run at its end."""
    tail = max(1, round(TAIL * len(fork)))
    return excess(fork[-tail:], run[-tail:]) / tail


def middle_of_tail(warm: int, steps: int) -> float:
    """The step that `behind` is about."""
    return warm + steps - (max(1, round(TAIL * steps)) - 1) / 2


@dataclass(frozen=True, slots=True)
class Curve:
    """loss = a - b log(step)"""

    a: float
    b: float

    def lost(self, step: float, above: float) -> float:
        """How many steps one is behind that is `above` the curve at `step`: at most all but the first, and no more ahead."""
        exponent = min(-above / self.b, 1.0)
        return min(max(step * -math.expm1(exponent), -step), step - 1)


def fitted(runs: Sequence[Sequence[float]], end: int) -> Curve:
    """The mean of runs (losses from step 1 on), smoothed as it is around step `end`. Where it does not fall, next to no slope
    is taken, and what is lost is all or nothing: the runs are too short or too few."""
    first = max(1, round(SPAN * end))
    logs = [math.log(step) for step in range(first, end + 1)]
    losses = [math.fsum(run[step - 1] for run in runs) / len(runs) for step in range(first, end + 1)]
    mid, level = math.fsum(logs) / len(logs), math.fsum(losses) / len(losses)
    spread = math.fsum((x - mid) ** 2 for x in logs)
    slope = math.fsum((x - mid) * (y - level) for x, y in zip(logs, losses, strict=True)) / spread if spread else 0.0
    b = max(-slope, MIN_SLOPE)
    return Curve(level + b * mid, b)


def over_cells(values: Mapping[tuple[Cell, int], float]) -> Mean:
    """Values by (cell, stage): the mean over stages in each cell, then over cells. Stages of one run are not independent of
    each other, runs are; warm steps of one run are nearly so, as other samples follow each."""
    cells: dict[Cell, list[float]] = {}
    for (cell, _), value in values.items():
        cells.setdefault(cell, []).append(value)
    return mean_of([math.fsum(found) / len(found) for found in cells.values()])
