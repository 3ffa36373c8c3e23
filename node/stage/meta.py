"""Sizes of a model and of its stages, from tensors on the meta device: no memory, any size."""

from __future__ import annotations

import math

from node.stage.model import skeleton
from protocol.manifest import Manifest


def stage_parameters(manifest: Manifest, stage: int) -> int:
    """Number of parameters of one stage."""
    return sum(math.prod(p.shape) for p in skeleton(manifest, stage).parameters())


def split(manifest: Manifest) -> list[int]:
    """Number of parameters of each stage, the embedding stage first."""
    return [stage_parameters(manifest, stage) for stage in range(manifest.num_stages)]
