"""Dialling back for others, on virtual time: whom, at which address, how often, how many at once."""

from __future__ import annotations

import asyncio

import pytest

from node.dial_back import DIAL_S, MAX_DIALS, PAUSE_S, DialBack
from node.ports import PeerError
from node.sim.loop import VirtualClock, run_virtual
from node.transport.config import DialBackAnswer
from protocol.messages import Contact

HOME, SHED = "8.8.4.4:28480", "8.8.4.5:1"
ANNA = "1.1.1.1"


class World:
    """Leases by peer; `takes` is how long a dial takes, by address; who is not in it refuses the connection."""

    def __init__(self, leases: dict[str, str], takes: dict[str, float]) -> None:
        self.leases, self.takes = leases, takes
        self.dialled: list[Contact] = []
        self.clock = VirtualClock()
        self.back = DialBack(self._claims, self._prove, self.clock)

    async def _claims(self, peer: str, address: str) -> bool:
        return self.leases.get(peer) == address

    async def _prove(self, peer: Contact) -> None:
        self.dialled.append(peer)
        if peer.address not in self.takes:
            raise PeerError(peer.peer, f"cannot reach {peer.address}: connection refused")
        await asyncio.sleep(self.takes[peer.address])

    async def ask(self, peer: str, address: str) -> DialBackAnswer:
        return await self.back.answer(peer, address, ANNA)


def test_a_reached_caller_and_one_that_is_not() -> None:
    async def main() -> None:
        world = World({"a": HOME, "b": SHED}, {HOME: 0.1})
        assert await world.ask("a", HOME) == DialBackAnswer(True, True, "", ANNA)
        assert await world.ask("b", SHED) == DialBackAnswer(True, False, f"cannot reach {SHED}: connection refused", ANNA)

    run_virtual(main())


def test_only_the_callers_own_address_is_dialled() -> None:
    async def main() -> None:
        world = World({"a": HOME}, {})
        for peer, address in (("a", "9.9.9.9:22"), ("b", HOME), ("c", ""), ("d", "nonsense\n")):
            answer = await world.ask(peer, address)
            assert (answer.dialled, answer.reached, answer.seen_host) == (False, False, ANNA)
        assert world.dialled == []

    run_virtual(main())


def test_an_address_that_swallows_everything_takes_a_bounded_time() -> None:
    async def main() -> None:
        world = World({"a": HOME}, {HOME: 3600.0})
        began = world.clock.monotonic()
        answer = await world.ask("a", HOME)
        assert (answer.dialled, answer.reached) == (True, False)
        assert "no answer" in answer.sentence
        assert world.clock.monotonic() - began == pytest.approx(DIAL_S)

    run_virtual(main())


def test_a_caller_is_dialled_once_in_a_while() -> None:
    async def main() -> None:
        world = World({"a": HOME}, {HOME: 0.0})
        for _ in range(5):
            await world.ask("a", HOME)
            await world.clock.sleep(PAUSE_S / 10)
        assert len(world.dialled) == 1
        await world.clock.sleep(PAUSE_S)
        assert (await world.ask("a", HOME)).reached
        assert len(world.dialled) == 2

    run_virtual(main())


def test_only_so_many_are_dialled_at_once() -> None:
    async def main() -> None:
        peers = [f"p{n}" for n in range(3 * MAX_DIALS)]
        world = World(dict.fromkeys(peers, HOME), {HOME: 1.0})
        answers = await asyncio.gather(*(world.ask(peer, HOME) for peer in peers))
        assert [answer.reached for answer in answers] == [True] * MAX_DIALS + [False] * 2 * MAX_DIALS
        assert not any(answer.dialled for answer in answers[MAX_DIALS:])
        assert (await world.ask(peers[-1], HOME)).reached, "who was sent away may try again"

    run_virtual(main())


@pytest.mark.parametrize("address", ["127.0.0.1:22", "10.0.0.1:22", "[fd00::1]:22", "router:80", "[::ffff:192.168.0.1]:80"])
def test_nobodys_own_network_is_looked_into(address: str) -> None:
    """A lease may name any address; in a public run it must not tell its peer what listens beside the node that is asked."""

    async def main() -> None:
        world = World({"a": address}, {address: 0.0})
        answer = await world.ask("a", address)
        assert (answer.dialled, world.dialled) == (False, [])
        world.back.is_near = True
        await world.clock.sleep(PAUSE_S)
        assert (await world.ask("a", address)).reached

    run_virtual(main())
