"""Weights at step 0: a pure function of (manifest.seed, parameter name), the same bits on every machine; of a stage that is
drawn anew (`recovery.policy: random`) of its generation too. The others were trained around what a stage was at step 0: drawn
so again it might fit better than a fresh draw does, which is what that policy stands for.

`torch.randn` is no such function: its vectorised and scalar paths differ. Here Philox makes raw integers, their 16-bit
parts are added in integer arithmetic (a sum of uniforms, close to a normal), and one f32 multiplication scales them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.manifest import Manifest

CHUNK = 1 << 16
"""Elements made at a time. Part of the definition: changing it changes the weights."""
UNIFORMS = 8
"""16-bit uniforms per element, from two 64-bit integers."""
LANES = np.uint64(0x0000_FFFF_0000_FFFF)
LOW = np.uint64(0xFFFF_FFFF)


def initialise(
    manifest: Manifest, parameters: Sequence[tuple[str, tuple[int, ...]]], flat: Tensor, generation: int = 0
) -> None:
    """Fill the flat vector of these parameters: norms (vectors) with ones, matrices with `initializer_range` normals."""
    first = 0
    for name, shape in parameters:
        view = flat[first : first + math.prod(shape)]
        first += len(view)
        if len(shape) == 1:
            view.fill_(1.0)
            continue
        chunks = _normals(_key(manifest.seed, name, generation), len(view), manifest.model.initializer_range)
        for part, values in zip(view.split(CHUNK), chunks, strict=True):
            part.copy_(torch.from_numpy(values))


def _key(seed: int, name: str, generation: int) -> int:
    drawn = f"{seed} {name} {generation}" if generation else f"{seed} {name}"
    return int.from_bytes(hashlib.sha256(drawn.encode()).digest()[:16], "little")


def _normals(key: int, count: int, std: float) -> Iterator[NDArray[np.float32]]:
    """`count` values of mean 0 in chunks. A sum of n uniforms on 0..65535 has variance n (2^32 - 1) / 12; it is doubled to
    make its mean an integer."""
    source = np.random.Philox(key=key)
    factor = np.float32(std / math.sqrt(4 * UNIFORMS * (2**32 - 1) / 12))
    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first)
        values = _centred(source.random_raw(CHUNK), source.random_raw(CHUNK))
        values *= factor
        yield values[:size]


def _centred(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Twice the sum of the eight 16-bit parts of a and b, less its mean: integers below 2^20, exact in f32."""
    lanes = (a & LANES) + ((a >> np.uint64(16)) & LANES) + (b & LANES) + ((b >> np.uint64(16)) & LANES)
    sums = ((lanes & LOW) + (lanes >> np.uint64(32))).astype(np.int32)
    centred: NDArray[np.float32] = (2 * sums - UNIFORMS * 65535).astype(np.float32)
    return centred
