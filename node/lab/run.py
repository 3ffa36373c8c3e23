"""`regrow lab forks` from start to end: data, undisturbed runs, forks, figures. What was done before is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from node.data.corpus import sotu_files
from node.data.prepare import PrepareOptions
from node.data.section import run_data
from node.lab.crew import Boss, do_all, jobs_of
from node.lab.derived import Run
from node.lab.files import warm_path, write_whole
from node.lab.raw import Plain, Raw, fork_name, reference_name
from node.lab.report import Measured
from node.lab.rows import PLAIN, SWAPPED, Fork, Row, Runs, arithmetic_rows, hours_of, row_of, swap_tax
from node.lab.setup import Setup
from node.lab.treatments import AT_WORST, NOTHING, Case, Treatment, better, policies
from node.ports import UnusableError
from protocol.manifest import DataSection

REPORT, RESULTS, RAW = "forks.md", "forks.json", "raw.jsonl"


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """Flags of `regrow lab forks`. `setups`: one for each size of stage."""

    work: Path
    setups: tuple[Setup, ...]
    data: Path | None = None
    better: bool = False
    jobs: int = 2
    run: Run = field(default_factory=Run)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tables for people, and the last line."""

    text: str
    told: Plain


def run(options: ForkOptions) -> Outcome:
    """Measure what is not measured yet, and report all. Raises `UnusableError`."""
    began, done = time.monotonic(), 0
    measured: list[Measured] = []
    bar = progress_bar()
    files = sotu_files() if options.data is None else [options.data]
    with bar:
        for setup in options.setups:
            prepared = run_data(files, options.work / "data", PrepareOptions(vocab_size=setup.vocab))
            bench = _Bench(options, setup, prepared.section, bar)
            measured.append(bench.measure())
            done += bench.num_done
    report = options.work / REPORT
    text = "\n".join(found.markdown() for found in measured)
    plain = {"setups": [found.plain() for found in measured]}
    write_whole(report, text.encode())
    write_whole(options.work / RESULTS, json.dumps(plain, indent=1).encode() + b"\n")
    told = {
        "report": str(report),
        "results": str(options.work / RESULTS),
        "measured_now": done,
        "seconds": round(time.monotonic() - began, 1),
        "lost_steps_per_failure": {
            str(found.setup.layers_per_stage): {row.name: row.lost.plain() for row in found.rows} for found in measured
        },
    }
    return Outcome(text, told)


