"""Commands that are a node's life, and `config`, which shows what they would use: start, join, config."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import Json
from node.ports import PeerError, UnusableError

if TYPE_CHECKING:
    from node.config import Resolved

Stage = Annotated[int | None, typer.Option("--stage", metavar="S", help="Stage to hold. Default: where the run needs one.")]
Listen = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where other nodes connect (gRPC); port 0 = any.")
]
Announce = Annotated[
    str | None,
    typer.Option("--announce", metavar="HOST:PORT", help="Where others reach --listen, if a router is in between."),
]
DhtPort = Annotated[int | None, typer.Option("--dht-port", metavar="PORT", help="Port of the directory; 0 = any.")]
DhtAnnounce = Annotated[
    str | None,
    typer.Option("--dht-announce", metavar="ADDR", help="Where others reach it, such as /ip4/203.0.113.7/tcp/4000."),
]
Lan = Annotated[
    bool | None,
    typer.Option("--lan", help="All nodes are in one network: private addresses may be announced.", show_default=False),
]
MetricsAt = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Where /metrics and /status are served; port 0 = any."),
]
PublishAt = Annotated[
    str | None,
    typer.Option("--publish", metavar="HOST:PORT", help="Where the status page alone is shown, to everybody; 0 = any port."),
]
State = Annotated[
    Path | None, typer.Option("--state-dir", metavar="DIR", help="Folder of the node's identity, data and event log.")
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="Threads of the computation on a CPU.")]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", metavar="SIZE", help="Memory that it may plan with, such as 4GB.")
]
MaxUpload = Annotated[
    float | None, typer.Option("--max-upload-mbit", metavar="X", help="Most that it sends, in Mbit/s; 0 = no limit.")
]
MaxGb = Annotated[
    float | None, typer.Option("--max-gb", metavar="X", help="Leave in order after X GB in and out; 0 = no limit.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name that others see.")]
Ticket = Annotated[
    str | None, typer.Option("--ticket", metavar="TICKET", help="The organiser's ticket, if the run asks for one.")
]
LogJson = Annotated[
    bool | None,
    typer.Option("--log-json", help="Log on stderr as JSON, one object a line, for machines.", show_default=False),
]
LogLevel = Annotated[str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]
Patience = Annotated[
    float | None,
    typer.Option("--bootstrap-timeout-s", metavar="S", help="Seconds to wait for a first peer.", show_default=False),
]
Retry = Annotated[
    bool | None,
    typer.Option("--retry", help="Cannot reach the run, or broke: wait and start again (Ctrl-C ends it).", show_default=False),
]
Record = Annotated[
    bool | None,
    typer.Option("--record", help="Write all that it is told and decides to its state directory.", show_default=False),
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML; flags and REGROW_* come first.")
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show stage, memory, download and traffic of joining; then exit.")]
BAD_USE, UNREACHABLE = 2, 3
NO_SETTINGS = ("manifest", "invite", "config", "as_json", "dry_run")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(rich_help_panel="Help a run")(join)
    app.command(rich_help_panel="Start a run of your own")(start)
    app.command("config", rich_help_panel="Look at a run")(show_config)


def start(
    manifest: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The manifest, as `init` prints it.")],
    stage: Stage = None,
    listen: Listen = None,
    announce: Announce = None,
    dht_port: DhtPort = None,
    dht_announce: DhtAnnounce = None,
    lan: Lan = None,
    metrics: MetricsAt = None,
    publish: PublishAt = None,
    state_dir: State = None,
    device: Device = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    max_upload_mbit: MaxUpload = None,
    max_gb: MaxGb = None,
    name: Name = None,
    ticket: Ticket = None,
    log_json: LogJson = None,
    log_level: LogLevel = None,
    bootstrap_timeout_s: Patience = None,
    retry: Retry = None,
    record: Record = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Start a run: this node is its first, the others join with the invite that it prints.

    The organiser's key is made in the state directory; who has it can pause and stop the run.

    Example: **regrow start run.yaml --stage 0 --state-dir organiser**
    """
    return _live(_resolve(locals()), manifest_file=manifest)


