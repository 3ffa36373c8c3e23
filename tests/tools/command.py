"""The `regrow` command as a process of its own, run to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def refused(code: int, *args: object, env: Mapping[str, str] | None = None, limit_s: float = 60) -> str:
    """The one line of a command that ends with this exit code and prints nothing on stdout."""
    ended = regrow(*args, env=env, limit_s=limit_s)
    assert ended.code == code, f"exit code {ended.code}, not {code}: {ended.err}"
    assert ended.out == ""
    assert ended.line.startswith("regrow: "), ended.line
    return ended.line