def progress_bar() -> Progress:
    """On stderr."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


@dataclass(slots=True)
class _Bench:
    options: ForkOptions
    setup: Setup
    data: DataSection
    bar: Progress
    num_done: int = 0
    folder: Path = field(init=False)
    raw: Raw = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.options.work / self.setup.name(self.data)
        self.raw = Raw(self.folder / RAW)

    def measure(self) -> Measured:
        """See the module."""
        runs = [(seed, order) for order in (PLAIN, SWAPPED) for seed in self.setup.seeds]
        self._do("reference", [self._reference(*run) for run in runs if not self._has_warm(*run)])
        named: dict[str, list[tuple[Case, int, int]]] = {}
        extra: dict[str, list[tuple[Case, int, int]]] = {}
        for seed, swapped in runs:
            for warm in self.setup.warm_steps:
                for case in self._cases(seed, swapped, warm):
                    named.setdefault(case.name, []).append((case, seed, warm))
                for case in self._better(seed, swapped, warm):
                    extra.setdefault(case.name, []).append((case, seed, warm))
        cases = [case for found in (*named.values(), *extra.values()) for case in found]
        controls = [self._fork(*run, warm, 1, NOTHING) for run in runs for warm in self.setup.warm_steps]
        self._do("fork", self._in_order([*controls, *(name for case in cases for name in self._forks(*case))]))
        losses = {run: self._losses(self._reference(*run)) for run in runs}
        self._check_controls(controls, losses)
        rows = [Row("none", row_of("none", self._controls(), losses, PLAIN, self.setup).lost)]
        rows += [*self._rows(named, losses), *arithmetic_rows()]
        tax = swap_tax(losses, self.setup)
        hours = hours_of([row for row in rows[1:] if not row.name.endswith(AT_WORST)], tax, self.options.run)
        return Measured(self.setup, rows, tax, hours, self.options.run, self._rows(extra, losses))

    # ---- what is to be done ----

    def _cases(self, seed: int, swapped: bool, warm: int) -> list[Case]:
        return policies(self.setup.manifest(self.data, seed, swapped), self._norms(seed, swapped, warm), swapped)

    def _better(self, seed: int, swapped: bool, warm: int) -> list[Case]:
        if swapped or not self.options.better or warm != max(self.setup.warm_steps):
            return []
        return better(self.setup.manifest(self.data, seed, swapped), self._norms(seed, swapped, warm))

    def _norms(self, seed: int, swapped: bool, warm: int) -> list[float]:
        found = self.raw.get(self._reference(seed, swapped))
        assert found, "the runs come before the forks"
        norms: list[float] = found["norms"][str(warm)]
        return norms

    def _reference(self, seed: int, swapped: bool) -> Plain:
        return reference_name(seed, swapped, self.setup.steps, self.setup.warm_steps)

    def _has_warm(self, seed: int, swapped: bool) -> bool:
        files = [warm_path(self.folder, seed, swapped, warm) for warm in self.setup.warm_steps]
        return self.raw.get(self._reference(seed, swapped)) is not None and all(file.exists() for file in files)

    def _fork(self, seed: int, swapped: bool, warm: int, stage: int, treatment: Treatment) -> Plain:
        return fork_name(seed, swapped, warm, self.setup.fork_steps, stage, treatment)

    def _forks(self, case: Case, seed: int, warm: int) -> list[Plain]:
        return [self._fork(seed, case.swapped, warm, stage, treatment) for stage, treatment in case.by_stage.items()]

    def _in_order(self, names: Iterable[Plain]) -> list[Plain]:
        """Each once, those of one run and warm state after one another."""
        once = {json.dumps(name, sort_keys=True): name for name in names if self.raw.get(name) is None}
        return sorted(once.values(), key=lambda name: (name["seed"], name["swapped"], name["warm"]))

    def _do(self, what: str, names: Sequence[Plain]) -> None:
        told = f"{self.setup.layers_per_stage}-layer stages: {'undisturbed runs' if what == 'reference' else 'forks'}"
        task = self.bar.add_task(told, total=len(names))

        def on_done(result: Plain) -> None:
            self.raw.add(result)
            self.num_done += 1
            self.bar.advance(task)

        do_all(jobs_of(self.folder, self.setup, self.data, what, names), self.options.jobs, Boss(on_done))

    # ---- what came of it ----

    def _losses(self, name: Plain) -> list[float]:
        found = self.raw.get(name)
        assert found, f"{name} was done"
        losses: list[float] = found["losses"]
        return losses

    def _rows(self, named: dict[str, list[tuple[Case, int, int]]], losses: Runs) -> list[Row]:
        rows = []
        for name, cases in named.items():
            forks = [
                Fork(seed, warm, stage, self._losses(self._fork(seed, case.swapped, warm, stage, treatment)))
                for case, seed, warm in cases
                for stage, treatment in case.by_stage.items()
            ]
            rows.append(row_of(name, forks, losses, cases[0][0].swapped, self.setup))
        return rows

    def _controls(self) -> list[Fork]:
        places = [(seed, warm) for seed in self.setup.seeds for warm in self.setup.warm_steps]
        return [Fork(seed, warm, 1, self._losses(self._fork(seed, PLAIN, warm, 1, NOTHING))) for seed, warm in places]

    def _check_controls(self, controls: Sequence[Plain], losses: Runs) -> None:
        """A fork in which nothing is lost is the run, to the bit: else what others lose is not the stage's doing."""
        for name in controls:
            run, warm = losses[name["seed"], name["swapped"]], name["warm"]
            if self._losses(name) != list(run[warm : warm + self.setup.fork_steps]):
                why = f"a fork of seed {name['seed']} at step {warm} in which nothing is lost is not the run itself"
                raise UnusableError(1, f"{why}: delete {self.folder}, which holds results of another machine or torch")
