"""A stage's weights as a safetensors file with Hugging Face parameter names. Knows nothing about torch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file


def write_dump(
    path: Path, parameters: Sequence[tuple[str, tuple[int, ...]]], weights: bytes | memoryview, metadata: Mapping[str, str]
) -> None:
    """Write the flat little-endian f32 `weights`, cut into `parameters`, with `metadata` (`state_id` among it) in the header.

    The file is complete or absent. Raises `ValueError` where the bytes do not fit the parameters, `OSError` where the file
    cannot be written.
    """
    flat = np.frombuffer(weights, dtype="<f4")
    needed = sum(math.prod(shape) for _, shape in parameters)
    if flat.size != needed:
        raise ValueError(f"{flat.size} weights for parameters of {needed} elements")
    tensors, first = {}, 0
    for name, shape in parameters:
        tensors[name] = flat[first : first + math.prod(shape)].reshape(shape)
        first += math.prod(shape)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, unfinished, metadata=dict(metadata))
        unfinished.replace(path)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
