"""`python -m tests.tools.ambush STATE_DIR PARENT ARG...`: a `regrow` node that can be caught at an exact moment of its work.

Honest in all else. Armed with a moment, it stops itself (SIGSTOP) the next time it comes there; whoever armed it then does what
he likes to it, and may continue it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from node.demo.child import die_with_parent
from node.demo.process import STDERR_FILE, STDOUT_FILE, NodeProcess
from tests.tools.swarm import Swarm, wait_for

Moment = Literal["forward", "backward", "before_sum", "in_sum"]
"""In the pass of a microbatch through a block stage; before anything of a stage's gradient is sent to a sibling; when a part of
the sum is there, before it is used or told to a sibling."""
ORDER_FILE = "ambush"
CAUGHT_LIMIT_S = 60.0
POLL_S = 0.01


def start(name: str, args: Sequence[str], state_dir: Path) -> NodeProcess:
    """As `NodeProcess.start`."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    ports = ["--listen", "127.0.0.1:0", "--dht-port", "0", "--metrics", "127.0.0.1:0"]
    own = ["--json", "--state-dir", str(state_dir), *ports]
    command = [sys.executable, "-m", "tests.tools.ambush", str(state_dir), str(os.getpid()), *args, *own]
    with (state_dir / STDOUT_FILE).open("wb") as out, (state_dir / STDERR_FILE).open("wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
    return NodeProcess(name, state_dir, process)


def join(made: Swarm, invite: str, *args: str, name: str) -> NodeProcess:
    """As `Swarm.join`: with the name of one that has ended it comes back with that one's state directory."""
    node = start(name, ["join", invite, *args], made.folder / name)
    made.nodes.append(node)
    return node


def arm(node: NodeProcess, moment: Moment) -> None:
    """It will stop itself when it next comes there. Written aside and renamed: it never reads half a word."""
    aside = node.state_dir / f"{ORDER_FILE}.new"
    aside.write_text(moment)
    aside.rename(node.state_dir / ORDER_FILE)


def caught(node: NodeProcess) -> None:
    """Waits until it has stopped itself."""
    process = psutil.Process(node.process.pid)
    what = f"{node.name} comes to its ambush"
    wait_for(what, lambda: process.status() == psutil.STATUS_STOPPED, CAUGHT_LIMIT_S, str, POLL_S)


def _lay(state_dir: Path) -> None:
    """The node's side, before it starts: look for orders at these moments, and stop."""
    from node.reduce import Reducer
    from node.stage.passes import Passes

    honest_run, honest_sum, honest_install = Passes.run, Reducer.run, Reducer._install
    order = state_dir / ORDER_FILE

    def look(moment: str) -> None:
        if order.exists() and order.read_text() == moment:
            order.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)

    def run(self: Any, seat: Any, work: Any, payload: Any) -> Any:
        look(work.op)
        return honest_run(self, seat, work, payload)

    async def sum_up(self: Any, command: Any) -> Any:
        look("before_sum")
        return await honest_sum(self, command)

    async def install(self: Any, job: Any, piece: Any, total: Any, owner: Any) -> None:
        look("in_sum")
        await honest_install(self, job, piece, total, owner)

    Passes.run = run  # type: ignore[method-assign]
    Reducer.run = sum_up  # type: ignore[method-assign]
    Reducer._install = install  # type: ignore[method-assign]


if __name__ == "__main__":
    state_dir, parent = sys.argv[1:3]
    die_with_parent(int(parent))
    _lay(Path(state_dir))
    from node.__main__ import run as regrow

    regrow(sys.argv[3:])
