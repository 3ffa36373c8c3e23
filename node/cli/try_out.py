"""`regrow demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PANEL = "Try it"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel=PANEL)(demo)


def demo(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Text or JSONL to train on. Default: State of the Union addresses."),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Optimizer steps.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of weights and data order.")] = 0,
    block_stages: Annotated[
        int | None, typer.Option("--block-stages", min=1, help="Stages that hold transformer blocks.")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="Recovery policy.")] = None,
    kill: Annotated[
        list[str] | None,
        typer.Option("--kill", metavar="STAGE@STEP", help="Kill a stage's node at a step; repeatable. `none`: nobody."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave state and event logs in this new folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="No live screen; the result is the last line anyway.")] = False,
) -> int:
    """Train a small model in a swarm of processes on this machine, and leave nothing behind.

    The last line on stdout is the result as JSON.

    Example: **regrow demo --steps 50**
    """
    from node.demo.run import DemoOptions, run

    return run(DemoOptions(data, steps, seed, block_stages, policy, tuple(kill or ()), keep, as_json))
