"""Commands that ask a running node to do something: stop, pause, resume, debug dump; and tickets for a run by invitation."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import WHERE_HELP, StateDir, local_address, some_address

Where = Annotated[str | None, typer.Argument(metavar="[INVITE|HOST:PORT]", help=WHERE_HELP, show_default=False)]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="The organiser's key. Default: the one in --state-dir."),
]
KEY_FILE = "organiser.key"
DAY_S = 24 * 3600


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    panel = "Organise a run (with its organiser's key)"
    app.command(rich_help_panel=panel)(stop)
    app.command(rich_help_panel=panel)(pause)
    app.command(rich_help_panel=panel)(resume)
    app.command(rich_help_panel=panel)(ticket)
    debug = typer.Typer(no_args_is_help=True, help="Look inside a running node.")
    debug.command()(dump)
    app.add_typer(debug, name="debug")


def stop(where: Where = None, state_dir: StateDir = None, key: Key = None) -> int:
    """End the run: the step in progress is committed, then all nodes exit.

    Example: **regrow stop --state-dir organiser**
    """
    return _order("stop", where, state_dir, key)


def pause(where: Where = None, state_dir: StateDir = None, key: Key = None) -> int:
    """Hold the run after the step in progress, until it is resumed."""
    return _order("pause", where, state_dir, key)


def resume(where: Where = None, state_dir: StateDir = None, key: Key = None) -> int:
    """Go on with a run that was paused."""
    return _order("resume", where, state_dir, key)


def _order(action: Literal["stop", "pause", "resume"], where: str | None, state_dir: Path | None, key_file: Path | None) -> int:
    from node import http_client
    from node.keys import OrganiserKey, sign_order

    key = OrganiserKey.load(_key_file(action, state_dir, key_file))
    address = some_address(where, state_dir)
    status = http_client.status(address)
    # Milliseconds: later orders have higher serials, from whichever machine they are given.
    order = sign_order(key, str(status["run_id"]), action, time.time_ns() // 1_000_000)
    body = json.dumps({"action": order.action, "serial": order.serial, "signature": order.signature}).encode()
    sentence = b"".join(http_client.stream(address, "/order", body=body, limit=10_000)).decode(errors="replace")
    print(sentence.strip())
    return 0


def _key_file(command: str, state_dir: Path | None, key_file: Path | None) -> Path:
    if key_file is not None:
        return key_file
    if state_dir is None:
        raise ValueError(f"{command} needs the organiser's key: name it with --key FILE")
    return state_dir / KEY_FILE


def ticket(
    invite: Annotated[str | None, typer.Argument(metavar="[INVITE]", help="The run's invite.", show_default=False)] = None,
    peer: Annotated[str | None, typer.Option("--peer", metavar="PEERID", help="For this node, as it says itself.")] = None,
    bearer: Annotated[bool, typer.Option("--bearer", help="For whoever has the ticket, any number of nodes.")] = False,
    valid_days: Annotated[int, typer.Option("--valid-days", min=1, max=3650, metavar="N", help="Days until it expires.")] = 30,
    state_dir: StateDir = None,
    key: Key = None,
) -> int:
    """Print a ticket that lets a node join a run whose manifest says `admission: invited`.

    The run is that of INVITE, or of the node that runs on --state-dir. A ticket cannot be taken back before it expires.

    Example: **regrow ticket --state-dir organiser --peer QmAbC...**
    """
    from node.keys import OrganiserKey, sign_bearer_ticket, sign_ticket
    from node.running import read_running
    from protocol.addresses import is_peer_id
    from protocol.invite import parse

    if (peer is None) != bearer:
        raise ValueError("a ticket is for one node (--peer PEERID) or for whoever has it (--bearer); name one of them")
    if peer is not None and not is_peer_id(peer):
        raise ValueError(f"--peer {peer!r} is no peer id; `regrow join` without a ticket tells that of its node")
    if invite is None and state_dir is None:
        raise ValueError("name the run by its invite, or by --state-dir DIR of a node that runs on this machine")
    signer = OrganiserKey.load(_key_file("ticket", state_dir, key))
    run = parse(invite if invite is not None else read_running(state_dir or Path()).invite)
    if run.organiser != signer.public:
        raise ValueError(f"{signer.path} is not the key of {run.run_id}'s organiser; name the right one with --key FILE")
    now = time.time_ns()
    serial, expires = now // 1_000_000, now // 1_000_000_000 + valid_days * DAY_S
    text = (
        sign_bearer_ticket(signer, run.run_id, serial, expires)
        if peer is None
        else sign_ticket(signer, run.run_id, peer, serial, expires)
    )
    print(text)
    return 0


def dump(
    stage: Annotated[int, typer.Option("--stage", min=0, metavar="S", help="Which stage.")],
    out: Annotated[Path, typer.Option("--out", metavar="F.safetensors", help="File to write.")],
    where: Annotated[str | None, typer.Argument(metavar="[HOST:PORT]", show_default=False)] = None,
    state_dir: StateDir = None,
) -> int:
    """Write a stage's weights, as its node last committed them, to a safetensors file.

    Example: **regrow debug dump --state-dir node1 --stage 2 --out stage2.safetensors**
    """
    from node import http_client
    from node.cli.prepare import progress_bar

    address = local_address(where, state_dir)
    if address is None:
        raise ValueError("debug dump asks a node on this machine: name --state-dir or HOST:PORT, not an invite")
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file, progress_bar() as progress:
            for chunk in http_client.stream(address, f"/debug/dump?stage={stage}", timeout_s=60):
                file.write(chunk)
                progress(f"stage {stage}", file.tell(), 0)
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"stage {stage} written to {out}, {out.stat().st_size:,} bytes", file=sys.stderr)
    return 0
