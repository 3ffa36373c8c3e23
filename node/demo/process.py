"""One node as a child process, driven from outside: its `--json` line, its exit code, its last words.

stdout and stderr go to files beside the node's state, so nobody has to read pipes. The child dies with this process,
whatever kills it; start it from the main thread, because the kernel watches the thread.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.event_log import FILE_NAME as EVENTS_FILE
from node.event_log import EventTail
from node.running import Running

STDOUT_FILE, STDERR_FILE = "stdout.txt", "stderr.txt"
LAST_LINES = 15
POLL_S = 0.05
MAX_TAIL_BYTES = 64 * 1024


@dataclass
class NodeProcess:
    """A started node. `running` is None until `check_ready` has seen its ready line."""

    name: str
    state_dir: Path
    process: subprocess.Popen[bytes]
    running: Running | None = None
    tail: EventTail = field(init=False)

    def __post_init__(self) -> None:
        self.tail = EventTail(self.state_dir / EVENTS_FILE)

    @classmethod
    def start(
        cls,
        name: str,
        args: Sequence[str],
        state_dir: Path,
        environment: Mapping[str, str] | None = None,
        own_ports: bool = True,
    ) -> NodeProcess:
        """`regrow ARGS... --json` on loopback with this state directory and, unless ARGS say otherwise, any ports; without
        `own_ports` ARGS alone say where."""
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        ports = ["--listen", "127.0.0.1:0", "--dht-port", "0", "--metrics", "127.0.0.1:0"] if own_ports else []
        own = ["--json", "--state-dir", str(state_dir), *ports]
        command = [sys.executable, "-m", "node.demo.child", str(os.getpid()), *args[:1], *own, *args[1:]]
        # One thread each: spinning OpenMP threads of several processes starve each other.
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        with (state_dir / STDOUT_FILE).open("wb") as out, (state_dir / STDERR_FILE).open("wb") as err:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=surroundings, start_new_session=True
            )
        return cls(name, state_dir, process)

    def check_ready(self) -> bool:
        """Whether the node has said that it is up; sets `running`."""
        if self.running is None:
            line, newline, _ = (self.state_dir / STDOUT_FILE).read_bytes().partition(b"\n")
            if newline:
                self.running = Running(**json.loads(line))
        return self.running is not None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128+n if signal n killed it."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def last_words(self, num_lines: int = LAST_LINES) -> list[str]:
        """The end of its stderr."""
        with (self.state_dir / STDERR_FILE).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]

    def send(self, signum: int) -> None:
        """Signal the node's process, if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signum)


def end_all(nodes: Iterable[NodeProcess], grace_s: float) -> bool:
    """TERM all, KILL what is left after `grace_s`, reap all. Returns whether nobody had to be killed."""
    alive = [node for node in nodes if node.process.poll() is None]
    for node in alive:
        node.send(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(node.process.poll() is None for node in alive) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    stubborn = [node for node in alive if node.process.poll() is None]
    for node in stubborn:
        node.send(signal.SIGKILL)
    for node in alive:
        node.process.wait()
    return not stubborn
