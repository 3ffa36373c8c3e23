"""`python -m node.sim --seed N`: live through one simulated swarm and tell what happened."""

from __future__ import annotations

import argparse
import sys

from node.sim.churn import Churn
from node.sim.faults import COORDINATOR_PHASES, SEAT_PHASES
from node.sim.leaving import Leaving
from node.sim.parting import Parting
from node.sim.regrowth import Regrowth
from node.sim.scenario import make_scenario, make_takeover
from node.sim.story import story_of, told
from node.sim.trial import Trial

Life = Churn | Parting | Regrowth | Leaving


def main() -> int:
    """0 if everything held; else 1, after the story up to where it broke."""
    parser = argparse.ArgumentParser(prog="python -m node.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="which swarm, which fault")
    parser.add_argument("--limit", type=int, default=400, help="most lines of the story (the last ones are kept)")
    parser.add_argument("--takeover", choices=COORDINATOR_PHASES + SEAT_PHASES, help="the coordinator goes before it does this")
    parser.add_argument("--churn", action="store_true", help="people walk in and out all the time")
    parser.add_argument("--parting", action="store_true", help="the swarm is parted in two for a while")
    parser.add_argument("--regrow", action="store_true", help="stages lose their only holder")
    parser.add_argument("--leaving", action="store_true", help="only holders of stages go in order")
    options = parser.parse_args()
    lives: dict[str, type[Life]] = {"churn": Churn, "parting": Parting, "regrow": Regrowth, "leaving": Leaving}
    for name, life in lives.items():
        if getattr(options, name):
            return _live(life(options.seed), options.limit)
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


def _live(life: Life, limit: int) -> int:
    broken: AssertionError | None = None
    try:
        life.run()
    except AssertionError as error:
        broken = error
    sys.stdout.write("\n".join(story_of(life.world, life.watch, limit)) + "\n")
    sys.stdout.write(f"BROKEN: {broken}\n" if broken else f"held: {dict(life.counts)}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
