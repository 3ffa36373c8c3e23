"""The demo from start to end: data, manifest, nodes, watching, result. Whatever happens, nothing is left behind."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from node.demo.folder import Folders, demo_folders
from node.demo.kills import Killer, kills_of
from node.demo.material import make_run
from node.demo.process import NodeProcess, end_all
from node.demo.screen import DemoScreen
from node.demo.watch import Watch, wait_until_ready
from node.ports import UnusableError
from node.progress import Progress, duration

FIRST_START_S = 90.0
END_GRACE_S = 6.0
LINGER_S = 60.0
POLL_S = 0.1
FAILED = 1


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Flags of `regrow demo`; None means the preset's value."""

    data: Path | None = None
    steps: int | None = None
    seed: int = 0
    block_stages: int | None = None
    policy: str | None = None
    kill: tuple[str, ...] = ()
    keep: Path | None = None
    json: bool = False


class Signalled(BaseException):
    """The user wants the demo to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class NodeDied(Exception):
    """A node ended that should not have; carries its exit code."""

    def __init__(self, node: NodeProcess, sentence: str) -> None:
        super().__init__(f"{node.name} {sentence}; its last words are above")
        self.code = node.exit_code or FAILED
        self.last_words = [f"  {node.name}: {line}" for line in node.last_words() if line.strip()]


def run(options: DemoOptions) -> int:
    """Run the demo; the last line on stdout is its result. Returns the exit code."""
    with _signals() as calm:
        try:
            with demo_folders(options.keep) as folders, DemoScreen(live=not options.json) as screen:
                result = _train(options, folders, screen, calm)
        except Signalled as signalled:
            sys.stderr.write(f"regrow: demo ended by {signal.Signals(signalled.signum).name}\n")
            return 128 + signalled.signum
        except NodeDied as died:
            sys.stderr.writelines(f"{line}\n" for line in died.last_words)
            raise UnusableError(died.code, str(died)) from None
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    return 0


@contextmanager
def _signals() -> Iterator[list[int]]:
    """INT, TERM and HUP raise `Signalled` once; afterwards, and once the list is not empty, they are only noted."""
    seen: list[int] = []

    def on_signal(signum: int, frame: FrameType | None) -> None:
        seen.append(signum)
        if len(seen) == 1:
            raise Signalled(signum)

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.signal(signum, on_signal) for signum in caught}
    try:
        yield seen
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _train(options: DemoOptions, folders: Folders, screen: DemoScreen, seen: list[int]) -> dict[str, Any]:
    screen.say("preparing data and tokenizer")
    manifest_file, manifest = make_run(options, folders.files)
    block_stages = manifest.num_block_stages
    kills = kills_of(options.kill, block_stages, manifest.last_step, manifest.recovery.policy)
    nodes: list[NodeProcess] = []
    watch = Watch(nodes, Progress(manifest.last_step))

    def join(name: str, invite: str) -> NodeProcess:
        nodes.append(_launch(name, ["join", invite], folders))
        return nodes[-1]

    killer = Killer(kills, watch, join, screen.say)
    watch.on_event = killer.tell
    began = time.monotonic()
    try:
        _start(nodes, manifest_file, block_stages, folders, screen)
        screen.say(f"{len(nodes)} nodes are up after {duration(time.monotonic() - began)}")
        _follow(watch, killer, screen)
        screen.draw(watch, float("inf"))
    finally:
        seen.append(0)  # From here on signals no longer interrupt: everything below is bounded.
        end_all(nodes, END_GRACE_S)
    progress = watch.progress
    return {
        "steps": progress.step,
        "first_loss": progress.first_loss,
        "last_loss": progress.last_loss,
        "recoveries": progress.num_recoveries,
        "block_stages": block_stages,
        "pids": [node.process.pid for node in nodes],
        "validation_loss": progress.validation_loss,
        "seconds": round(time.monotonic() - began, 1),
    }


def _start(nodes: list[NodeProcess], manifest_file: Path, block_stages: int, folders: Folders, screen: DemoScreen) -> None:
    """Stage 0 opens the run, the others join with its invite."""
    screen.say(f"starting {block_stages + 1} nodes, one for each stage")

    def start(stage: int, *words: str) -> None:
        nodes.append(_launch(f"stage-{stage}", [*words, "--stage", str(stage)], folders))

    start(0, "start", str(manifest_file))
    invite = _invite_of(nodes[0])
    for stage in range(1, block_stages + 1):
        start(stage, "join", invite)
    for node in nodes[1:]:
        _invite_of(node)


def _launch(name: str, args: list[str], folders: Folders) -> NodeProcess:
    return NodeProcess.start(name, args, folders.files / name, {"TMPDIR": str(folders.scratch)})


def _invite_of(node: NodeProcess) -> str:
    if not wait_until_ready(node, time.monotonic() + FIRST_START_S):
        ended = "ended while it started" if node.exit_code is not None else f"is not up after {FIRST_START_S:.0f} s"
        raise NodeDied(node, ended)
    assert node.running is not None, "ready"
    return node.running.invite


def _follow(watch: Watch, killer: Killer, screen: DemoScreen) -> None:
    """Until all nodes have ended in order."""
    finished_at: float | None = None
    while any(node.exit_code is None for node in watch.nodes):
        now = time.monotonic()
        for node in watch.nodes:
            node.check_ready()
        watch.look(now)
        screen.draw(watch, now)
        _check_nodes(watch, killer.killed)
        killer.look()
        if watch.progress.step >= watch.progress.last_step:
            finished_at = finished_at or now
            if now - finished_at > LINGER_S:
                slow = next(node for node in watch.nodes if node.exit_code is None)
                raise NodeDied(slow, f"does not end {LINGER_S:.0f} s after the last step")
        time.sleep(POLL_S)
    watch.look(time.monotonic())
    _check_nodes(watch, killer.killed)


def _check_nodes(watch: Watch, killed: list[NodeProcess]) -> None:
    for node in watch.nodes:
        code = node.exit_code
        if node in killed or code is None or (code == 0 and watch.progress.step >= watch.progress.last_step):
            continue
        watch.look(time.monotonic())
        if code or watch.progress.step < watch.progress.last_step:
            raise NodeDied(node, f"ended with code {code} at step {watch.progress.step}")
