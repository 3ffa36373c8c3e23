"""`python -m node.sim.soak --seeds N --from K`: any number of mixed seeds, in as many processes as there are processors.

Ends in one JSON line: `seeds`, `failures`, `commits`, `faults_fired` {kind: n}, `recoveries` {rung: n}, `goodput` (over the
seeds in which no state was lost for good; `node.sim.mixed` defines it), `verdicts` {verdict: n}. What broke is on stderr as
soon as it is known, with the command that replays it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from node.sim.lives import told_of
from node.sim.machine import BrokenError
from node.sim.mixed import Mixed
from node.sim.mixture import Options

LINE_BYTES = 1 << 20


def live(seed: int) -> dict[str, Any]:
    """What came of one seed; with `broken` and `replay` if something did that must not."""
    options = Options(seed)
    try:
        return told_of(Mixed(options).run())
    except BrokenError as error:
        return {"seed": seed, "broken": str(error), "replay": options.replay}


@dataclass(slots=True)
class Tally:
    """The sum over seeds."""

    seeds: int = 0
    failures: int = 0
    commits: int = 0
    faults_fired: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    possible: float = 0.0

    def add(self, lived: dict[str, Any]) -> None:
        """One more seed, as `live` tells it."""
        self.seeds += 1
        if "broken" in lived:
            self.failures += 1
            return
        self.commits += lived["commits"]
        self.faults_fired.update(lived["fired"])
        self.recoveries.update(lived["recoveries"])
        self.verdicts[lived["verdict"]] += 1
        if lived["verdict"] == "went on":
            self.steps += lived["steps"]
            self.possible += lived["possible"]

    @property
    def goodput(self) -> float:
        """See the module; 0 if there was no such seed."""
        return self.steps / self.possible if self.possible else 0.0

    def told(self) -> dict[str, Any]:
        """The last line."""
        names = ("seeds", "failures", "commits")
        counts = ("faults_fired", "recoveries", "verdicts")
        plain = {name: getattr(self, name) for name in names}
        return (
            plain | {name: dict(sorted(getattr(self, name).items())) for name in counts} | {"goodput": round(self.goodput, 4)}
        )


async def soak(first: int, count: int, workers: int, tell: Callable[[str], None]) -> Tally:
    """Seeds from `first` on, dealt out to so many processes. They end with this one: nobody reads what they say."""
    tally = Tally()
    async with asyncio.TaskGroup() as group:
        for worker in range(workers):
            mine = range(first + worker, first + count, workers)
            group.create_task(_work(mine, tally, tell), name=f"soak worker {worker}")
    return tally


async def _work(seeds: range, tally: Tally, tell: Callable[[str], None]) -> None:
    words = ("-m", "node.sim.soak", "--deal", str(seeds.start), str(seeds.stop), str(seeds.step))
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES)
    assert process.stdout, "it was asked for"
    try:
        async for line in process.stdout:
            lived = json.loads(line)
            tally.add(lived)
            if "broken" in lived:
                tell(f"seed {lived['seed']}: {lived['broken'][:400]}\n  replay: {lived['replay']}")
        code = await process.wait()
        if code:
            raise RuntimeError(f"a worker of the soak ended with {code}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def main() -> int:
    """0 if all seeds held."""
    parser = argparse.ArgumentParser(
        prog="python -m node.sim.soak", description="Many simulated swarms; the last line is JSON."
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first one")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--deal", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.deal:
        for seed in range(*options.deal):
            _say(json.dumps(live(seed)), sys.stdout)
        return 0
    if min(options.seeds, options.workers) < 1 or options.first < 0:
        parser.error("--seeds and --workers are 1 or more, --from is 0 or more")
    tally = asyncio.run(soak(options.first, options.seeds, options.workers, lambda line: _say(line, sys.stderr)))
    _say(json.dumps(tally.told()), sys.stdout)
    return 1 if tally.failures else 0


def _say(line: str, stream: TextIO) -> None:
    stream.write(line + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
