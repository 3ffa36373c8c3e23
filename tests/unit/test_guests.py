"""Who may call: peers with a lease, however late it shows up, at a bounded cost in readings of the directory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

from node.guests import KEEP_S, MAX_KNOWN, MAX_WAITING, PAUSE_S, Guests
from node.ports import Lease
from node.sim.loop import VirtualClock, run_virtual

READING_S = 0.25


def lease(peer: str, *, leaving: bool = False) -> Lease:
    return Lease(peer, 1, "", "127.0.0.1:1", "", (), 0, False, leaving, 1e9)


class Directory:
    """Leases by peer; a reading takes `READING_S` and shows what was there when it began."""

    def __init__(self) -> None:
        self.held: dict[str, Lease] = {}
        self.readings: list[float] = []

    async def leases(self) -> list[Lease]:
        now = asyncio.get_running_loop().time
        self.readings.append(now())
        found = list(self.held.values())
        await asyncio.sleep(READING_S)
        return found


Case = Callable[[Guests, Directory], Awaitable[None]]


def virtual(case: Case) -> Callable[[], None]:
    """Runs a case on virtual time, the directory open."""

    def test() -> None:
        async def main() -> None:
            guests, directory = Guests("me", VirtualClock()), Directory()
            guests.open(directory.leases)
            await case(guests, directory)

        run_virtual(main(), limit_s=10 * KEEP_S)

    test.__name__ = case.__name__
    return test


@virtual
async def test_the_directory_is_read_for_a_stranger_and_not_again(guests: Guests, directory: Directory) -> None:
    directory.held = {"a": lease("a"), "b": lease("b")}
    assert await guests.admits("a")
    assert await guests.admits("b")
    assert len(directory.readings) == 1
    assert not await guests.admits("c")
    assert len(directory.readings) == 2


@virtual
async def test_the_own_key_needs_no_lease(guests: Guests, directory: Directory) -> None:
    assert await guests.admits("me")
    assert directory.readings == []


@virtual
async def test_a_lease_published_while_a_reading_goes_on_is_found_by_the_next_one(guests: Guests, directory: Directory) -> None:
    async with asyncio.TaskGroup() as group:
        early = group.create_task(guests.admits("early"))
        await asyncio.sleep(READING_S / 2)
        directory.held["late"] = lease("late")
        late = group.create_task(guests.admits("late"))
    assert (early.result(), late.result()) == (False, True)


@virtual
async def test_many_strangers_cost_few_readings(guests: Guests, directory: Directory) -> None:
    for _ in range(3):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(guests.admits(f"stranger {n}")) for n in range(500)]
        assert not any(task.result() for task in tasks)
    begun = directory.readings
    assert all(later - earlier >= PAUSE_S for earlier, later in pairwise(begun))
    assert len(begun) <= 6


@virtual
async def test_no_more_than_so_many_wait(guests: Guests, directory: Directory) -> None:
    directory.held["a"] = lease("a")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(guests.admits("a")) for _ in range(MAX_WAITING + 5)]
    assert [task.result() for task in tasks].count(True) == MAX_WAITING


@virtual
async def test_a_caller_that_hangs_up_leaves_the_others_their_answer(guests: Guests, directory: Directory) -> None:
    directory.held["a"] = lease("a")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(guests.admits("b"))
        second = group.create_task(guests.admits("a"))
        await asyncio.sleep(READING_S / 2)
        first.cancel()
    assert second.result()


@virtual
async def test_who_leaves_is_a_stranger_until_back(guests: Guests, directory: Directory) -> None:
    guests.note([lease("a")])
    assert await guests.admits("a")
    directory.held["a"] = lease("a", leaving=True)
    guests.note(await directory.leases())
    assert not await guests.admits("a")
    directory.held["a"] = replace(lease("a"), incarnation=2)
    assert await guests.admits("a")


@virtual
async def test_a_lapse_of_the_directory_cuts_nobody_off_at_once(guests: Guests, directory: Directory) -> None:
    guests.note([lease("a")])
    guests.note([])
    await asyncio.sleep(KEEP_S - 1)
    assert await guests.admits("a")
    await asyncio.sleep(2)
    assert not await guests.admits("a")


@virtual
async def test_the_longest_unseen_are_forgotten_first(guests: Guests, directory: Directory) -> None:
    guests.note(lease(f"{number}") for number in range(MAX_KNOWN))
    guests.note([lease("0"), lease("new")])
    assert await guests.admits("0")
    assert await guests.admits("new")
    assert not await guests.admits("1")


@virtual
async def test_a_judge_decides_who_counts_and_says_why(guests: Guests, directory: Directory) -> None:
    """Once the manifest is known, also of those who were welcome before; a good lease after a bad one opens the door."""
    with_ticket = replace(lease("a"), ticket="good")
    directory.held = {"a": with_ticket, "b": lease("b")}
    assert [await guests.admits(peer) for peer in ("a", "b")] == [True, True]
    guests.judge_by(lambda lease: "" if lease.ticket == "good" else "no ticket")
    assert [await guests.admits(peer) for peer in ("a", "b", "c")] == [True, False, False]
    assert [guests.flaw_of(peer) for peer in ("a", "b", "c")] == ["", "no ticket", ""]
    assert guests.note([with_ticket, lease("b")]) == [with_ticket]
    directory.held["b"] = replace(lease("b"), incarnation=2, ticket="good")
    assert await guests.admits("b")
    assert guests.flaw_of("b") == ""
    guests.note([lease("a")])
    assert not await guests.admits("me too")
    assert guests.flaw_of("a") == "", "the directory shows its good lease again"
    guests.note(lease(f"{number}") for number in range(2 * MAX_KNOWN))
    assert (guests.flaw_of("0"), guests.flaw_of(f"{2 * MAX_KNOWN - 1}")) == ("", "no ticket")


def test_before_the_directory_is_open_nobody_waits() -> None:
    async def main() -> None:
        assert not await Guests("me", VirtualClock()).admits("a")

    run_virtual(main())


@virtual
async def test_a_claimed_address_is_that_of_the_newest_lease(guests: Guests, directory: Directory) -> None:
    directory.held["a"] = replace(lease("a"), address="8.8.4.4:1")
    assert await guests.claims("a", "8.8.4.4:1")
    assert len(directory.readings) == 1
    directory.held["a"] = replace(lease("a"), address="8.8.4.4:2")
    assert await guests.claims("a", "8.8.4.4:2"), "it moved: the directory is read again"
    assert not await guests.claims("a", "8.8.4.4:1")
    directory.held["a"] = replace(lease("a", leaving=True), address="8.8.4.4:2")
    assert not await guests.claims("b", "8.8.4.4:2")
    assert not await guests.claims("a", "8.8.4.4:2")
    assert all(later - sooner >= PAUSE_S for sooner, later in pairwise(directory.readings))
