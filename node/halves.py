"""Elements of a state as a shadow has them: f32 as it lies in memory, or bf16, rounded to nearest even, two to a word.

bf16 is the upper half of an f32. What lies on the wire is whole words of 4 bytes, as of every other section of a state: an odd
number of halves is followed by a zero one.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Dtype = Literal["bf16", "fp32"]
ELEMENT_BYTES = {"bf16": 2, "fp32": 4}
WORD_BYTES = 4
HALF_BITS = 16


def num_words(num_elements: int, dtype: Dtype) -> int:
    """Words of 4 bytes that so many elements take."""
    return -(-num_elements * ELEMENT_BYTES[dtype] // WORD_BYTES)


def packed(data: bytes | bytearray | memoryview, dtype: Dtype) -> bytes:
    """Little-endian f32 elements, finite, as the shadow has them."""
    if dtype == "fp32":
        return bytes(data)
    bits = np.frombuffer(data, dtype="<u4")
    halves = ((bits + np.uint32(0x7FFF) + ((bits >> HALF_BITS) & 1)) >> HALF_BITS).astype("<u2")
    return np.pad(halves, (0, len(halves) % 2)).tobytes()


def elements_of(data: bytes, num_elements: int, vectors: int, dtype: Dtype, first: int, end: int) -> list[bytes]:
    """Elements first .. end of each of the vectors that lie in `data` behind one another, as they lie there."""
    size, width = WORD_BYTES * num_words(num_elements, dtype), ELEMENT_BYTES[dtype]
    assert len(data) == vectors * size, "the words of these elements"
    return [data[at + first * width : at + end * width] for at in range(0, len(data), size)]


def filled(data: bytes) -> bytes:
    """Whole words."""
    return data + bytes(-len(data) % WORD_BYTES)


def unpacked(data: bytes | bytearray | memoryview, num_elements: int, dtype: Dtype) -> np.ndarray:
    """The elements as f32; `data` has just the words of so many."""
    assert len(memoryview(data).cast("B")) == WORD_BYTES * num_words(num_elements, dtype), "the words of these elements"
    if dtype == "fp32":
        return np.frombuffer(data, dtype="<f4")
    halves = np.frombuffer(data, dtype="<u2")[:num_elements]
    return (halves.astype("<u4") << HALF_BITS).view("<f4")
