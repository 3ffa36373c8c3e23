"""Rotary position embedding, with linear and LLaMA-3 scaling of its frequencies.

Legend of shape suffixes: B samples, T tokens of context, H heads, K width of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protocol.manifest import ModelConfig, RopeScaling


def rope_table(config: ModelConfig, context: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [T, 1, K] in f32; the two halves of K are equal, as in Hugging Face's layout."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    angles = torch.arange(context, dtype=torch.float32)[:, None] * frequencies
    angles_T1K = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles_T1K.cos().to(device), angles_T1K.sin().to(device)


def rotate(x_BTHK: Tensor, cos_T1K: Tensor, sin_T1K: Tensor) -> Tensor:
    """Rotate the pairs (x[k], x[k + K/2]) by their position's angles."""
    low, high = x_BTHK.chunk(2, dim=-1)
    turned = x_BTHK * cos_T1K + torch.cat((-high, low), dim=-1) * sin_T1K
    return turned.to(x_BTHK.dtype)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    return _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones stay, those between are interpolated (LLaMA 3.1)."""
    low, high, old = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    share = (old / wavelengths - low) / (high - low)
    between = (1 - share) * frequencies / scaling.factor + share * frequencies
    scaled = torch.where(wavelengths > old / low, frequencies / scaling.factor, frequencies)
    return torch.where((wavelengths <= old / low) & (wavelengths >= old / high), between, scaled)
