"""Commands that look at a run from outside: status and invite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import WHERE_HELP, Json, StateDir, local_address, some_address
from node.plain_text import printable

if TYPE_CHECKING:
    from rich.table import Table

    from node.cli.lookup import Found

Where = Annotated[str | None, typer.Argument(metavar="[INVITE|HOST:PORT]", help=WHERE_HELP, show_default=False)]
UNREACHABLE = 3


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    panel = "Look at a run"
    app.command(rich_help_panel=panel)(status)
    app.command(rich_help_panel=panel)(invite)


def invite(where: Where = None, state_dir: StateDir = None) -> int:
    """Print a fresh invite from a running node.

    Example: **regrow invite --state-dir node1**
    """
    from node import http_client

    print(http_client.get(some_address(where, state_dir), "/invite").decode(errors="replace").strip())
    return 0


def status(where: Where = None, state_dir: StateDir = None, as_json: Json = False) -> int:
    """Show who is there, which stages are held, and how far the run is.

    With an invite, every node that is found in the run is asked; with HOST:PORT or --state-dir, that one.

    Example: **regrow status regrow1:AbC...** or **regrow status 127.0.0.1:9100 --json**
    """
    from node import http_client
    from node.cli.lookup import Found, find_nodes

    address = local_address(where, state_dir)
    if address is not None:
        found = [Found(address, http_client.status(address))]
    else:
        assert where is not None, "an invite"
        found = find_nodes(where)
    if as_json:
        print(json.dumps({"nodes": [{"http": node.http, "status": node.status, **node.lease} for node in found]}))
    else:
        _show(found)
    return 0 if any(node.status is not None for node in found) else UNREACHABLE


def _show(found: list[Found]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    told = [node.status for node in found if node.status is not None]
    if told:
        best = max(told, key=lambda status: int(status.get("step") or 0))
        loss = best.get("loss")
        console.print(
            printable(f"{best.get('run_id')}: {best.get('phase')}, step {best.get('step')}")
            + (f", loss {loss:.3f}" if isinstance(loss, int | float) else ""),
            markup=False,
        )
        if best.get("sentence"):
            console.print(printable(best["sentence"]), markup=False)
    if len(found) == 1 and (line := _own_part(told[0] if told else {})):
        console.print(line, markup=False)
    console.print(_table(found))


def _own_part(status: dict[str, Any]) -> str:
    """Is my node working, and is it counted?"""
    match status.get("contribution"):
        case {"steps": int(steps), "tokens": int(tokens), "share": float(share)}:
            return f"this node: part in {steps:,} steps, {tokens:,} tokens computed, {share:.0%} of the swarm's work"
        case {}:
            return "this node: nothing that counts yet"
    return ""


def _table(found: list[Found]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("peer", "stages", "phase", "step", "seen"):
        table.add_column(column)
    for row in _rows(found):
        table.add_row(*(Text(printable(cell, 80)) for cell in row))
    return table


def _rows(found: list[Found]) -> list[tuple[str, str, str, str, str]]:
    rows: dict[str, tuple[str, str, str, str, str]] = {}
    for node in found:
        for other in (node.status or {}).get("view", ()):
            rows.setdefault(str(other.get("peer")), _seen(other))
    for node in found:
        if node.status is not None:
            stages = ", ".join(f"{seat.get('stage')} {seat.get('role')}" for seat in node.status.get("seats", ()))
            peer, step = str(node.status.get("peer")), str(node.status.get("step"))
            rows[peer] = (peer[-12:], stages or "spare", str(node.status.get("phase")), step, node.http)
        elif node.lease:
            peer, stages = str(node.lease["peer"]), ", ".join(map(str, node.lease["stages"]))
            rows.setdefault(peer, (peer[-12:], stages or "spare", "claims to be there", "", "does not answer"))
    return sorted(rows.values(), key=lambda row: (row[1], row[0]))


def _seen(other: dict[str, Any]) -> tuple[str, str, str, str, str]:
    stages, seen = ", ".join(map(str, other.get("stages", ()))), other.get("seen_s")
    age = f"{seen:.0f} s ago" if isinstance(seen, int | float) else "?"
    return str(other.get("peer"))[-12:], stages or "spare", str(other.get("phase") or ""), "", age
