"""From raw runs to figures, by policy and rate. Plain arithmetic: nothing is measured here, nothing is smoothed over.

*Steps to the target* are executed steps, those that were done again after a rollback too, and *hours* virtual ones; both are
read off between the last two looks at the held-out loss, where the straight line between them crosses the target. A run that
did not get there has neither, and a cell with such a run has no mean.

*Lost steps per failure* of a run: (its steps to the target - those of the run without failures of the same seed) / its failures
until then. Compared is the run without failures of the same policy where there is one (`checkfree_plus`, whose swapping costs
steps by itself), else that of `none`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.lab.figures import Mean, mean_of
from node.lab.grid.plan import Plan
from node.lab.grid.policies import RATE_NAMES, ROWS, STAGE0_RATE

Plain = dict[str, Any]
CALM = "0"
KINDS_OF_CONTROL = ("control", "heartbeat")


@dataclass(frozen=True, slots=True)
class Run:
    """One run as it is compared. `steps`, `hours`: to the target, None where it did not get there."""

    policy: str
    rate: str
    seed: int
    stage0: bool
    executed: int
    all_hours: float
    num_failures: int
    num_missed: int
    num_bytes: int
    outages_s: tuple[float, ...]
    """From each failure to the next commit."""
    steps: float | None = None
    hours: float | None = None
    curve: tuple[tuple[float, float], ...] = ()
    """(hours, held-out loss)"""

    @property
    def step_s(self) -> float:
        """Virtual seconds of an executed step, outages and evaluations included."""
        return 3600 * self.all_hours / self.executed


def run_of(line: Plain, target: float) -> Run:
    """Of a line of the raw file."""
    outcome, cell = line["outcome"], line["outcome"]["cell"]
    struck = [failure for failure in outcome["failures"] if not failure.get("missed")]
    curve = outcome["curve"]
    steps, hours = _crossing(curve, target) if outcome["reached"] else (None, None)
    return Run(
        cell["policy"],
        cell["rate"],
        cell["seed"],
        cell["stage0"],
        outcome["executed"],
        outcome["hours"],
        len(struck),
        len(outcome["failures"]) - len(struck),
        sum(outcome["bytes"].values()),
        tuple(3600 * (f["back_hours"] - f["hours"]) for f in struck if "back_hours" in f),
        steps,
        hours,
        tuple((point["hours"], point["loss"]) for point in curve),
    )


def _crossing(curve: Sequence[Plain], target: float) -> tuple[float, float]:
    """(steps, hours) where the line between the last two looks crosses the target; the last look where it is the only one."""
    last = curve[-1]
    before = curve[-2] if len(curve) > 1 else last
    fall = before["loss"] - last["loss"]
    share = (before["loss"] - target) / fall if fall > 0 else 1.0
    executed = before["executed"] + share * (last["executed"] - before["executed"])
    return executed, before["hours"] + share * (last["hours"] - before["hours"])


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over runs. `value` is None where one of the runs has none, or where there is no run."""

    value: Mean | None
    n: int
    reached: int

    def plain(self) -> Plain:
        """As JSON has it."""
        mean, stderr = (self.value.mean, self.value.stderr) if self.value else (None, None)
        return {"mean": mean, "stderr": stderr, "n": self.n, "reached": self.reached}


def figure(runs: Sequence[Run], of: Callable[[Run], float | None]) -> Figure:
    """Over runs of one cell."""
    values = [of(run) for run in runs]
    known = [value for value in values if value is not None]
    reached = sum(run.steps is not None for run in runs)
    return Figure(mean_of(known) if known and len(known) == len(values) else None, len(runs), reached)


@dataclass(frozen=True, slots=True)
class Cell:
    """Of one policy at one rate, over seeds."""

    policy: str
    rate: str
    runs: tuple[Run, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)

    def plain(self) -> Plain:
        """As JSON has it."""
        return {name: found.plain() for name, found in self.figures.items()} | {"seeds": [run.seed for run in self.runs]}

    def mean(self, name: str) -> float | None:
        """Of a figure, where there is one."""
        found = self.figures[name].value
        return found.mean if found else None


