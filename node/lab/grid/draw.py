"""The rig, the target and the schedules, written once, before the first run:

python -m node.lab.grid.draw > node/lab/grid/plan.json
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from node.lab.grid.plan import Link, Plan, Rig, Shape, schedules

SEEDS = (0, 1, 2)
RATES = ("5", "10", "16")
MAX_STEPS = 4000
TARGET_LOSS = 3.75
GIB = 1024.0
PLACES = ("Australia", "Belgium", "Canada", "Germany", "Iowa", "NL", "London")
MEASURED = {
    "Australia-Belgium": (129, 0.00983),
    "Australia-Canada": (98, 0.01318),
    "Australia-Germany": (125.5, 0.01046),
    "Australia-Iowa": (84, 0.01123),
    "Australia-NL": (128, 0.00952),
    "Australia-London": (132, 0.0094),
    "Belgium-Canada": (41, 0.0199),
    "Belgium-Germany": (4, 0.2425),
    "Belgium-Iowa": (49, 0.02832),
    "Belgium-NL": (3, 0.2425),
    "Belgium-London": (3.5, 0.2425),
    "Canada-Germany": (44, 0.03186),
    "Canada-Iowa": (14, 0.07568),
    "Canada-NL": (42, 0.02502),
    "Canada-London": (38.5, 0.03638),
    "Germany-Iowa": (53.5, 0.02661),
    "Germany-NL": (3.5, 0.2425),
    "Germany-London": (6.6, 0.18875),
    "Iowa-NL": (51, 0.0274),
    "Iowa-London": (48.1, 0.02185),
    "NL-London": (4.8, 0.02368),
}
"""Of the paper's throughput rig: latency in ms, bandwidth in GiB/s."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a smaller plan changes."""

    small: Shape
    large: Shape
    seeds: tuple[int, ...] = SEEDS
    rates: tuple[str, ...] = RATES
    max_steps: int = MAX_STEPS
    target_loss: float = TARGET_LOSS
    evaluate_every: int = 25
    evaluate_microbatches: int = 8
    failure_factor: float = 1.0
    """Times as many failures as the paper has."""


LARGE = Shape(hidden=1024, heads=16, layers_per_stage=4, vocab=32000, context_tokens=1024, samples=84)
"""The paper's 500M model, and a third of its batch: it runs three pipelines side by side."""
FULL = Sizes(Shape(hidden=64, heads=4, layers_per_stage=1, vocab=2048, context_tokens=64, samples=16), LARGE)
QUICK = Sizes(
    Shape(hidden=32, heads=2, layers_per_stage=1, vocab=2048, context_tokens=16, samples=4),
    LARGE,
    seeds=(0,),
    rates=("16",),
    max_steps=40,
    target_loss=6.7,
    evaluate_every=10,
    evaluate_microbatches=2,
    failure_factor=10.0,
)


def plan_of(sizes: Sizes) -> Plan:
    """Seconds of a sample and layer, places and links are those of the paper's rig."""
    rig = Rig(
        small=sizes.small,
        large=sizes.large,
        num_block_stages=len(PLACES) - 1,
        num_microbatches=4,
        learning_rate=3e-3,
        places=PLACES,
        links={pair: Link(latency_s=ms / 1000, mib_s=gib * GIB) for pair, (ms, gib) in MEASURED.items()},
        within=Link(latency_s=0.001, mib_s=0.125 * GIB),
        store="Iowa",
        layer_s=0.055,
        head_layers=2.0,
        heartbeat_s=5.0,
        replacement_s=20.0,
        step_s=90.0,
        evaluate_every=sizes.evaluate_every,
        evaluate_microbatches=sizes.evaluate_microbatches,
    )
    drawn = schedules(sizes.rates, sizes.seeds, rig.num_block_stages, sizes.max_steps, sizes.failure_factor)
    return Plan(rig=rig, target_loss=sizes.target_loss, max_steps=sizes.max_steps, schedules=drawn)


def main() -> None:
    """Print the plan."""
    sys.stdout.write(plan_of(FULL).model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
