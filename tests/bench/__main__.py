"""`make bench`: a swarm of four processes against the best plain loop on the same cores, interleaved.

Everything for people goes to stderr; the last line on stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from tests.bench.rig import Measurement, make_manifest, run_plain, run_swarm

LOSS_TOLERANCE = 5e-3
"""Relative; activations and gradients cross the wire in bf16."""


def say(text: str = "") -> None:
    """For people."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=16)
    asked = parser.parse_args()
    runs: dict[str, list[Measurement]] = {"plain, 1 thread": [], "plain, 2 threads": [], "swarm": []}
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as name:
        folder = Path(name)
        manifest = make_manifest(folder, asked.steps, asked.microbatches)
        for index in range(asked.rounds):
            runs["plain, 2 threads"].append(run_plain(manifest, folder, 2))
            runs["swarm"].append(run_swarm(manifest, folder / f"swarm{index}"))
            runs["plain, 1 thread"].append(run_plain(manifest, folder, 1))
            say(
                f"round {index + 1}: "
                + ", ".join(f"{k} {_speed(v[-1], manifest.batch.tokens_per_step):.0f}" for k, v in runs.items())
            )
    return report(runs, manifest.batch.tokens_per_step)


def _speed(run: Measurement, tokens: int) -> float:
    return tokens / statistics.median(run.step_s)


def report(runs: dict[str, list[Measurement]], tokens: int) -> int:
    """Tables on stderr, figures on stdout; 1 if the losses differ."""
    speeds = {name: [_speed(run, tokens) for run in found] for name, found in runs.items()}
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    best = max((name for name in medians if name != "swarm"), key=lambda name: medians[name])
    ratios = [s / p for s, p in zip(speeds["swarm"], speeds[best], strict=True)]
    expected, actual = runs[best][0].losses[-1], runs["swarm"][0].losses[-1]
    say("tokens/s             min   median      max")
    for name, values in speeds.items():
        say(f"{name:18}{min(values):8.0f} {medians[name]:8.0f} {max(values):8.0f}")
    say(f"ratio swarm / {best}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    say(f"loss after {len(runs['swarm'][0].losses)} steps: plain {expected:.5f}, swarm {actual:.5f}")
    _where_it_goes(runs["swarm"][-1])
    print(
        json.dumps(
            {
                "plain_tokens_per_s": round(medians[best], 1),
                "swarm_tokens_per_s": round(medians["swarm"], 1),
                "ratio": round(statistics.median(ratios), 4),
                "ratio_min": round(min(ratios), 4),
                "ratio_max": round(max(ratios), 4),
                "plain_loss": expected,
                "swarm_loss": actual,
            }
        )
    )
    if abs(actual - expected) > LOSS_TOLERANCE * expected:
        say(f"bench: the losses differ by more than {LOSS_TOLERANCE:.1%}: the swarm does not compute the same")
        return 1
    return 0


def _where_it_goes(run: Measurement) -> None:
    """Of each process's time in the last swarm run. Computing is measured from outside, so it has in it what the operating
    system gave to the other processes: four share two cores."""
    say("\nwhere the swarm's time goes, % of elapsed (2 cores = 200 %)")
    say("stage   compute   apply  reduce  commit  nothing to do    CPU used   sent MB")
    total_cpu = 0.0
    for stage, row in enumerate(run.rows):
        share = {key: 100 * value / row["elapsed"] for key, value in row.items() if key not in ("elapsed", "sent_mb")}
        idle = max(0.0, 100 - share["compute"] - share["apply"])
        total_cpu += share["cpu"]
        say(
            f"{stage:5}{share['compute']:10.1f}{share['apply']:8.1f}{share['reduce']:8.1f}{share['commit']:8.1f}"
            f"{idle:15.1f}{share['cpu']:12.1f}{row['sent_mb']:10.1f}"
        )
    say(f"all processes together: {total_cpu:.0f} % of 200 % CPU\n")


if __name__ == "__main__":
    sys.exit(main())
