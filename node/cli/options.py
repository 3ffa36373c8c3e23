"""Arguments and options that several commands share, and how commands find a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="State directory of a node on this machine."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout; everything else on stderr.")]
WHERE_HELP = "An invite, or the HTTP address (HOST:PORT) of a node."


def local_address(where: str | None, state_dir: Path | None) -> str | None:
    """HTTP address of the one node that was named, or None where `where` is an invite.

    Raises `ValueError` if nothing, or both, were named.
    """
    from node.http_client import address_of
    from node.running import read_running

    if (where is None) == (state_dir is None):
        raise ValueError("name either an invite (or HOST:PORT of a node) or --state-dir DIR")
    if state_dir is not None:
        return read_running(state_dir).http
    assert where is not None, "one of the two is given"
    return address_of(where)


def some_address(where: str | None, state_dir: Path | None) -> str:
    """HTTP address of the node that was named, or of one that answers in the invite's run."""
    from node.cli.lookup import find_nodes
    from node.ports import UnusableError

    address = local_address(where, state_dir)
    if address is not None:
        return address
    assert where is not None, "an invite"
    found = [node for node in find_nodes(where) if node.status is not None]
    if not found:
        raise UnusableError(3, "no node of the run answers over HTTP from here; name one with --state-dir or HOST:PORT")
    return found[0].http