def join(
    invite: Annotated[str, typer.Argument(metavar="INVITE", help="The token that somebody of the run gave you.")],
    stage: Stage = None,
    listen: Listen = None,
    announce: Announce = None,
    dht_port: DhtPort = None,
    dht_announce: DhtAnnounce = None,
    lan: Lan = None,
    metrics: MetricsAt = None,
    publish: PublishAt = None,
    state_dir: State = None,
    device: Device = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    max_upload_mbit: MaxUpload = None,
    max_gb: MaxGb = None,
    name: Name = None,
    ticket: Ticket = None,
    log_json: LogJson = None,
    log_level: LogLevel = None,
    bootstrap_timeout_s: Patience = None,
    retry: Retry = None,
    record: Record = None,
    config: Config = None,
    as_json: Json = False,
    dry_run: DryRun = False,
) -> int:
    """Help a run: fetch its manifest from a peer, hold a stage, train until it is finished or you leave (Ctrl-C).

    Others see this node's address and peer id. No code from elsewhere runs here.

    Example: **regrow join regrow1:AbC... --name anna**
    """
    resolved = _resolve(locals())
    return _live(resolved, invite=invite, dry_run=dry_run)


def show_config(
    stage: Stage = None,
    listen: Listen = None,
    announce: Announce = None,
    dht_port: DhtPort = None,
    dht_announce: DhtAnnounce = None,
    lan: Lan = None,
    metrics: MetricsAt = None,
    publish: PublishAt = None,
    state_dir: State = None,
    device: Device = None,
    threads: Threads = None,
    memory_limit: MemoryLimit = None,
    max_upload_mbit: MaxUpload = None,
    max_gb: MaxGb = None,
    name: Name = None,
    ticket: Ticket = None,
    log_json: LogJson = None,
    log_level: LogLevel = None,
    bootstrap_timeout_s: Patience = None,
    retry: Retry = None,
    record: Record = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Show every setting of a node and where its value comes from: flag, REGROW_* variable, file or default.

    Example: **REGROW_DEVICE=cpu regrow config**
    """
    resolved = _resolve(locals())
    if as_json:
        print(json.dumps(resolved.as_json()))
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), header_style="bold")
    for column in ("setting", "value", "from", "meaning"):
        table.add_column(column, overflow="fold")
    for row in resolved.rows():
        if row.name != "json":
            table.add_row(*(Text(cell) for cell in (row.name, row.value, row.origin, row.description)))
    Console(highlight=False).print(table)
    return 0


def _live(resolved: Resolved, manifest_file: Path | None = None, invite: str = "", dry_run: bool = False) -> int:
    """A node's life, once its settings are known."""
    settings, defaults = resolved.settings, frozenset(name for name, origin in resolved.origins.items() if origin == "default")

    def once() -> int:
        from node.compose import Source, run_node

        return run_node(settings, Source(manifest_file, invite, dry_run, defaults))

    def live() -> int:
        if manifest_file is None:
            from protocol.invite import parse

            parse(invite)
        if sys.stderr.isatty() and not settings.log_json:
            print("starting: loading libraries takes some seconds", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as TERM and HUP, until the node minds them all
        if not settings.retry:
            return once()
        from node.again import run_again

        return run_again(once, time.sleep, time.monotonic, partial(_say, settings.log_json, "again"))

    return _in_json(live) if settings.log_json else live()


def _in_json(live: Callable[[], int]) -> int:
    """What ends the node is told as everything else is, on one line."""
    try:
        return live()
    except (UnusableError, PeerError, ValueError, OSError) as error:
        _say(True, "failed", str(error), "error")
        return error.code if isinstance(error, UnusableError) else UNREACHABLE if isinstance(error, PeerError) else BAD_USE


def _say(is_json: bool, event: str, sentence: str, level: str = "warning") -> None:
    from node.log_lines import as_json

    line = as_json(time.time(), level, event, {}, sentence) if is_json else f"regrow: {sentence}"
    print(line, file=sys.stderr, flush=True)


def _resolve(flags: dict[str, Any]) -> Resolved:
    """Settings from the options of a command; says on stderr what is odd about them."""
    from node.config import resolve

    given = {key: value for key, value in flags.items() if key not in NO_SETTINGS}
    given["json"] = flags["as_json"] or None
    resolved = resolve(given, os.environ, flags["config"])
    for note in resolved.notes:
        _say(resolved.settings.log_json, "setting", note)
    return resolved
