"""`regrow lab grid` from start to end: the runs that are missing, one after another. What was done before is not done again."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from node.data.corpus import sotu_files
from node.data.prepare import PrepareOptions
from node.data.section import run_data
from node.lab.crew import PROGRESS, Boss, do_all
from node.lab.grid.draw import QUICK, plan_of
from node.lab.grid.hand import job_of
from node.lab.grid.plan import FROZEN, Plan, read_plan
from node.lab.grid.policies import RATE_NAMES, ROWS, Cell, cells, refused
from node.lab.raw import Raw, run_name
from node.lab.run import progress_bar
from node.ports import UnusableError
from protocol.manifest import DataSection

RAW = "grid.jsonl"
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GridOptions:
    """Flags of `regrow lab grid`. Of policies, rates and seeds: none given means all that the plan has. `seconds`: no run is
    begun after so many; 0 = no limit."""

    work: Path
    plan: Path = FROZEN
    quick: bool = False
    policies: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    data: Path | None = None
    jobs: int = 2
    seconds: float = 0.0


def run_grid(options: GridOptions) -> Plain:
    """Do what is missing, and tell what there is. Raises `UnusableError`."""
    began = time.monotonic()
    plan = plan_of(QUICK) if options.quick else read_plan(options.plan)
    cells_wanted = _wanted(options, plan)
    files = sotu_files() if options.data is None else [options.data]
    data = run_data(files, options.work / "data", PrepareOptions(vocab_size=plan.rig.small.vocab)).section
    raw = Raw(options.work / RAW)
    wanted = {cell: run_name(cell.name, plan.digest, data_name(data)) for cell in cells_wanted}
    left = {cell: name for cell, name in wanted.items() if raw.get(name) is None}
    jobs = [job_of(name, cell, plan, data, options.work / "cache") for cell, name in left.items()]
    with progress_bar() as bar:
        boss = _Boss(raw, bar, plan.max_steps, bar.add_task("runs", total=len(wanted), completed=len(wanted) - len(left)))
        do_all(jobs, options.jobs, Boss(boss.on_done, boss.on_progress, lambda: _has_time(options, began)))
    outcomes = [found["outcome"] for name in wanted.values() if (found := raw.get(name))]
    return {
        "raw": str(raw.path),
        "plan": plan.digest,
        "runs": len(wanted),
        "done": len(outcomes),
        "done_now": boss.num_done,
        "reached": sum(outcome["reached"] for outcome in outcomes),
        "refused": {row.name: why for row in ROWS if (why := refused(plan.rig, row))},
        "cpu_s": round(sum(outcome["cpu_s"] for outcome in outcomes), 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def data_name(data: DataSection) -> str:
    """Ten hex digits of what is trained on, wherever it lies."""
    digests = [shard.digest for shard in (*data.train, *data.validation)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:10]


def _has_time(options: GridOptions, began: float) -> bool:
    return not options.seconds or time.monotonic() - began < options.seconds


def _wanted(options: GridOptions, plan: Plan) -> list[Cell]:
    """Raises `UnusableError(2)` for what there is not."""
    known = {row.name: row for row in ROWS}
    drawn_rates = {schedule.rate for schedule in plan.schedules}
    rates = tuple(rate for rate in RATE_NAMES if rate == "0" or rate in drawn_rates)
    seeds = tuple(sorted({schedule.seed for schedule in plan.schedules}))
    for policy in options.policies:
        if policy not in known:
            raise UnusableError(2, f"--policy {policy}: use one of {', '.join(known)}")
        if why := refused(plan.rig, known[policy]):
            raise UnusableError(2, f"--policy {policy}: this version has no such policy ({why})")
    _check("--rate", options.rates, rates)
    _check("--seed", options.seeds, seeds)
    found = cells(plan.rig, options.seeds or seeds, options.rates or rates)
    found = [cell for cell in found if not options.policies or cell.policy in options.policies]
    if not found:
        raise UnusableError(
            2, "no run is of this policy at this rate: `none` has rate 0 only, and of the others only checkfree_plus has it"
        )
    return found


def _check(flag: str, given: tuple[object, ...], known: tuple[object, ...]) -> None:
    wrong = [value for value in given if value not in known]
    if wrong:
        raise UnusableError(2, f"{flag} {wrong[0]}: the plan has {', '.join(map(str, known))}")


@dataclass(slots=True)
class _Boss:
    raw: Raw
    bar: Progress
    max_steps: int
    runs: TaskID
    num_done: int = 0

    def on_done(self, result: Plain) -> None:
        self.raw.add(result)
        self.num_done += 1
        self.bar.advance(self.runs)
        self._steps(result["outcome"]["cell"], None)

    def on_progress(self, told: Plain) -> None:
        self._steps(told["cell"], told[PROGRESS])

    def _steps(self, cell: Plain, executed: int | None) -> None:
        """A bar for each run that goes on; None: it is done."""
        name = f"{cell['policy']} {cell['rate']} % seed {cell['seed']}{' stage 0 too' if cell['stage0'] else ''}"
        task = next((task for task in self.bar.tasks if task.description == name), None)
        if executed is None:
            if task:
                self.bar.remove_task(task.id)
            return
        number = task.id if task else self.bar.add_task(name, total=self.max_steps)
        self.bar.update(number, completed=executed)
