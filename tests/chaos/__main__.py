"""`make chaos MINUTES=10 SEED=1`: eight real nodes, and whatever can happen to them, on a schedule drawn from a seed.

Everything for people goes to stderr: the schedule, what happens, a table. The last line on stdout is JSON. Exit code 1 where
something happened that must never happen, 2 where this machine does not let us.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from node.demo.process import NodeProcess
from tests.chaos.count import MOST_SHOWN, Verdict, judge
from tests.chaos.gauges import COLUMNS
from tests.chaos.rig import NUM_BLOCK_STAGES, NUM_NODES, Rig, Unable, rig, write_run
from tests.chaos.schedule import KINDS, Fault, plan
from tests.chaos.storm import Storm
from tests.tools.swarm import wait_for

CALM_SHARE = 0.1
MOST_CALM_S = 20.0
LAUNCH_LIMIT_S = 240.0
"""Eight processes import torch on what may be a busy machine."""
FOUND, CANNOT = 1, 2


def say(text: str = "") -> None:
    """For people."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave event logs and what the nodes said there")
    asked = parser.parse_args()
    seconds = 60 * asked.minutes
    faults = plan(asked.seed, seconds)
    say(f"seed {asked.seed}, {asked.minutes:g} minutes: {len(faults)} faults")
    for kind, story in KINDS.items():
        say(f"  {kind:10} {story}")
    for fault in faults:
        say(str(fault))
    try:
        with tempfile.TemporaryDirectory(prefix="regrow-chaos-") as folder, rig(Path(folder)) as made:
            try:
                verdict = ride_out(made, faults, seconds)
            finally:
                if asked.keep:
                    made.keep(asked.keep)
    except Unable as error:
        say(f"chaos: {error}")
        return CANNOT
    print(json.dumps(verdict.figures))
    return 0 if verdict.is_clean else FOUND


def ride_out(made: Rig, faults: tuple[Fault, ...], seconds: float) -> Verdict:
    """The whole of it, with its table."""
    launch(made)
    storm = Storm(made, say)
    calm = storm.calm(min(MOST_CALM_S, CALM_SHARE * seconds))
    rough = storm.rage(faults, seconds)
    storm.settle()
    verdict = judge(storm, rough / calm if calm else 0.0)
    tell(verdict, calm, rough)
    return verdict


def launch(made: Rig) -> list[NodeProcess]:
    """A node for each stage, and the rest where the run needs them."""
    first = made.start(write_run(made.folder), "--stage", "0", name="n0")
    wait_for("n0 is up", first.check_ready, LAUNCH_LIMIT_S, made.situation)
    invite = made.running(first).invite
    for number in range(1, NUM_NODES):
        made.join(invite, *(("--stage", str(number)) if number <= NUM_BLOCK_STAGES else ()), name=f"n{number}")
    wait_for("all are up", lambda: all(node.check_ready() for node in made.nodes), LAUNCH_LIMIT_S, made.situation)
    return made.nodes


def tell(verdict: Verdict, calm: float, rough: float) -> None:
    """The table."""
    figures = verdict.figures
    say(f"\nsteps per second: {calm:.2f} in the calm, {rough:.2f} in the storm")
    for name, value in figures.items():
        if name != "slopes":
            told = ", ".join(f"{key} {number}" for key, number in value.items()) if isinstance(value, dict) else value
            say(f"{name:22} {told}")
    say(f"\n{'node':8}" + "".join(f"{column:>22}" for column in COLUMNS))
    for name, slopes in figures["slopes"].items():
        say(f"{name:8}" + "".join(f"{slopes[column]:22.2f}" for column in COLUMNS))
    for name, found in verdict.findings.items():
        for sentence in found[:MOST_SHOWN]:
            say(f"{name}: {sentence}")


if __name__ == "__main__":
    sys.exit(main())
