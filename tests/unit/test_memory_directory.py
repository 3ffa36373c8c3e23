"""What the directory in memory can do beyond the conformance suite: delays and splits, on a clock of its own."""

from __future__ import annotations

import pytest

from node.leases import stage_key
from node.ports import Directory, Lease
from node.sim.directory import Entry, MemoryDht, MemoryDirectory
from tests.tools.clock import StepClock

DIGEST = "0123456789abcdef" * 4


def claim(directory: Directory, expires: float, *stages: int) -> Lease:
    return Lease(directory.peer, 1, "n", "127.0.0.1:4000", "", stages, 0, False, False, expires)


async def peers(directory: Directory) -> list[str]:
    return [lease.peer for lease in await directory.leases()]


@pytest.fixture
def clock() -> StepClock:
    return StepClock(1000.0)


@pytest.fixture
def trio(clock: StepClock) -> tuple[MemoryDht, list[MemoryDirectory]]:
    dht = MemoryDht(clock)
    return dht, [MemoryDirectory(dht, name, DIGEST, 3) for name in "abc"]


async def test_islands_see_only_their_own_news(trio: tuple[MemoryDht, list[MemoryDirectory]]) -> None:
    dht, (a, b, c) = trio
    await a.publish(claim(a, 1030, 1))
    dht.split({"a", "b"})
    await b.publish(claim(b, 1030, 1))
    await c.publish(claim(c, 1030, 2))
    assert await peers(a) == ["a", "b"]
    assert await peers(c) == ["a", "c"], "what was known before the split stays known"
    dht.heal()
    for directory in (a, b, c):
        assert await peers(directory) == ["a", "b", "c"]


async def test_the_later_record_survives_healing(trio: tuple[MemoryDht, list[MemoryDirectory]]) -> None:
    dht, (a, b, _) = trio
    await a.publish(claim(a, 1030, 1))
    dht.split({"a"})
    await a.publish(claim(a, 1060, 1, 2))
    dht.heal()
    assert [(lease.stages, lease.expires) for lease in await b.leases()] == [((1, 2), 1060)]


async def test_a_store_takes_its_time(clock: StepClock) -> None:
    dht = MemoryDht(clock, delay_s=5.0)
    a = MemoryDirectory(dht, "a", DIGEST)
    await a.publish(claim(a, 1003, 1))
    assert clock.now == 1005.0
    assert (await a.leases(), a.failed_stores) == ([], 1), "it had run out on its way"


async def test_records_are_not_shortened(trio: tuple[MemoryDht, list[MemoryDirectory]]) -> None:
    dht, (a, _, _) = trio
    key = stage_key(DIGEST, 1)
    assert dht.store("a", key, "a", Entry("first", 1030.0))
    for expires in (1029.0, 1030.0):
        assert not dht.store("a", key, "a", Entry("second", expires))
    assert dht.find("a", key) == {"a": Entry("first", 1030.0)}
    again = MemoryDirectory(dht, "a", DIGEST)  # restarted, with a clock that went back
    await again.publish(claim(a, 1020, 1))
    assert again.failed_stores == 1
