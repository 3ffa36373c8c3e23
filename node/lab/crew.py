"""Processes that do jobs side by side, each on one thread. Whatever happens here, none of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node.lab.setup import Setup
from node.ports import UnusableError
from protocol.manifest import DataSection

Plain = dict[str, Any]
LINE_BYTES = 1 << 24


def do_all(jobs: Sequence[Plain], num_workers: int, on_done: Callable[[Plain], None]) -> None:
    """`on_done` gets each answer as it comes. Jobs are begun in their order. `UnusableError` where one cannot be done."""
    if jobs:
        asyncio.run(_do_all(jobs, num_workers, on_done))


async def _do_all(jobs: Sequence[Plain], num_workers: int, on_done: Callable[[Plain], None]) -> None:
    left = iter(jobs)
    async with asyncio.TaskGroup() as group:
        for number in range(min(num_workers, len(jobs))):
            group.create_task(_work(left, on_done), name=f"lab worker {number}")


async def _work(left: Any, on_done: Callable[[Plain], None]) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "node.lab.worker",
        stdin=pipe,
        stdout=pipe,
        limit=LINE_BYTES,
    )
    assert process.stdin, "it was asked for"
    assert process.stdout, "it was asked for"
    try:
        for job in left:
            with contextlib.suppress(ConnectionError):  # It is gone: then nothing is read below.
                process.stdin.write(json.dumps(job).encode() + b"\n")
                await process.stdin.drain()
            line = await process.stdout.readline()
            if not line:
                raise UnusableError(1, f"a worker of the lab ended with {await process.wait()}; its last words are above")
            answer = json.loads(line)
            if "unusable" in answer:
                raise UnusableError(int(answer["code"]), str(answer["unusable"]))
            on_done(answer)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def jobs_of(folder: Path, setup: Setup, data: DataSection, what: str, names: Sequence[Plain]) -> list[Plain]:
    """`names` say which run, and which fork of it."""
    common = {"what": what, "folder": str(folder), "setup": setup.plain(), "data": data.model_dump(mode="json")}
    return [common | {"name": name} for name in names]
