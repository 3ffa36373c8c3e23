"""A copy of the tracked files in a folder of its own, and commands run in it that end in time and leave no process behind."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.edits import Mutant

MOST_MEMORY_BYTES = 4 << 30
"""A mutant that grows without end is stopped before the machine is."""
KEPT_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command."""

    code: int | None
    """None: not over in time."""
    seconds: float
    output: str
    """The end of it."""


class StoppedError(Exception):
    """Nothing is wrong: the run is over."""


class Tree:
    """The files of the repository at `root`, as they are there now, copied to `folder`. Nothing outside of it is changed."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        self._is_over = False
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], check=True, capture_output=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)

    def write(self, path: str, content: bytes) -> None:
        """Put other content into a file. What Python compiled of the one before goes: it is known by second and size only."""
        file = self.folder / path
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        file.write_bytes(content)

    def mutate(self, mutant: Mutant) -> bytes:
        """Make the one edit; returns the content from before."""
        before = (self.folder / mutant.path).read_bytes()
        self.write(mutant.path, mutant.apply(before))
        return before

    def run(self, arguments: list[str], limit_s: float) -> Ran:
        """`python ARGUMENTS` in the copy, on the copy's modules. `StoppedError` if somebody called `stop`."""
        environment = os.environ | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        began = time.monotonic()
        self._running = process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
        code: int | None = None
        try:
            if self._is_over:
                raise StoppedError
            output, _ = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired as error:
            output = error.output or b""
        finally:
            self._end(process)
        if self._is_over:
            raise StoppedError
        return Ran(code, time.monotonic() - began, output.decode(errors="replace")[-KEPT_CHARS:])

    def stop(self) -> None:
        """From another thread: end what runs, and let nothing begin any more."""
        self._is_over = True
        if self._running:
            _kill(self._running)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        _kill(process)
        process.wait()
        assert process.stdout, "it was asked for"
        process.stdout.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
