"""Handles of payloads: counted, never reused, gone with the last hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.payloads import HandlePool, encoded_bytes
from node.ports import Payload, TensorSpec


def payload(num_bytes: int) -> Payload:
    return Payload(TensorSpec("f32", (num_bytes // 4,)), memoryview(bytes(num_bytes)))


def test_the_last_hold_frees() -> None:
    pool, kept = HandlePool(), payload(8)
    handle = pool.put(kept)
    pool.hold(handle)
    pool.release(handle)
    assert pool.get(handle) is kept
    pool.release(handle)
    assert (pool.num_live, pool.num_bytes, pool.peak_bytes) == (0, 0, 8)
    with pytest.raises(AssertionError, match="not live"):
        pool.get(handle)


@pytest.mark.parametrize("touch", ["get", "hold", "release"])
def test_a_dead_handle_is_a_defect(touch: str) -> None:
    pool = HandlePool()
    for handle in (0, 1):
        with pytest.raises(AssertionError, match=f"handle {handle} is not live"):
            getattr(pool, touch)(handle)


@given(st.lists(st.tuples(st.sampled_from(["put", "hold", "release"]), st.integers(0, 9)), max_size=60))
def test_bytes_and_holds_add_up(actions: list[tuple[str, int]]) -> None:
    """Against a plain list of holds."""
    pool, holds, sizes, peak = HandlePool(), list[int](), dict[int, int](), 0
    for action, number in actions:
        if action == "put":
            handle = pool.put(payload(4 * number))
            assert handle > 0
            assert handle not in sizes
            sizes[handle] = 4 * number
            holds.append(handle)
        elif holds:
            handle = holds[number % len(holds)]
            if action == "hold":
                pool.hold(handle)
                holds.append(handle)
            else:
                pool.release(handle)
                holds.remove(handle)
        held = sum(sizes[handle] for handle in set(holds))
        peak = max(peak, held)
        assert (pool.num_live, pool.num_bytes, pool.peak_bytes) == (len(set(holds)), held, peak)


def test_sizes_of_encoded_tensors() -> None:
    assert encoded_bytes(TensorSpec("f32", (2, 3))) == 24
    assert encoded_bytes(TensorSpec("bf16", (7,))) == 14
    assert encoded_bytes(TensorSpec("bf16", (1 << 40, 1 << 40))) == 1 << 81


@pytest.mark.parametrize("spec", [("f64", (1,)), ("f32", ()), ("f32", (0,)), ("f32", (2, -1)), ("f32", (1,) * 9)])
def test_impossible_tensors(spec: tuple[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"unknown codec|impossible shape"):
        encoded_bytes(TensorSpec(*spec))
