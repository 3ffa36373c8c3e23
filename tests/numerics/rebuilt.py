"""What a lost stage must become, computed by other means: weights of all stages before the last committed step, that step's
microbatches, and the neighbours' weights after it. Gradients come from a plain backward pass of transformers' model, and the
mean of the neighbours from numpy; of ours nothing is used but names, and which layers and microbatches a stage and a step have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from node.stage.model import skeleton
from protocol.manifest import Manifest
from tests.numerics import reference
from tests.numerics.harness import plan_of, relative

Arrays = dict[str, np.ndarray]
TOLERANCE = 1e-6


def names_of(manifest: Manifest, stage: int) -> list[str]:
    """Hugging Face names of a stage's parameters."""
    return [name for name, _ in skeleton(manifest, stage).named_parameters()]


def gradient_norms(manifest: Manifest, before: Arrays, microbatches: Sequence[np.ndarray]) -> list[float]:
    """Unclipped l2 norm, per stage, of the gradient of the mean loss at these weights."""
    gradients = reference.gradients(plan_of(manifest), before, microbatches)
    squares = {name: float(np.sum(np.square(g.astype(np.float64)))) for name, g in gradients.items()}
    return [float(np.sqrt(sum(squares[name] for name in names_of(manifest, s)))) for s in range(manifest.num_stages)]


def expected(manifest: Manifest, stage: int, shares: Mapping[int, float], after: Arrays) -> Arrays:
    """sum of share x neighbour's tensor, in f64, for each tensor of the stage; `after`: weights of all living stages."""
    layers = list(manifest.blocks_of(stage))
    made: Arrays = {}
    for name in names_of(manifest, stage):
        found = re.fullmatch(r"(model\.layers\.)(\d+)(\..+)", name)
        assert found, f"{name} is no parameter of a block"
        place = layers.index(int(found[2]))
        theirs = {s: f"{found[1]}{list(manifest.blocks_of(s))[place]}{found[3]}" for s in shares}
        made[name] = sum(share * after[theirs[s]].astype(np.float64) for s, share in shares.items())  # type: ignore[assignment]
    return made


def assert_rebuilt(actual: Arrays, wanted: Arrays) -> float:
    """All tensors within `TOLERANCE`, relative to their norm. Returns the worst difference."""
    assert actual.keys() == wanted.keys()
    found = {name: relative(actual[name], wanted[name]) for name in wanted}
    worst = max(found, key=lambda name: found[name])
    assert found[worst] <= TOLERANCE, f"{worst} differs by {found[worst]:.2e}"
    return found[worst]
