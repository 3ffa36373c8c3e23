"""`regrow advise`: what a run is expected to take under each recovery policy, what each costs, and why. It measures nothing.

With p the probability that a block stage's holder is lost in a step, and N stages, a step fails with q = 1 - (1 - p)^N. A
failure costs the step (it is run again), the policy's lost steps L, and a wait of w seconds: until the loss is declared, until
a node is there, and the transfer. So T = n (1 + tax) / (1 - q (L + 1)) steps are executed, and the hours are
(T s f + q T w) / 3600, s the seconds of a step and f the policy's factor on them. Rollbacks: `node.lab.derived`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from node.lab.derived import executed_steps, failure_rate, rollback_steps
from node.lab.measured import Measured
from node.lab.report import table

F32, BF16, STATE, VECTORS = 4, 2, 12, 3
"""Bytes per parameter: of weights, half of that, of weights with both moments."""
DEFAULT_POLICY = "checkfree_plus"
SWAP_MIN_STAGES = 4
NAMES = (
    *("checkfree_plus", "checkfree", "copy", "uniform", "random", "shadow_10", "shadow_50"),
    *("checkpoint_10", "checkpoint_100", "redundant"),
)
MIB = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Of a run whose stages have one holder each. `failures_per_hour`: of one node, as a share; `declare_s`: silence until a
    loss is declared, and the grace; `node_s`: until a node is there for the stage; `shadow_share`: of the link, for shadows."""

    stage_bytes: float
    link_bytes_s: float
    step_s: float
    failures_per_hour: float
    stages: int = 6
    steps: int = 10_000
    declare_s: float = 33.0
    node_s: float = 5.0
    shadow_share: float = 0.1

    @property
    def per_stage(self) -> float:
        """Probability that a block stage's holder is lost in a step."""
        return -math.expm1(self.step_s / 3600 * math.log1p(-self.failures_per_hour))

    @property
    def per_step(self) -> float:
        """Probability that any is."""
        return failure_rate(self.per_stage, self.stages)


@dataclass(frozen=True, slots=True)
class Advice:
    """Of one policy. `hours` is None where nobody knows what a failure costs, inf where the run gets nowhere."""

    policy: str
    hours: float | None
    wire_bytes: float
    """More per node and step, on the average."""
    memory_bytes: float
    """More per node."""
    why: str
    sources: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "policy": self.policy,
            "hours": self.hours if self.hours is not None and math.isfinite(self.hours) else None,
            "never": self.hours == math.inf,
            "more_bytes_per_node_and_step": round(self.wire_bytes),
            "more_memory_bytes_per_node": round(self.memory_bytes),
            "why": self.why,
            "sources": list(self.sources),
        }


def advise(of: Circumstances, measured: Measured) -> list[Advice]:
    """Fastest first; those that nobody knows anything of last."""
    names = [name for name in NAMES if name != "checkfree_plus" or of.stages >= SWAP_MIN_STAGES]
    return sorted((_advice(of, measured, name) for name in names), key=lambda a: math.inf if a.hours is None else a.hours)


def _advice(of: Circumstances, measured: Measured, policy: str) -> Advice:
    if policy.startswith("checkpoint_"):
        return _checkpoint(of, policy, int(policy.removeprefix("checkpoint_")))
    found = measured.lost_steps(policy, of.per_stage)
    wire, memory, notes = _price(of, policy)
    if found is None:
        return Advice(
            policy, None, wire, memory, "; ".join(["nobody has measured what a loss costs: regrow lab forks", *notes])
        )
    lost, source = found
    tax, tax_source = measured.swap_tax() if policy == "checkfree_plus" else (0.0, "")
    factor, factor_source = measured.factor(policy)
    executed = executed_steps(of.steps * (1.0 + tax), of.per_step, lost)
    wait = _wait_s(of, policy)
    hours = executed * (of.step_s * factor + of.per_step * wait) / 3600
    told = (
        [f"a loss costs {lost:.1f} steps ({source}) and a wait of {wait:.0f} s"]
        if lost
        else [f"nothing is lost but {wait:.0f} s"]
    )
    told += [f"swapping takes {100 * tax:.0f} % more steps ({tax_source})"] if tax else []
    told += [f"a step takes {factor:.2f} times as long ({factor_source})"] if factor > 1.0 else []
    sources = tuple(dict.fromkeys(x for x in (source, tax_source, factor_source) if x))
    return Advice(policy, hours, wire, memory, "; ".join([*told, *notes]), sources)


