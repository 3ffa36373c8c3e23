"""`regrow watch`: a run in the terminal, live."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from node.page.outside import Outside


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Look at a run")(watch)


def watch(
    invite: Annotated[str, typer.Argument(metavar="INVITE", help="The token that somebody of the run gave you.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where it shows the same as a page; port 0 = any.")
    ] = "127.0.0.1:0",
) -> int:
    """Watch a run in the terminal: stages and who holds them, curves, what happens; without taking part.

    Where stdout is no terminal, what is new is written as plain lines.

    Example: **regrow watch regrow1:AbC...**
    """
    from rich.console import Console
    from rich.live import Live

    from node.monitor.life import run_monitor
    from node.page.terminal import Lines, drawn
    from protocol.addresses import parse_host_port
    from protocol.invite import parse

    told = parse(invite)
    try:
        host, port = parse_host_port(listen)
    except ValueError as error:
        raise ValueError(f"--listen {listen}: {error}") from None

    def up(ready: Mapping[str, int | str]) -> None:
        line = f"watching {ready['run_id']}; as a page: http://{ready['http']}/ ; Ctrl-C ends it"
        print(line, file=sys.stderr, flush=True)

    console = Console(highlight=False)
    print("entering the run's directory", file=sys.stderr, flush=True)
    if not console.is_terminal:
        lines = Lines()

        def write(page: Outside) -> None:
            for line in lines.news(page.view()):
                print(line, flush=True)

        return run_monitor(told, host, port, up, write)
    with Live(console=console, auto_refresh=False) as live:

        def draw(page: Outside) -> None:
            live.update(drawn(page.view(), console.width), refresh=True)

        return run_monitor(told, host, port, up, draw)
