"""From lost steps per failure to hours of a run: derived, not measured.

A run of n useful steps is taken to fail at each step that it executes with probability q = 1 - (1 - p)^N, p being that of a
block stage and N their number. The step of a failure is run again (not under `redundant`). With L lost steps per failure a run
executes T = n + q T (L + 1) steps, so T = n / (1 - q (L + 1)): never, where a failure costs as much as there is until the next.
A rollback of everybody every k steps takes (1 - r^k) / (q r^k) steps for k useful ones, r = 1 - q (a run of k successes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

RATES = {"5": 0.0009, "10": 0.002, "16": 0.004, "33": 0.01}
"""Failures per hour, in per cent, as the paper has them -> failure probability of a block stage in a step (its 500M model)."""
FAILING_STAGES = 6
STEP_S = 91.3
"""Of the paper's rig; redundant computation takes 151.0 there."""
REDUNDANT_FACTOR = 151.0 / 91.3
"""Where nobody has measured it."""
PAPER = "paper"
RUN_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Run:
    """What the hours are told for."""

    steps: int = RUN_STEPS
    step_s: float = STEP_S
    failing_stages: int = FAILING_STAGES
    redundant_factor: float = REDUNDANT_FACTOR
    """Times as long as another step is one under `redundant`."""
    redundant_source: str = PAPER
    """Who says so."""


def failure_rate(per_stage: float, stages: int) -> float:
    """Of a step."""
    return -math.expm1(stages * math.log1p(-per_stage))


def executed_steps(steps: float, rate: float, lost: float) -> float:
    """Until `steps` useful ones are done, with so many lost per failure; inf: never."""
    left = 1.0 - rate * (lost + 1.0)
    return steps / left if left > 0 else math.inf


def rollback_steps(steps: float, rate: float, every: int) -> float:
    """Until `steps` useful ones are done, where everybody goes back to the last multiple of `every`."""
    if not rate:
        return steps
    stays = every * math.log1p(-rate)
    return steps / every * -math.expm1(stays) / (rate * math.exp(stays)) if stays > -700 else math.inf


def rollback_loss(every: int) -> float:
    """Lost steps per failure where failures are rare: the mean of 0 .. every - 1."""
    return (every - 1) / 2


def hours(run: Run, policy: str, rate: float, lost: float, tax: float = 0.0) -> float:
    """`tax`: share of steps that the policy costs without any failure."""
    useful, step_s = run.steps * (1.0 + tax), run.step_s
    if policy.startswith("checkpoint_"):
        return rollback_steps(useful, rate, int(policy.removeprefix("checkpoint_"))) * step_s / 3600
    if policy == "redundant":
        return useful * step_s * run.redundant_factor / 3600
    return executed_steps(useful, rate, lost) * step_s / 3600
