"""`python -m node.sim --seed N`: live through one simulated swarm and tell what happened."""

from __future__ import annotations

import argparse
import sys

from node.sim.faults import COORDINATOR_PHASES, SEAT_PHASES
from node.sim.scenario import make_scenario, make_takeover
from node.sim.story import told
from node.sim.trial import Trial


def main() -> int:
    """0 if everything held; else 1, after the story up to where it broke."""
    parser = argparse.ArgumentParser(prog="python -m node.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="which swarm, which fault")
    parser.add_argument("--limit", type=int, default=400, help="most lines of the story (the last ones are kept)")
    parser.add_argument("--takeover", choices=COORDINATOR_PHASES + SEAT_PHASES, help="the coordinator goes before it does this")
    options = parser.parse_args()
    scenario = make_takeover(options.seed, options.takeover) if options.takeover else make_scenario(options.seed)
    trial = Trial(scenario)
    broken: AssertionError | None = None
    verdict = ""
    try:
        verdict = trial.run().verdict
    except AssertionError as error:
        broken = error
    sys.stdout.write("\n".join(told(trial, options.limit)) + "\n")
    sys.stdout.write(f"BROKEN: {broken}\n" if broken else f"held: {verdict}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
