"""Neighbours average a lost stage before anybody asks, and the newcomer gets it from both at the rate of its link."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from node.mixing import share_of
from node.range_book import WEIGHT_BYTES
from protocol.ids import Member
from protocol.records import Roster, Seating
from tests.tools.core import LEAD
from tests.tools.toy_rebuild import LOST, NEWCOMER, REAL_S, SECOND, World

DECIDED_S = 0.25
"""Between the roster without the lost one and the rebuild, where a newcomer stands by."""


def shares(world: World, began: float, ended: float) -> float:
    """Of the link."""
    return WEIGHT_BYTES * world.size / world.rate / (ended - began)


def check(world: World, at: str = NEWCOMER.peer) -> None:
    """The newcomer has what the decided record says."""
    chain = world.some_chain()
    record = chain.rebuilds[LOST]
    assert np.array_equal(world.nodes[at].executor.weights[LOST], world.mixed(record))
    assert chain.state_ids[LOST] in {event.state_id for _, event in world.learned}


@pytest.mark.parametrize(("waits_s", "share"), [(DECIDED_S, 0.80), (6.0, 0.90)], ids=["standing by", "cold"])
def test_the_newcomer_gets_one_stage_at_the_rate_of_its_link(waits_s: float, share: float) -> None:
    world, took = World(), [0.0]

    async def script() -> None:
        world.lose("p2.0")
        await asyncio.sleep(waits_s)
        assert waits_s == DECIDED_S or world.kept() == WEIGHT_BYTES * world.size, "all is averaged before it comes"
        world.decide(world.rebuild())
        took[0] = shares(world, world.now(), await world.is_made())

    world.run(script)
    check(world)
    print(f"{took[0]:.2f} of the link, {world.learned[-1][1].num_bytes / WEIGHT_BYTES / world.size:.2f} stages downloaded")
    assert took[0] >= share
    assert world.bytes_to["new"] == WEIGHT_BYTES * world.size
    for peer in ("p1.0", "p3.0"):
        assert world.bytes_to[peer] <= 0.55 * WEIGHT_BYTES * world.size, "each gets the other's half"
        assert world.nodes[peer].most_kept <= 0.51 * WEIGHT_BYTES * world.size
    assert not world.faults
    assert world.visits["p1.0"] <= 3, "connections stay open"


def test_without_anything_averaged_ahead_it_comes_too_but_later() -> None:
    world, took = World(), [0.0]

    async def script() -> None:
        world.lose("p2.0")
        for node in world.nodes.values():
            world.cancel(node, LOST)
            node.mixer.stop(LOST)
        world.decide(world.rebuild())
        took[0] = shares(world, world.now(), await world.is_made())

    world.run(script)
    check(world)
    print(f"{took[0]:.2f} of the link")


def test_a_second_newcomer_gets_what_is_averaged_already() -> None:
    world = World()

    async def script() -> None:
        world.lose("p2.0")
        await asyncio.sleep(2 * REAL_S)
        world.decide(world.rebuild())
        await asyncio.sleep(1.0)
        fetched = world.bytes_to["p1.0"] + world.bytes_to["p3.0"]
        world.lose("new")
        assert world.kept() == WEIGHT_BYTES * world.size
        world.decide(world.rebuild(at=SECOND))
        await world.is_made()
        assert world.bytes_to["p1.0"] + world.bytes_to["p3.0"] == fetched, "nothing is averaged twice"
        assert world.some_chain().generations[LOST] == 2

    world.run(script)
    check(world, "second")


def test_what_is_averaged_is_freed_when_the_holder_is_back() -> None:
    world = World()

    async def script() -> None:
        world.lose("p2.0")
        await asyncio.sleep(1.0)
        assert world.kept() > 0
        chain = world.some_chain()
        world.decide(Roster(chain.head, 1, (Seating(LOST, Member("p2.0", 2), "active"),), (), (LEAD,)))
        assert world.kept() == 0
        await asyncio.sleep(1.0)
        assert world.kept() == 0, "nobody goes on"

    world.run(script)


def test_a_neighbour_that_makes_the_stage_itself_gets_its_own_share_from_itself() -> None:
    world = World()

    async def script() -> None:
        world.lose("p2.0")
        await asyncio.sleep(DECIDED_S)
        world.decide(world.rebuild(at=Member("p1.0", 1)))
        await world.is_made()

    world.run(script)
    check(world, "p1.0")
    assert world.bytes_to["p1.0"] == WEIGHT_BYTES * world.size, "half of the other source, and the other half mixed"


def test_who_holds_both_sources_fetches_nothing() -> None:
    world = World(second=3)

    async def script() -> None:
        world.lose("p2.0")
        await asyncio.sleep(DECIDED_S)
        world.decide(world.rebuild())
        await world.is_made()

    world.run(script)
    check(world)
    assert not world.bytes_to["p1.0"]
    assert 0 < world.bytes_to["p3.0"] <= 0.55 * WEIGHT_BYTES * world.size
    assert not world.faults


def test_both_of_two_adjacent_stages_are_averaged_at_the_same_neighbours() -> None:
    world = World(num_block_stages=4)

    async def script() -> None:
        world.lose("p2.0", "p3.0")
        await asyncio.sleep(DECIDED_S)
        world.decide(world.rebuild())
        world.decide(world.rebuild(3, SECOND))
        await world.is_made(times=2)

    world.run(script)
    check(world)
    chain = world.some_chain()
    assert chain.state_ids[3] in {event.state_id for _, event in world.learned}
    assert np.array_equal(world.nodes["second"].executor.weights[3], world.mixed(chain.rebuilds[3]))


def test_a_source_that_is_lost_too_begins_it_all_again_of_the_survivors() -> None:
    world = World(num_block_stages=4)

    async def script() -> None:
        world.lose("p2.0")
        await asyncio.sleep(1.0)
        world.decide(world.rebuild())
        await asyncio.sleep(2.0)
        world.lose("p3.0")
        await asyncio.sleep(0.1)
        world.decide(world.rebuild())
        await world.is_made()

    world.run(script)
    check(world)
    assert [s.stage for s in world.some_chain().rebuilds[LOST].sources] == [1, 4]


def test_what_nobody_can_be_meant_by_is_not_held() -> None:
    world = World()

    async def script() -> None:
        world.lose("p2.0")
        record = world.rebuild()
        world.decide(record)
        mixer, newest = world.nodes["p1.0"].mixer, world.some_chain().state_ids
        assert await mixer.mixed_range(LOST, newest[LOST], 0, 1)
        wrong = [(LOST, "another", 0, 1), (1, newest[1], 0, 1), (99, newest[LOST], 0, 1)]
        beyond = [(LOST, newest[LOST], first, count) for first, count in ((-1, 2), (0, 0), (world.size, 1), (1, world.size))]
        for asked in (*wrong, *beyond):
            assert await mixer.mixed_range(*asked) is None, asked
        end = world.size - 5
        assert await mixer.mixed_range(LOST, newest[LOST], end, 5), "of the other's share"
        assert world.kept() <= WEIGHT_BYTES * world.size, "which is not kept"

    world.run(script)


def test_an_averager_that_dies_is_replaced_by_another_holder_of_its_source() -> None:
    world = World(replicas=2)

    async def script() -> None:
        world.lose("p2.0", "p2.1")
        await asyncio.sleep(DECIDED_S)
        world.decide(world.rebuild())
        await asyncio.sleep(2.0)
        world.kill("p3.0")
        await asyncio.sleep(3.5)
        world.lose("p3.0")
        await world.is_made()

    world.run(script)
    check(world)
    assert {peer for peer, _ in world.faults} == {"p3.0"}
    assert "p3.1" in world.visits


def test_shares_cover_every_range_once() -> None:
    for num_elements, parts in ((1, 1), (1, 3), (95, 2), (100, 3), (31, 3)):
        rows = [share_of(part, parts, num_elements, 10) for part in range(parts)]
        assert [e for row in rows for first, count in row for e in range(first, first + count)] == list(range(num_elements))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