def _wait_s(of: Circumstances, policy: str) -> float:
    """From a loss to the next step: the stage's weights come over the link. A promotion waits for nobody."""
    if policy == "redundant":
        return of.declare_s
    weights = of.stage_bytes / of.link_bytes_s
    return of.declare_s + of.node_s + {"random": 0.0}.get(policy, weights)


def _price(of: Circumstances, policy: str) -> tuple[float, float, list[str]]:
    """(bytes per node and step, bytes of memory, what else is to be said)"""
    if policy.startswith("shadow_"):
        half = of.stage_bytes * BF16 / F32
        every = int(policy.removeprefix("shadow_"))
        needed_s, given_s = half / of.link_bytes_s, every * of.step_s * of.shadow_share
        fits = math.ceil(needed_s / of.step_s / of.shadow_share)
        late = f"at {of.shadow_share:.0%} of the link a copy takes {fits} steps: use no less"
        return half / every, half, [late] if needed_s > given_s else []
    if policy == "redundant":
        return (
            of.stage_bytes * BF16 / F32,
            of.stage_bytes * (VECTORS + 2),
            ["a node holds a second stage and runs its forward passes"],
        )
    return 0.0, 0.0, []


def _checkpoint(of: Circumstances, policy: str, every: int) -> Advice:
    """Everybody goes back. Where an upload takes longer than `every` steps the next is left out, so they are further apart."""
    state = of.stage_bytes * VECTORS
    fits = math.ceil(state / of.link_bytes_s / of.step_s)
    apart = every * math.ceil(fits / every)
    wait = of.declare_s + of.node_s + state / of.link_bytes_s
    executed = rollback_steps(of.steps, of.per_step, apart)
    hours = executed * (of.step_s + of.per_step * wait) / 3600
    told = f"a loss costs {(apart - 1) / 2:.1f} steps of all nodes and a wait of {wait:.0f} s"
    told += f"; an upload takes {fits} steps, so only every {apart}th is saved" if apart > every else ""
    return Advice(policy, hours, state / apart, state, told, ("arithmetic",))


# ---- what is told ----


def told(of: Circumstances, found: Sequence[Advice]) -> str:
    """For people."""
    one_in = f"every {1 / of.per_step:,.0f} steps ({of.step_s / of.per_step / 3600:,.1f} h)" if of.per_step else "never"
    unknown = [advice.policy for advice in found if advice.hours is None]
    ideal = of.steps * of.step_s / 3600
    lines = [
        f"One of {of.stages} block stages is lost {one_in}: {100 * of.failures_per_hour:g} % of nodes an hour,"
        f" {of.step_s:g} s a step.",
        f"{of.steps:,} steps without any loss: {ideal:,.0f} h. What a loss costs: see in brackets where that is from.",
        "",
        *table(
            ["policy", "hours", "more MiB per node and step", "more MiB of memory", "why"], [_row(advice) for advice in found]
        ),
        "",
        verdict(found),
        *([f"Not weighed, as nothing is known of what a loss costs: {', '.join(unknown)}."] if unknown else []),
        "Stage 0 is not lost here: checkpoint, shadow and redundant cover it, the others with recovery.embedding_copies.",
    ]
    return "\n".join(lines)


def _row(a: Advice) -> list[str]:
    hours = "unknown" if a.hours is None else f"{a.hours:,.0f}" if math.isfinite(a.hours) else "never"
    return [a.policy, hours, f"{a.wire_bytes / MIB:,.1f}", f"{a.memory_bytes / MIB:,.0f}", a.why]


def verdict(found: Sequence[Advice]) -> str:
    """One sentence: whether another policy than the default one is better, and by how much."""
    known = [advice for advice in found if advice.hours is not None and math.isfinite(advice.hours)]
    if not known:
        return "Under no policy that is known does this run get to its end: fewer failures, or shorter steps."
    best = known[0]
    default = next((advice for advice in known if advice.policy == DEFAULT_POLICY), None)
    if best is default:
        return f"Advice: {DEFAULT_POLICY}, the default."
    if default is None or default.hours is None or best.hours is None:
        needs = f"does not get to the end here, or needs {SWAP_MIN_STAGES} stages"
        return f"Advice: {best.policy}; {DEFAULT_POLICY}, the default, {needs}."
    less = 1.0 - best.hours / default.hours
    return f"Advice: {best.policy}, {less:.0%} fewer hours than {DEFAULT_POLICY}, the default."
