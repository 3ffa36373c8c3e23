"""What a lost stage becomes, by policy: the coefficients are those that `protocol.recipes` gives a live swarm.

Several policies may come to the same treatment (an outer stage has one neighbour, so `copy`, `uniform` and `checkfree` are one
there): it is gone through once, and counts for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from node.lab.setup import SHADOWS
from protocol.manifest import Manifest
from protocol.recipes import recipe, weights_of

Kind = Literal["none", "mix", "drawn", "own"]


@dataclass(frozen=True, slots=True)
class Treatment:
    """`none`: nothing is lost. `mix`: of other stages. `drawn`: from the seed. `own`: the stage's own weights, `age` steps old.
    Moments are zero, or (`averaged`) mixed too."""

    kind: Kind
    sources: tuple[tuple[int, float], ...] = ()
    """(stage, coefficient)"""
    age: int = 0
    moments: Literal["fresh", "averaged"] = "fresh"
    lr_factor: float = 1.0
    lr_decay_steps: int = 0
    """`recovery.lr_factor_decay_steps`."""
    warmup: int = 0
    """Updates over which the stage's learning rate rises to its full height."""
    residual: float = 1.0
    """Factor on what the stage's blocks add to the residual stream (o_proj, down_proj)."""

    @property
    def key(self) -> str:
        """Names it in the raw results."""
        return json.dumps(self.plain(), sort_keys=True)

    def plain(self) -> dict[str, Any]:
        """What differs from an ordinary treatment."""
        told, ordinary = asdict(self), asdict(Treatment("none"))
        return {key: value for key, value in told.items() if key == "kind" or value != ordinary[key]}


def treatment_of(plain: Mapping[str, Any]) -> Treatment:
    """The inverse of `Treatment.plain`."""
    sources = tuple((int(stage), float(share)) for stage, share in plain.get("sources", ()))
    return Treatment(**{**plain, "sources": sources})


NOTHING = Treatment("none")
MEASURED = ("copy", "uniform", "random", "checkfree", "checkfree_plus")
"""Policies that make a stage of what is left."""
SWAPPED = "checkfree_plus"
AT_WORST = " at worst"
"""Of a shadow whose copy is as old as it gets; by itself its name stands for the mean age."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table: a treatment for each stage. `swapped`: of a run that swaps stages."""

    name: str
    by_stage: Mapping[int, Treatment]
    swapped: bool = False


def policies(manifest: Manifest, squared_norms: Sequence[float], swapped: bool) -> list[Case]:
    """All that is measured by default, for a run after a step whose gradients had these squared norms."""
    stages = range(1, manifest.num_stages)
    if swapped:
        return [Case(SWAPPED, _made(manifest, SWAPPED, squared_norms), swapped=True)]
    found = [Case(policy, _made(manifest, policy, squared_norms)) for policy in MEASURED if policy != SWAPPED]
    for name, every in SHADOWS.items():
        found.append(Case(name, dict.fromkeys(stages, Treatment("own", age=every // 2))))
        found.append(Case(f"{name}{AT_WORST}", dict.fromkeys(stages, Treatment("own", age=every))))
    return found


def better(manifest: Manifest, squared_norms: Sequence[float]) -> list[Case]:
    """Changes to `checkfree` that cost nothing while nothing is lost, one at a time."""
    plain = _made(manifest, "checkfree", squared_norms)
    clipped = _made(manifest, "checkfree", squared_norms, weighting="gradient_norm_clipped")
    mean = _made(manifest, "checkfree", squared_norms, weighting="uniform")
    changes: dict[str, dict[str, Any]] = {
        "moments averaged": {"moments": "averaged"},
        "lr_factor 1.0": {"lr_factor": 1.0},
        "lr_factor 1.1, decays in 50": {"lr_decay_steps": 50},
        "lr_factor 1.5": {"lr_factor": 1.5},
        "lr_factor 1.5, decays in 50": {"lr_factor": 1.5, "lr_decay_steps": 50},
        "warm-up of 20": {"warmup": 20},
        "residual x 0.5": {"residual": 0.5},
        "residual x 0": {"residual": 0.0},
    }
    named = {"checkfree": plain, "weighting clipped": clipped, "weighting uniform": mean}
    named |= {name: {s: replace(t, **change) for s, t in plain.items()} for name, change in changes.items()}
    return [Case(name, by_stage) for name, by_stage in named.items()]


def _made(manifest: Manifest, policy: str, squared_norms: Sequence[float], **changes: str) -> dict[int, Treatment]:
    """By lost stage."""
    recovery = manifest.recovery.model_copy(update={"policy": policy, **changes})
    run = manifest.model_copy(update={"recovery": recovery})
    weights = weights_of(squared_norms, run.batch.tokens_per_step, run)
    stages, found = range(1, run.num_stages), {}
    for lost in stages:
        made = recipe(lost, [s for s in stages if s != lost], [""] * run.num_stages, weights, run)
        assert made.can_be_made, made.sentence
        sources = tuple((source.stage, source.coefficient) for source in made.sources)
        found[lost] = Treatment("drawn" if made.is_drawn else "mix", sources, lr_factor=recovery.lr_factor)
    return found
