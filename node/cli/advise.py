"""`regrow advise`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import Json

PANEL = "Start a run of your own"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel=PANEL)(advise)


def advise(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN.yaml]", help="A manifest: stages, their size, steps, timing.")
    ] = None,
    stage_mb: Annotated[float | None, typer.Option("--stage-mb", min=1e-6, help="Weights of a block stage in f32, MB.")] = None,
    stages: Annotated[int | None, typer.Option("--stages", min=1, max=64, help="Block stages. Default: 6.")] = None,
    link_mbit: Annotated[float, typer.Option("--link-mbit", min=1e-3, help="Of a node, each way.")] = 100.0,
    step_s: Annotated[float, typer.Option("--step-s", min=1e-3, help="Seconds of a step.")] = 91.3,
    failures: Annotated[
        float, typer.Option("--failures", min=0, max=99.9, help="Per cent of nodes that vanish in an hour.")
    ] = 10.0,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Useful steps of the run. Default: 10,000.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results", metavar="FILE", help="Of the lab: results.json or forks.json. Default: docs/lab/results.json."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Which recovery policy for this run? Expected hours of each, what it costs, and why.

    What a loss costs is taken from the lab's results where there are any, else from the paper.

    Example: **regrow advise run.yaml --link-mbit 200 --step-s 40 --failures 10**
    """
    from node.lab.advise import F32, Circumstances, told, verdict
    from node.lab.advise import advise as weigh
    from node.lab.measured import known_results
    from node.manifest_file import load
    from node.ports import UnusableError
    from protocol.sizes import stage_parameters

    if run is None and stage_mb is None:
        raise UnusableError(2, "name a manifest, or give --stage-mb: the size of a stage is not known")
    manifest = load(run) if run else None
    of = {"step_s": step_s, "link_bytes_s": link_mbit * 1e6 / 8, "failures_per_hour": failures / 100}
    if manifest:
        largest = max(stage_parameters(manifest, stage) for stage in range(1, manifest.num_stages))
        recovery = manifest.recovery
        of |= {
            "stage_bytes": F32 * largest,
            "stages": manifest.num_block_stages,
            "steps": manifest.last_step,
            "declare_s": manifest.timing.lapse_s + recovery.rebuild_grace_s,
            "node_s": recovery.newcomer_wait_s,
            "shadow_share": recovery.shadow_link_share,
        }
    given = {"stage_bytes": stage_mb and stage_mb * 1e6, "stages": stages, "steps": steps}
    circumstances = Circumstances(**of | {name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    found = weigh(circumstances, known_results(results))
    print(told(circumstances, found), file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps({"policies": [advice.plain() for advice in found], "advice": verdict(found)}))
    return 0
