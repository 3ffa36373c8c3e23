"""`regrow sim`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from node.cli.options import Json

PANEL = "Try it"
BROKEN = 1


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="sim", rich_help_panel=PANEL)(simulate)


def simulate(
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which swarm, and what happens to it.")],
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="Nodes at the start; 0 = as the seed has it.")] = 0,
    faults: Annotated[
        str, typer.Option("--faults", metavar="KIND,...", help="What may happen: kinds of faults, `all` or `none`.")
    ] = "all",
    life: Annotated[str, typer.Option("--life", help="`mixed`, or a kind of swarm in which only one thing happens.")] = "mixed",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Lines of the story; the last ones are kept.")] = 400,
    as_json: Json = False,
) -> int:
    """Live through one simulated swarm, in virtual time and without a tensor, and tell what happened.

    The same seed is the same story. Exit code 1 if something happened that must not; then the last line says what.

    Example: **regrow sim --seed 7 --nodes 64 --faults kill,restart,partition**
    """
    from node.sim.lives import make_life, tell, told_of
    from node.sim.machine import BrokenError
    from node.sim.mixture import Options, kinds_of

    lived = make_life(life, Options(seed, nodes, kinds_of(faults)))
    broken: BrokenError | None = None
    told = {}
    try:
        told = told_of(lived.run())
    except BrokenError as error:
        broken = error
    print("\n".join(tell(lived, limit)), file=sys.stderr if as_json else sys.stdout)
    if broken:
        print(f"BROKEN: {broken}\n  {'; '.join(broken.__notes__)}", file=sys.stderr)
    if as_json:
        print(json.dumps({"seed": seed, "held": not broken} | told))
    elif not broken:
        print(f"held: {_words(told)}")
    return BROKEN if broken else 0


def _words(told: dict[str, object]) -> str:
    steps, possible = told.get("steps"), told.get("possible")
    verdict, why = str(told.get("verdict", "everything")), told.get("why")
    verdict += f": {why}" if why else ""
    if isinstance(steps, int) and isinstance(possible, float):
        verdict += f"; {steps} steps where {possible:.1f} were possible; faults {_counts(told['fired'])}"
        verdict += f"; recoveries {_counts(told['recoveries'])}"
    return verdict


def _counts(counts: object) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none" if isinstance(counts, dict) else "none"
