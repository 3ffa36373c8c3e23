"""Chunks become payloads, or the reason why not; memory is taken after the checks and always given back."""

from __future__ import annotations

from random import Random

import pytest

from node.transport.assembly import Assembly, Budget
from node.transport.checks import WireError
from node.transport.config import PayloadHead
from protocol.ids import Ballot
from protocol.messages import ReduceHeader

HEADER = ReduceHeader(Ballot(1, "c"), 1, 1, 0, "part", 0, 1)


def head(count: int) -> PayloadHead:
    return PayloadHead(HEADER, "f32", (count,), 4 * count)


def test_chunks_of_any_size_make_the_payload(seed: int) -> None:
    rng, budget = Random(seed), Budget(1 << 20)
    assembly = Assembly(budget, 1 << 20)
    for _ in range(50):
        data = rng.randbytes(4 * rng.randint(1, 500))
        assembly.begin(head(len(data) // 4))
        assert budget.used == len(data)
        position, whole = 0, None
        while position < len(data):
            assert whole is None
            size = rng.randint(1, 600)
            whole = assembly.add(position, memoryview(data)[position : position + size])
            position += size
        assert whole is not None
        assert bytes(whole[1].data) == data
        assert (budget.used, assembly.head) == (0, None)


def test_nothing_is_taken_for_a_bad_head() -> None:
    budget = Budget(100)
    assembly = Assembly(budget, 1000)
    for bad, code in (
        (PayloadHead(HEADER, "f32", (2,), 9), "size"),
        (PayloadHead(HEADER, "bf16", (1, 0), 0), "value"),
        (head(1 << 60), "size"),
        (head(26), "memory"),
    ):
        with pytest.raises(WireError) as caught:
            assembly.begin(bad)
        assert caught.value.code == code
        assert (budget.used, assembly.head) == (0, None)


def test_dropping_gives_back_once() -> None:
    budget = Budget(100)
    one, other = Assembly(budget, 100), Assembly(budget, 100)
    one.begin(head(20))
    with pytest.raises(WireError, match="80 bytes of payloads are arriving already; 40 more exceed 100"):
        other.begin(head(10))
    one.drop()
    one.drop()
    assert budget.used == 0
    other.begin(head(10))
    assert budget.used == 40


@pytest.mark.parametrize(
    ("position", "size", "code"), [(4, 4, "order"), (0, 0, "order"), (0, 44, "size"), (1 << 70, 4, "order")]
)
def test_chunks_that_do_not_fit(position: int, size: int, code: str) -> None:
    assembly = Assembly(Budget(100), 100)
    assembly.begin(head(10))
    with pytest.raises(WireError) as caught:
        assembly.add(position, memoryview(bytes(size)))
    assert caught.value.code == code
