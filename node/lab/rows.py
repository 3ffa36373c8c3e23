"""From runs and forks to the rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.lab.derived import RATES, Run, failure_rate, hours, rollback_loss
from node.lab.figures import Cell, Curve, Mean, behind, excess, fitted, mean_of, middle_of_tail, over_cells
from node.lab.setup import Setup

CHECKPOINTS = ("checkpoint_10", "checkpoint_100")
PLAIN, SWAPPED = False, True
Runs = Mapping[tuple[int, bool], Sequence[float]]
"""(seed, swapped) -> losses of the undisturbed run."""


@dataclass(frozen=True, slots=True)
class Fork:
    """One that counts for a row."""

    seed: int
    warm: int
    stage: int
    losses: Sequence[float]


@dataclass(frozen=True, slots=True)
class Row:
    """Of one policy. `by_stage` and `by_warm` are lost steps again, apart. Without `excess` it is arithmetic, not measured."""

    name: str
    lost: Mean
    excess: Mean | None = None
    by_stage: Mapping[int, Mean] = field(default_factory=dict)
    by_warm: Mapping[int, Mean] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "lost_steps_per_failure": self.lost.plain(),
            "excess_loss": self.excess.plain() if self.excess else None,
            "by_stage": {str(stage): mean.plain() for stage, mean in self.by_stage.items()},
            "by_warm_step": {str(warm): mean.plain() for warm, mean in self.by_warm.items()},
        }


def row_of(name: str, forks: Sequence[Fork], runs: Runs, swapped: bool, setup: Setup) -> Row:
    """Of the forks that were gone through for a policy."""
    seeds = [losses for (_, order), losses in sorted(runs.items()) if order == swapped]
    curves = {warm: fitted(seeds, warm + setup.fork_steps) for warm in setup.warm_steps}
    lost: dict[tuple[Cell, int], float] = {}
    extra: dict[tuple[Cell, int], float] = {}
    for fork in forks:
        run = runs[fork.seed, swapped][fork.warm : fork.warm + setup.fork_steps]
        place = (fork.seed, fork.warm), fork.stage
        extra[place] = excess(fork.losses, run)
        lost[place] = _lost(curves[fork.warm], fork, run)
    stages, warms = sorted({stage for _, stage in lost}), sorted({warm for (_, warm), _ in lost})
    by_stage = {stage: over_cells({place: x for place, x in lost.items() if place[1] == stage}) for stage in stages}
    by_warm = {warm: over_cells({place: x for place, x in lost.items() if place[0][1] == warm}) for warm in warms}
    return Row(name, over_cells(lost), over_cells(extra), by_stage, by_warm)


def _lost(curve: Curve, fork: Fork, run: Sequence[float]) -> float:
    return curve.lost(middle_of_tail(fork.warm, len(run)), behind(fork.losses, run))


def arithmetic_rows() -> list[Row]:
    """Policies whose loss is known: nothing under redundancy; a rollback to the last checkpoint."""
    rows = [Row(name, Mean(rollback_loss(int(name.removeprefix("checkpoint_"))), None, 0)) for name in CHECKPOINTS]
    return [*rows, Row("redundant", Mean(0.0, None, 0))]


def swap_tax(runs: Runs, setup: Setup) -> Mean:
    """Share of steps that a run needs more for swapping stages, by its loss at the end, over seeds."""
    plain = [losses for (_, order), losses in sorted(runs.items()) if order == PLAIN]
    curve, step = fitted(plain, setup.steps), middle_of_tail(setup.steps - setup.fork_steps, setup.fork_steps)
    taxes = []
    for seed in sorted({seed for seed, _ in runs}):
        last = slice(setup.steps - setup.fork_steps, setup.steps)
        lost = curve.lost(step, behind(runs[seed, SWAPPED][last], runs[seed, PLAIN][last]))
        taxes.append(lost / (step - lost))
    return mean_of(taxes)


def hours_of(rows: Sequence[Row], tax: Mean, run: Run) -> dict[str, dict[str, float]]:
    """policy -> failure rate -> hours, derived; inf where it gets nowhere."""
    rates = {"0": 0.0} | {name: failure_rate(p, run.failing_stages) for name, p in RATES.items()}
    return {
        row.name: {
            name: hours(run, row.name, rate, row.lost.mean, tax.mean if row.name == "checkfree_plus" else 0.0)
            for name, rate in rates.items()
        }
        for row in rows
    }
