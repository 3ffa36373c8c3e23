"""What is compared: a row for each policy. One that this version's manifests refuse is left out and told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from node.lab.derived import RATES
from node.lab.grid.plan import Rig, first_fault
from protocol.manifest import DataSection

PLACE = "/store"
"""Of saved stages: it only has to look like a path."""
NO_DATA = DataSection.model_validate({"train": [{"digest": "0" * 64, "num_bytes": 2, "num_tokens": 1}]})


@dataclass(frozen=True, slots=True)
class Row:
    """`recovery`: of the manifest. `rates`: at which it runs; `stage0`: more of the manifest in the second set, None where it
    has no part in that."""

    name: str
    recovery: dict[str, Any]
    rates: tuple[str, ...] = ("5", "10", "16")
    stage0: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    policy: str
    rate: str
    seed: int
    stage0: bool = False
    recovery: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"policy": self.policy, "rate": self.rate, "seed": self.seed, "stage0": self.stage0}


ROWS = (
    Row("none", {"policy": "none"}, rates=("0",)),
    Row("checkpoint_10", {"policy": "checkpoint", "checkpoint_every": 10, "checkpoint_store": PLACE}, stage0={}),
    Row("checkpoint_100", {"policy": "checkpoint", "checkpoint_every": 100, "checkpoint_store": PLACE}, stage0={}),
    Row("redundant", {"policy": "redundant"}),
    Row("copy", {"policy": "copy"}),
    Row("uniform", {"policy": "uniform"}),
    Row("random", {"policy": "random"}),
    Row("checkfree", {"policy": "checkfree"}),
    Row("checkfree_plus", {"policy": "checkfree_plus"}, rates=("0", "5", "10", "16"), stage0={"embedding_copies": 2}),
    Row("shadow_10", {"policy": "shadow", "shadow_every": 10}, stage0={}),
    Row("shadow_50", {"policy": "shadow", "shadow_every": 50}, stage0={}),
)
RATE_NAMES = ("0", *(rate for rate in RATES if rate != "33"))
STAGE0_RATE = "10"


def refused(rig: Rig, row: Row) -> str:
    """Why this version's manifests do not take the policy; '' where they do."""
    try:
        rig.manifest(rig.small, NO_DATA, 0, row.recovery)
    except ValidationError as error:
        return first_fault(error)
    return ""


def cells(rig: Rig, seeds: tuple[int, ...], rates: tuple[str, ...]) -> list[Cell]:
    """All runs of the policies that there are, seed after seed, so that an unfinished grid has whole seeds."""
    rows = [row for row in ROWS if not refused(rig, row)]
    out: list[Cell] = []
    for seed in seeds:
        out += [Cell(row.name, rate, seed, False, row.recovery) for rate in rates for row in rows if rate in row.rates]
        if STAGE0_RATE in rates:
            second = [row for row in rows if row.stage0 is not None]
            out += [Cell(row.name, STAGE0_RATE, seed, True, row.recovery | (row.stage0 or {})) for row in second]
    return out
