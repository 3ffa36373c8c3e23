"""A node that has an invite and does not know the run yet, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from node.newcomer import ASK_AGAIN_S, LEASE_S, ROUNDS, Newcomer
from node.ports import Lease, PeerError, UninvitedError, UnusableError
from node.sim.directory import MemoryDht, MemoryDirectory
from node.sim.loop import VirtualClock, run_virtual
from protocol.invite import Invite
from protocol.manifest import Manifest
from protocol.messages import Contact
from tests.tools.core import a_manifest

MANIFEST = a_manifest()
INVITE = Invite((), MANIFEST.digest, MANIFEST.name, "")


def claim(peer: str, expires: float = 0.0) -> Lease:
    return Lease(peer, 1, "", f"10.0.0.1:{len(peer)}", "", (), 0, False, False, expires)


class Peers:
    """Answers by peer; remembers who was asked, and whether the newcomer stood in the directory then."""

    def __init__(self, answers: dict[str, bytes], directory: MemoryDirectory, newcomer: str) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.want_tickets: set[str] = set()
        self._answers, self._directory, self._newcomer = answers, directory, newcomer

    async def manifest(self, peer: Contact, digest: str) -> bytes:
        assert digest == MANIFEST.digest
        there = [lease.peer for lease in await self._directory.leases()]
        self.asked.append((peer.peer, self._newcomer in there))
        if peer.peer in self.want_tickets:
            raise UninvitedError(peer.peer, "this run is by invitation")
        if peer.peer not in self._answers:
            raise PeerError(peer.peer, "it has none")
        return self._answers[peer.peer]


class World:
    """One newcomer, `me`, and peers that publish leases."""

    def __init__(self, answers: dict[str, bytes], flaw: str = "") -> None:
        self.clock, self.said = VirtualClock(), list[str]()
        self.dht = MemoryDht(self.clock)
        directory = MemoryDirectory(self.dht, "me", MANIFEST.digest)
        self.peers = Peers(answers, MemoryDirectory(self.dht, "looker", MANIFEST.digest), "me")
        self.newcomer = Newcomer(claim("me"), directory, self.peers, self.clock, self.said.append, flaw)

    async def publish(self, peer: str, for_s: float = 1000.0) -> None:
        await MemoryDirectory(self.dht, peer, MANIFEST.digest).publish(claim(peer, self.clock.wall() + for_s))

    async def join(self) -> tuple[Manifest, list[str]]:
        async with asyncio.TaskGroup() as group:
            shown = group.create_task(self.newcomer.show())
            manifest, leases = await self.newcomer.manifest(INVITE)
            shown.cancel()
        return manifest, [lease.peer for lease in leases]


def test_it_stands_in_the_directory_before_it_asks_and_does_not_ask_itself() -> None:
    async def main() -> None:
        world = World({"a": MANIFEST.canonical()})
        await world.publish("a")
        manifest, peers = await world.join()
        assert (manifest, peers) == (MANIFEST, ["a"])
        assert world.peers.asked == [("a", True)]

    run_virtual(main())


def test_who_does_not_give_it_is_named_and_the_next_one_asked() -> None:
    async def main() -> None:
        world = World({"b": b"no manifest", "c": MANIFEST.canonical()})
        for peer in ("a", "b", "c"):
            await world.publish(peer)
        assert (await world.join())[0] == MANIFEST
        assert [peer for peer, _ in world.peers.asked] == ["a", "b", "c"]
        assert ["it has none" in world.said[0], "peer b" in world.said[1]] == [True, True]

    run_virtual(main())


def test_without_a_ticket_it_ends_when_the_run_wants_one() -> None:
    async def main() -> None:
        world = World({}, flaw="ask for a ticket")
        world.peers.want_tickets = {"a"}
        for peer in ("a", "b"):
            await world.publish(peer)
        with pytest.raises(ExceptionGroup) as caught:
            await world.join()
        assert caught.group_contains(UnusableError, match="ask for a ticket")
        assert [peer for peer, _ in world.peers.asked] == ["a", "b"] * ROUNDS

    run_virtual(main())


@pytest.mark.parametrize("flaw", ["ask for a ticket", ""])
def test_one_that_wants_a_ticket_does_not_speak_for_the_run(flaw: str) -> None:
    """Another one gives the manifest; or, where the newcomer's ticket is good, it is seen some time later."""

    async def main() -> None:
        world = World({"a": MANIFEST.canonical(), "b": MANIFEST.canonical()}, flaw)
        world.peers.want_tickets = {"a"} if flaw else {"a", "b"}
        for peer in ("a", "b"):
            await world.publish(peer)

        async def see_it_late() -> None:
            await world.clock.sleep(2 * ROUNDS * ASK_AGAIN_S)
            world.peers.want_tickets.clear()

        async with asyncio.TaskGroup() as group:
            group.create_task(see_it_late())
            assert (await world.join())[0] == MANIFEST

    run_virtual(main())


def test_it_waits_for_a_peer_for_as_long_as_it_takes() -> None:
    """Longer than its lease: it is renewed."""

    async def main() -> float:
        world = World({"late": MANIFEST.canonical()})

        async def come_late() -> None:
            await world.clock.sleep(3 * LEASE_S)
            await world.publish("late")

        async with asyncio.TaskGroup() as group:
            group.create_task(come_late())
            await world.join()
        assert set(world.said) == {"waiting for a peer of the run"}
        assert world.peers.asked == [("late", True)]
        return world.clock.monotonic()

    began = run_virtual(_now())
    assert 3 * LEASE_S <= run_virtual(main()) - began <= 3 * LEASE_S + 2 * ASK_AGAIN_S


async def _now() -> float:
    return VirtualClock().monotonic()


def test_it_moves_while_it_is_shown() -> None:
    async def main() -> None:
        world = World({})
        async with asyncio.TaskGroup() as group:
            shown = group.create_task(world.newcomer.show())
            await world.clock.sleep(1.0)
            await world.newcomer.move("8.8.4.4:1")
            looker = MemoryDirectory(world.dht, "looker", MANIFEST.digest)
            assert [lease.address for lease in await looker.leases()] == ["8.8.4.4:1"]
            await world.clock.sleep(3 * LEASE_S)
            assert [lease.address for lease in await looker.leases()] == ["8.8.4.4:1"], "renewed"
            shown.cancel()

    run_virtual(main())


def test_whoever_comes_back_waits_for_anybody_and_looks_around_meanwhile() -> None:
    async def main() -> None:
        world, looks = World({}), list[float]()

        async def look() -> None:
            looks.append(world.clock.monotonic())
            if len(looks) == 3:
                await world.publish("a")

        async with asyncio.TaskGroup() as group:
            shown = group.create_task(world.newcomer.show())
            found = await world.newcomer.peers("waiting for one of its nodes", look)
            shown.cancel()
        assert [lease.peer for lease in found] == ["a"]
        assert len(looks) == 3
        assert set(world.said) == {"waiting for one of its nodes"}

    run_virtual(main())
