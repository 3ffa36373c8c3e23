"""`python -m node.sim --seed N`: live through one simulated swarm and tell what happened."""

from __future__ import annotations

import argparse
import sys

from node.sim.scenario import make_scenario
from node.sim.story import told
from node.sim.trial import Trial


def main() -> int:
    """0 if everything held; else 1, after the story up to where it broke."""
    parser = argparse.ArgumentParser(prog="python -m node.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="which swarm, which fault")
    parser.add_argument("--limit", type=int, default=400, help="most lines of the story (the last ones are kept)")
    options = parser.parse_args()
    trial = Trial(make_scenario(options.seed))
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
