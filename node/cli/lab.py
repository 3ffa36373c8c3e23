"""`regrow lab`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

PANEL = "Try it"
LAYERS = (1, 2, 4)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    lab = typer.Typer(no_args_is_help=True, help="Measure recovery policies.")
    lab.command()(forks)
    lab.command()(grid)
    lab.command()(report)
    app.add_typer(lab, name="lab", rich_help_panel=PANEL)


def forks(
    work: Annotated[
        Path, typer.Option("--work", metavar="DIR", help="Data, warm states and results; what is there is not done again.")
    ] = Path("lab-work"),
    quick: Annotated[bool, typer.Option("--quick", help="A toy of everything, in less than two minutes.")] = False,
    layers: Annotated[
        list[int] | None, typer.Option("--layers", help="Layers per stage: 1, 2 or 4; repeatable. Default: 2.")
    ] = None,
    better: Annotated[bool, typer.Option("--better", help="Also changes to checkfree, at the last warm step.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, max=100, help="Runs with other weights and data.")] = None,
    warm: Annotated[
        list[int] | None, typer.Option("--warm", min=51, help="A step after which a stage is lost; repeatable.")
    ] = None,
    fork_steps: Annotated[int | None, typer.Option("--fork-steps", min=4, help="Steps of a fork.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Text to train on. Default: State of the Union addresses.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes, of one thread each.")] = 2,
    run_steps: Annotated[int, typer.Option("--run-steps", min=1, help="Derived hours: useful steps of a run.")] = 10_000,
    step_s: Annotated[float, typer.Option("--step-s", min=1e-3, help="Derived hours: seconds of a step.")] = 91.3,
    failing_stages: Annotated[
        int, typer.Option("--failing-stages", min=1, help="Derived hours: block stages that may fail.")
    ] = 6,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="Derived hours: results.json of the grid, for a step under redundant. Default: docs/lab/results.json, else the"
            " paper's.",
        ),
    ] = None,
) -> int:
    """What the loss of a stage costs, by policy: paired forks of one warm state, on the same samples.

    Tables as Markdown; the last line on stdout is JSON. Interrupted, it goes on where it was.

    Example: **regrow lab forks --quick**
    """
    from node.ports import UnusableError

    wrong = [number for number in layers or () if number not in LAYERS]
    if wrong:
        raise UnusableError(2, f"--layers {wrong[0]}: use 1, 2 or 4")
    from node.lab.derived import Run
    from node.lab.measured import known_results
    from node.lab.run import ForkOptions, run
    from node.lab.setup import DEFAULT, QUICK

    setup = QUICK if quick else DEFAULT
    changes = {
        "seeds": seeds and tuple(range(seeds)),
        "warm_steps": warm and tuple(sorted(set(warm))),
        "fork_steps": fork_steps,
    }
    setup = replace(setup, **{key: value for key, value in changes.items() if value})  # type: ignore[arg-type]
    setups = tuple(setup.with_layers(number) for number in sorted(set(layers or (setup.layers_per_stage,))))
    derived = Run(run_steps, step_s, failing_stages, *known_results(results).factor("redundant"))
    found = run(ForkOptions(work, setups, data, better, jobs, derived))
    print(found.text)
    print(json.dumps(found.told))
    return 0


def grid(
    work: Annotated[
        Path, typer.Option("--work", metavar="DIR", help="Data and results (grid.jsonl); what is there is not done again.")
    ] = Path("lab-work"),
    quick: Annotated[bool, typer.Option("--quick", help="A toy: two rates, one seed, a few dozen steps.")] = False,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Rig, target and failures. Default: those of this version.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="Only this policy; repeatable.")] = None,
    rate: Annotated[list[str] | None, typer.Option("--rate", help="Only at 0, 5, 10 or 16 % failures; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; repeatable.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="Text to train on. Default: State of the Union addresses.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes, of one thread each.")] = 2,
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="Begin no run after so many; 0 = no limit.")] = 0.0,
) -> int:
    """Whole runs to a target loss, by policy, rate of failures and seed: the real runtime on a virtual network.

    Hours of computing: stop it with Ctrl-C or --minutes, and call it again. The last line on stdout is JSON.

    Example: **regrow lab grid --quick**
    """
    from node.lab.grid.plan import FROZEN
    from node.lab.grid.run import GridOptions, run_grid

    picked = tuple(policy or ()), tuple(rate or ()), tuple(seed or ())
    told = run_grid(GridOptions(work, plan or FROZEN, quick, *picked, data, jobs, 60 * minutes))
    print(json.dumps(told))
    return 0


def report(
    raw: Annotated[Path, typer.Option("--raw", metavar="FILE", help="What `regrow lab grid` kept.")] = Path(
        "lab-work/grid.jsonl"
    ),
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Gets report.md, results.json and plots.")] = Path(
        "docs/lab"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Of runs that were made with --quick.")] = False,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="The plan of the runs. Default: that of this version.")
    ] = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Plots need matplotlib.")] = True,
) -> int:
    """Tables, plots and results.json of the grid, recomputed from its raw runs; what is missing is named.

    The last line on stdout is JSON.

    Example: **regrow lab report --raw lab-work/grid.jsonl --out docs/lab**
    """
    from node.lab.grid.draw import QUICK, plan_of
    from node.lab.grid.plan import FROZEN, read_plan
    from node.lab.grid.report import ReportOptions
    from node.lab.grid.report import report as write

    of = plan_of(QUICK) if quick else read_plan(plan or FROZEN)
    print(json.dumps(write(ReportOptions(raw, out, of, plots))))
    return 0
