"""`regrow leave`: the node on this machine goes in order, and its progress is shown until it is gone.

It asks with SIGTERM: who may send that may end the node anyway, and nobody else is asked whether he may.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from node.plain_text import printable

POLL_S = 0.25
LIMIT_S = 3600.0
"""For the longest notice that a run may give; the node ends itself well before."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Help a run")(leave)


def leave(
    state_dir: Annotated[Path, typer.Option("--state-dir", metavar="DIR", help="State directory of the node that is to go.")],
) -> int:
    """Let the node on this machine leave in order: a stage that nobody else holds is handed over first.

    The same as Ctrl-C in its terminal. Once more, while it hands over, makes it quit at once.

    Example: **regrow leave --state-dir node1**
    """
    from node import http_client
    from node.ports import UnusableError
    from node.running import read_running

    running = read_running(state_dir)
    told = http_client.status(running.http)
    if (told.get("pid"), told.get("peer")) != (running.pid, running.peer):
        raise UnusableError(3, f"another node answers at {running.http}: process {running.pid} is not asked to go")
    os.kill(running.pid, signal.SIGTERM)
    for sentence in sentences(lambda: http_client.status(running.http), lambda: is_over(state_dir)):
        print(f"regrow: {printable(sentence)}", file=sys.stderr, flush=True)
    print("left")
    return 0


def sentences(
    status: Callable[[], dict[str, Any]],
    over: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """What a node that goes says, each time it changes, until it is `over`. Raises `UnusableError(3)` after `LIMIT_S`."""
    from node.ports import UnusableError

    said, until = "", clock() + LIMIT_S
    while not over():
        if clock() > until:
            raise UnusableError(3, f"the node is still there after {LIMIT_S:.0f} s; asked once more it quits at once")
        try:
            told = status()
        except UnusableError:  # it closes its sockets before it ends
            told = {}
        sentence = str(told.get("sentence", ""))
        if sentence not in ("", said):
            said = sentence
            yield sentence
        sleep(POLL_S)


def is_over(state_dir: Path) -> bool:
    """Has the node let go of its state directory? Its process may still be listed, if nobody took note of its end."""
    from node.identity import StateLock
    from node.ports import UnusableError

    try:
        StateLock.take(state_dir).close()
    except UnusableError:
        return False
    return True
