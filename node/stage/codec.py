"""Tensors as bytes: little-endian `f32` and `bf16`, encoded and checked here and nowhere else.

Zero-copy where it can be: an encoded f32 tensor on the CPU is its own memory, and a decoded f32 tensor from a writable buffer
uses that buffer. Such a buffer belongs to the tensor from then on: nobody may change or reuse it.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from torch import Tensor

from node.ports import BadTensorError, Payload, TensorSpec

assert sys.byteorder == "little", "regrow's codecs move tensors as they lie in memory and need a little-endian CPU"

MAX_NORM = 1e15
"""A foreign tensor of a greater norm is refused like one that is not finite: its square is no f32 number any more, and what is
computed from it would not be finite either."""
ITEM_BYTES = {"f32": 4, "bf16": 2}


def raw_bytes(flat: Tensor) -> memoryview:
    """The bytes of a contiguous tensor; a copy only where it is not on the CPU."""
    assert flat.is_contiguous()
    return flat.detach().cpu().numpy().data.cast("B")


def encode(tensor: Tensor, codec: str) -> Payload:
    """The tensor's values in `codec` (bf16 rounds to nearest even). May share the tensor's memory."""
    values = tensor.detach().cpu().contiguous()
    spec = TensorSpec(codec, tuple(values.shape))
    if codec == "bf16":
        values = values.to(torch.bfloat16).view(torch.int16)
    return Payload(spec, values.view(-1).numpy().data.cast("B"))


def decode(payload: Payload, codec: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """An f32 tensor of exactly this shape. `PeerError` with peer '' where the payload is anything else or not finite."""
    spec, data = payload.spec, payload.data
    if spec.codec != codec:
        raise BadTensorError("", f"tensor in codec {spec.codec[:16]!r}, not {codec}", "codec")
    if tuple(spec.shape) != shape:
        raise BadTensorError("", f"tensor of shape {list(spec.shape[:8])}, not {list(shape)}", "shape")
    expected = math.prod(shape) * ITEM_BYTES[codec]
    if data.nbytes != expected:
        raise BadTensorError("", f"tensor of {data.nbytes} bytes, not {expected}", "size")
    tensor = _values(data, codec).view(shape)
    if not _sane(tensor):
        if _finite(tensor):
            raise BadTensorError("", "tensor with values beyond reason", "beyond_reason")
        raise BadTensorError("", "tensor with values that are not finite", "not_finite")
    return tensor.to(device)


def decode_elements(data: memoryview, first: int, num_elements: int, device: torch.device) -> Tensor:
    """Foreign f32 elements that begin at element `first` of a flat vector. `PeerError` with peer '' where they are none, not
    whole, lie outside the vector or are not finite."""
    count, rest = divmod(data.nbytes, ITEM_BYTES["f32"])
    if rest or count < 1 or first < 0 or first + count > num_elements:
        raise BadTensorError("", f"{data.nbytes} bytes at element {first} of a vector of {num_elements} elements", "size")
    return decode(Payload(TensorSpec("f32", (count,)), data), "f32", (count,), device)


def _values(data: memoryview, codec: str) -> Tensor:
    if codec == "bf16":
        halves = torch.from_numpy(_writable(np.frombuffer(data, dtype=np.int16)))
        return halves.view(torch.bfloat16).to(torch.float32)
    return torch.from_numpy(_writable(np.frombuffer(data, dtype=np.float32)))


def _writable(array: np.ndarray) -> np.ndarray:
    """torch takes no read-only memory."""
    return array if array.flags.writeable else array.copy()


def _sane(tensor: Tensor) -> bool:
    """One pass: the norm is not finite if a value is not, and comparisons with nan are false."""
    return bool(torch.linalg.vector_norm(tensor) <= MAX_NORM)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
