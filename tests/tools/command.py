"""The `regrow` command as a process of its own, run to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

# What `start` imports: a fork has it already.
import node.compose
import node.data.prepare
import node.manifest_file  # noqa: F401
from node.cli.main import main

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line on stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"{len(lines)} lines on stderr:\n{self.err}"
        return lines[0]

    @property
    def verdict(self) -> str:
        """The only line on stderr that says why it ended; notes may stand before it."""
        [line] = [line for line in self.err.splitlines() if line.startswith("regrow: ")]
        return line


def regrow(*args: object, env: Mapping[str, str] | None = None, limit_s: float = 60) -> Ended:
    """`regrow ARGS`, started in the repository's root so that the code under test is this tree's."""
    command = [sys.executable, "-m", "node", *map(str, args)]
    surroundings = {**os.environ, **(env or {})}
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=surroundings,
        check=False,
        capture_output=True,
        text=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def forked(*args: object, env: Mapping[str, str] | None = None, limit_s: float = 60) -> Ended:
    """The same in a fork of this process, which has imported most of it: for the many ways to be wrong. Not for what gets as
    far as a gRPC server: a fork of a process that has used gRPC hangs there."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            _be_the_command([str(arg) for arg in args], env or {}, out.fileno(), err.fileno())
        code = _wait(pid, limit_s)
        out.seek(0)
        err.seek(0)
        ended = Ended(code, out.read(), err.read())
    assert "Traceback" not in ended.err, ended.err
    return ended


def _be_the_command(args: list[str], env: Mapping[str, str], out: int, err: int) -> NoReturn:
    code = 70
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w")
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.environ.update(env)
        code = main(args)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        os._exit(code)


def _wait(pid: int, limit_s: float) -> int:
    deadline = time.monotonic() + limit_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"the command did not end within {limit_s:.0f} s")
        time.sleep(0.005)


def refused(code: int, *args: object, env: Mapping[str, str] | None = None, limit_s: float = 60) -> str:
    """The one line of a command that ends with this exit code and prints nothing on stdout."""
    ended = forked(*args, env=env, limit_s=limit_s)
    assert ended.code == code, f"exit code {ended.code}, not {code}: {ended.err}"
    assert ended.out == ""
    assert ended.line.startswith("regrow: "), ended.line
    return ended.line
