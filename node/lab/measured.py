"""Lost steps per failure, what swapping costs, how long steps take under each policy: as the lab measured it, else the paper.

A file of results is the `results.json` of `regrow lab report` or the `forks.json` of `regrow lab forks`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.lab.derived import PAPER, RATES, REDUNDANT_FACTOR
from node.ports import UnusableError

PAPER_LOST = {"checkfree": 31.0, "checkfree_plus": 11.5}
"""arXiv 2506.15461, 500M model at 10 %: 16,000 and 14,500 steps where 10,000, and 12,500 with swapping, are enough without
failures, over 0.012 failures a step."""
PAPER_TAX = 0.25
"""Swapping takes 25 to 40 % more steps there: the lower end, as it is above."""
KNOWN = {"redundant": 0.0}
"""Exact by construction, as long as a stage and the one before it are not lost together."""
MIN_FACTOR = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """`lost`: policy -> rate ('' where the results do not tell it by rate) -> steps per failure. `tax`: share of steps that
    swapping takes more; `factors`: what a step takes under a policy, as a multiple of one under `none`."""

    source: str
    lost: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tax: float | None = None
    factors: Mapping[str, float] = field(default_factory=dict)

    def lost_steps(self, policy: str, per_stage: float) -> tuple[float, str] | None:
        """(steps, where from) at the rate that is nearest to a failure probability per stage and step; None: nobody knows."""
        found = self.lost.get(policy, {})
        if found:
            nearest = min(found, key=lambda rate: abs(math.log(RATES.get(rate, per_stage) / per_stage)) if per_stage else 0.0)
            return max(found[nearest], 0.0), self.source
        if policy in KNOWN:
            return KNOWN[policy], "exact"
        return (PAPER_LOST[policy], PAPER) if policy in PAPER_LOST else None

    def swap_tax(self) -> tuple[float, str]:
        """(share, where from)"""
        return (PAPER_TAX, PAPER) if self.tax is None else (max(self.tax, 0.0), self.source)

    def factor(self, policy: str) -> tuple[float, str]:
        """(multiple, where from)"""
        if policy in self.factors:
            return max(self.factors[policy], MIN_FACTOR), self.source
        return (REDUNDANT_FACTOR, PAPER) if policy == "redundant" else (1.0, "")


RESULTS = Path("docs/lab/results.json")


def known_results(given: Path | None) -> Measured:
    """Of a file, else of the one that a checkout has where the command is called, else nothing but the paper. Raises
    `UnusableError(2)` with one line."""
    path = given or (RESULTS if RESULTS.exists() else None)
    return read_results(path) if path else Measured(PAPER)


def read_results(path: Path) -> Measured:
    """Raises `UnusableError(2)` with one line."""
    try:
        data = json.loads(path.read_bytes())
        if "setups" in data:
            return _of_forks(data["setups"][0], path.name)
        return _of_grid(data["policies"], path.name)
    except OSError as error:
        raise UnusableError(2, f"--results {path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        why = "it is no results.json of `regrow lab report` and no forks.json of `regrow lab forks`"
        raise UnusableError(2, f"--results {path}: {why}") from None


def _of_forks(setup: Mapping[str, Any], source: str) -> Measured:
    lost = {name: {"": float(row["lost_steps_per_failure"]["mean"])} for name, row in setup["policies"].items()}
    return Measured(source, lost, float(setup["swap_tax"]["mean"]))


def _of_grid(policies: Mapping[str, Any], source: str) -> Measured:
    """Cells without a mean say nothing. How long steps take is read off at rate 0, or where the fewest failures are."""
    lost: dict[str, dict[str, float]] = {}
    factors: dict[str, float] = {}
    calm = _mean(policies.get("none", {}).get("0"), "step_s")
    for policy, cells in policies.items():
        means = {rate: mean for rate, cell in cells.items() if (mean := _mean(cell, "lost_steps_per_failure")) is not None}
        if means:
            lost[policy] = means
        quietest = min(cells, key=lambda rate: RATES.get(rate, 0.0))
        step_s = _mean(cells[quietest], "step_s")
        if calm and step_s and policy in ("redundant", "checkfree_plus"):
            factors[policy] = step_s / calm
    plain = _mean(policies.get("none", {}).get("0"), "steps_to_target")
    swapped = _mean(policies.get("checkfree_plus", {}).get("0"), "steps_to_target")
    return Measured(source, lost, swapped / plain - 1.0 if plain and swapped else None, factors)


def _mean(cell: Mapping[str, Any] | None, name: str) -> float | None:
    found = cell[name]["mean"] if cell else None
    return None if found is None else float(found)
