"""What the grid says of what the paper found, and of what was hoped: confirmed, refuted, or not measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from node.lab.grid.results import Results

PAPER_HOURS = {
    "checkpoint_100": {"5": 558.0, "10": 622.0, "16": 634.0},
    "redundant": {"5": 420.0, "10": 420.0, "16": 420.0},
    "checkfree": {"5": 368.0, "10": 406.0, "16": 563.0},
    "checkfree_plus": {"5": 355.0, "10": 368.0, "16": 461.0},
}
"""arXiv 2506.15461, 500M model, hours until validation loss 2.85."""


@dataclass(frozen=True, slots=True)
class Hope:
    """`policy` takes at most `factor` times the hours of `than` at that rate."""

    policy: str
    rate: str
    than: str
    than_rate: str
    factor: float


HOPES = (
    Hope("checkfree_plus", "10", "redundant", "10", 0.88),
    Hope("checkfree_plus", "10", "checkpoint_100", "10", 1 / 1.4),
    Hope("shadow_10", "10", "none", "0", 1.05),
    Hope("shadow_10", "16", "none", "0", 1.08),
)


def hours(results: Results, policy: str, rate: str) -> float | None:
    """To the target."""
    cell = results.cells.get((policy, rate))
    return cell.mean("hours_to_target") if cell else None


def verdict(results: Results, hope: Hope) -> str:
    """In words, with the figures."""
    there = f"{hope.policy} at {hope.rate} %"
    wanted = f"{there} takes at most {hope.factor:.2f} times the hours of {hope.than} at {hope.than_rate} %"
    mine, other = hours(results, hope.policy, hope.rate), hours(results, hope.than, hope.than_rate)
    cells = (results.cells.get((hope.policy, hope.rate)), results.cells.get((hope.than, hope.than_rate)))
    if cells[0] is None or cells[1] is None:
        return f"{wanted}: not measured"
    if mine is None or other is None:
        reached = " and ".join(
            f"{c.figures['hours_to_target'].reached} of {len(c.runs)} runs of {c.policy}" for c in cells if c
        )
        return f"{wanted}: no verdict, as only {reached} reached the target"
    return f"{wanted}: {'confirmed' if mine <= hope.factor * other else 'refuted'} ({mine / other:.2f})"


def order_here(results: Results, rate: str) -> list[str]:
    """Policies of the paper by hours, fastest first; those whose runs did not all reach the target last."""
    known = [policy for policy in PAPER_HOURS if (policy, rate) in results.cells]
    return sorted(known, key=lambda policy: found if (found := hours(results, policy, rate)) is not None else float("inf"))


def order_there(rate: str) -> list[str]:
    """The same in the paper."""
    return sorted(PAPER_HOURS, key=lambda policy: PAPER_HOURS[policy][rate])


def comparisons(results: Results) -> Iterable[str]:
    """Does the paper's order come out here too? A sentence for each rate."""
    for rate in ("5", "10", "16"):
        here, there = order_here(results, rate), order_there(rate)
        if len(here) < len(there):
            missing = ", ".join(policy for policy in there if policy not in here)
            yield f"At {rate} %: not all of the paper's policies are measured ({missing} missing)."
            continue
        stuck = [policy for policy in here if hours(results, policy, rate) is None]
        told = " < ".join(policy for policy in here if policy not in stuck)
        told += f"; {', '.join(stuck)} did not reach the target in every run" if stuck else ""
        if len(stuck) > 1:
            yield f"At {rate} % no order comes out: {told}. The paper: {' < '.join(there)}."
        elif here == there:
            yield f"At {rate} % the paper's order by hours comes out here too: {told}."
        else:
            yield f"At {rate} % the paper's order does not come out here: {told}. The paper: {' < '.join(there)}."