@dataclass(frozen=True, slots=True)
class Results:
    """All cells of one plan, those of the second set apart; cells without a run are not in them."""

    plan: Plan
    cells: Mapping[tuple[str, str], Cell]
    stage0: Mapping[str, Cell]
    missing: tuple[str, ...]

    def plain(self, raw: str) -> Plain:
        """results.json."""
        policies: dict[str, Plain] = {}
        for (policy, rate), cell in self.cells.items():
            policies.setdefault(policy, {})[rate] = cell.plain()
        return {
            "raw": raw,
            "plan": self.plan.digest,
            "target_loss": self.plan.target_loss,
            "max_steps": self.plan.max_steps,
            "policies": policies,
            "stage0": {policy: {STAGE0_RATE: cell.plain()} for policy, cell in self.stage0.items()},
            "missing": list(self.missing),
        }


def results_of(lines: Iterable[Plain], plan: Plan) -> Results:
    """Of those lines that were made under the plan."""
    runs = [run_of(line, plan.target_loss) for line in lines if line.get("run") == "grid" and line.get("plan") == plan.digest]
    calm = {(run.policy, run.seed): run for run in runs if run.rate == CALM}
    by_cell: dict[tuple[str, str, bool], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_cell.setdefault((run.policy, run.rate, run.stage0), []).append(run)
    made = {key: Cell(key[0], key[1], tuple(found), _figures(found, calm)) for key, found in by_cell.items()}
    order = [(row.name, rate) for row in ROWS for rate in RATE_NAMES]
    first = {(policy, rate): made[policy, rate, False] for policy, rate in order if (policy, rate, False) in made}
    second = {policy: cell for (policy, _, stage0), cell in made.items() if stage0}
    return Results(plan, first, second, tuple(_missing(by_cell, plan)))


def _figures(runs: Sequence[Run], calm: Mapping[tuple[str, int], Run]) -> dict[str, Figure]:
    def lost(run: Run) -> float | None:
        """Of a run without failures there is none."""
        beside = calm.get((run.policy, run.seed)) or calm.get(("none", run.seed))
        if run.steps is None or beside is None or beside.steps is None or not run.num_failures:
            return None
        return (run.steps - beside.steps) / run.num_failures

    def goodput(run: Run) -> float | None:
        beside = calm.get(("none", run.seed))
        return beside.hours / run.hours if beside and beside.hours and run.hours else None

    return {
        "steps_to_target": figure(runs, lambda run: run.steps),
        "hours_to_target": figure(runs, lambda run: run.hours),
        "lost_steps_per_failure": figure(runs, lost),
        "bytes_per_step": figure(runs, lambda run: run.num_bytes / run.executed),
        "failures": figure(runs, lambda run: float(run.num_failures)),
        "missed": figure(runs, lambda run: float(run.num_missed)),
        "step_s": figure(runs, lambda run: run.step_s),
        "outage_s": figure(runs, lambda run: sum(run.outages_s) / len(run.outages_s) if run.outages_s else None),
        "goodput": figure(runs, goodput),
    }


def _missing(by_cell: Mapping[tuple[str, str, bool], Sequence[Run]], plan: Plan) -> Iterable[str]:
    """In words, cells that were to be and are not, or not with all seeds."""
    seeds = {schedule.seed for schedule in plan.schedules}
    drawn = {schedule.rate for schedule in plan.schedules} | {CALM}
    for row in ROWS:
        wanted = [(rate, False) for rate in row.rates if rate in drawn]
        if row.stage0 is not None and any(schedule.stage0 for schedule in plan.schedules):
            wanted.append((STAGE0_RATE, True))
        for rate, stage0 in wanted:
            left = seeds - {run.seed for run in by_cell.get((row.name, rate, stage0), ())}
            if left:
                told = "stage 0 too, " if stage0 else ""
                yield f"{row.name} at {rate} % ({told}seed {', '.join(map(str, sorted(left)))})"
