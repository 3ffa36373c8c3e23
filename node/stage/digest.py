"""Digests and norms of flat vectors. Digests are blake3 over raw little-endian f32 bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from blake3 import blake3
from torch import Tensor

from node.stage.codec import raw_bytes

NORM_BLOCK = 1 << 16


def state_digest(vectors: Iterable[Tensor], optimizer_age: int) -> str:
    """Hex digest of weights | moments | optimizer age (8 bytes, little-endian)."""
    hasher = blake3()
    for vector in vectors:
        hasher.update(raw_bytes(vector))
    return hasher.update(optimizer_age.to_bytes(8, "little")).hexdigest()


def gradient_digest(gradient: Tensor) -> str:
    """Hex digest of a flat gradient."""
    return blake3(raw_bytes(gradient)).hexdigest()


def squared_norm(vector: Tensor) -> float:
    """Squared l2 norm: f64 sums over blocks of `NORM_BLOCK` elements, added exactly. Machines agree to 1e-12, not to the bit.

    Not finite where an element is not finite."""
    blocks = (block.to(torch.float64) for block in vector.split(NORM_BLOCK))
    sums = [float(torch.dot(block, block)) for block in blocks]
    return math.fsum(sums) if all(map(math.isfinite, sums)) else sum(sums)
