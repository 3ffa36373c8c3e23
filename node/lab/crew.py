"""Processes that do jobs side by side, each on one thread. Whatever happens here, none of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from node.lab.setup import Setup
from node.ports import UnusableError
from protocol.manifest import DataSection

Plain = dict[str, Any]
LINE_BYTES = 1 << 24
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""For a worker, which is one of as many as there are processors: threads of libraries would only wait for one another."""
PROGRESS = "progress"
"""A line of a worker with this key is no answer yet."""


@dataclass(frozen=True, slots=True)
class Boss:
    """`on_done` gets each answer as it comes, `on_progress` what is told of a job that goes on. No job is begun once
    `go_on` says no."""

    on_done: Callable[[Plain], None]
    on_progress: Callable[[Plain], None] = lambda _: None
    go_on: Callable[[], bool] = lambda: True


def do_all(jobs: Sequence[Plain], num_workers: int, boss: Boss) -> None:
    """Jobs are begun in their order. `UnusableError` where one cannot be done."""
    if jobs:
        asyncio.run(_do_all(jobs, num_workers, boss))


async def _do_all(jobs: Sequence[Plain], num_workers: int, boss: Boss) -> None:
    left = takewhile(lambda _: boss.go_on(), jobs)
    async with asyncio.TaskGroup() as group:
        for number in range(min(num_workers, len(jobs))):
            group.create_task(_work(left, boss), name=f"lab worker {number}")


async def _work(left: Iterator[Plain], boss: Boss) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "node.lab.worker",
        stdin=pipe,
        stdout=pipe,
        limit=LINE_BYTES,
        env=os.environ | ONE_THREAD,
    )
    assert process.stdin, "it was asked for"
    try:
        for job in left:
            with contextlib.suppress(ConnectionError):  # It is gone: then nothing is read below.
                process.stdin.write(json.dumps(job).encode() + b"\n")
                await process.stdin.drain()
            while PROGRESS in (answer := await _answer(process)):
                boss.on_progress(answer)
            if "unusable" in answer:
                raise UnusableError(int(answer["code"]), str(answer["unusable"]))
            boss.on_done(answer)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _answer(process: asyncio.subprocess.Process) -> Plain:
    assert process.stdout, "it was asked for"
    line = await process.stdout.readline()
    if not line:
        raise UnusableError(1, f"a worker of the lab ended with {await process.wait()}; its last words are above")
    answer: Plain = json.loads(line)
    return answer


def jobs_of(folder: Path, setup: Setup, data: DataSection, what: str, names: Sequence[Plain]) -> list[Plain]:
    """`names` say which run, and which fork of it."""
    common = {"what": what, "folder": str(folder), "setup": setup.plain(), "data": data.model_dump(mode="json")}
    return [common | {"name": name} for name in names]
