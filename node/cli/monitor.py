"""`regrow monitor`: watch a run from outside and tell Prometheus."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from node.cli.options import Json


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Look at a run")(monitor)


def monitor(
    invite: Annotated[str, typer.Argument(metavar="INVITE", help="The token that somebody of the run gave you.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where it serves HTTP; port 0 = any.")
    ] = "127.0.0.1:28483",
    as_json: Json = False,
) -> int:
    """Watch a run from outside: metrics of the whole swarm, and every node of it for Prometheus to find (/sd).

    It holds nothing, computes nothing and counts nowhere; its coming and going changes nothing in the run.

    Example: **regrow monitor regrow1:AbC...**
    """
    from node.monitor.life import run_monitor
    from protocol.addresses import parse_host_port
    from protocol.invite import parse

    told = parse(invite)
    try:
        host, port = parse_host_port(listen)
    except ValueError as error:
        raise ValueError(f"--listen {listen}: {error}") from None

    def up(ready: Mapping[str, int | str]) -> None:
        if as_json:
            print(json.dumps(ready), flush=True)
        else:
            line = f"watching {ready['run_id']}: http://{ready['http']}/ (/status, /metrics, /sd); Ctrl-C ends it"
            print(line, file=sys.stderr, flush=True)

    return run_monitor(told, host, port, up)
