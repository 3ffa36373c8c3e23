"""A newcomer finds out whether and where it is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from node.dial_back import PAUSE_S
from node.ports import PeerError, UnusableError
from node.reachable import MAX_ASKED, Reachable
from node.sim.loop import VirtualClock, run_virtual
from node.transport.config import DialBackAnswer
from protocol.messages import Contact

HERE = "8.8.4.4:28480"
Answer = Callable[[str], DialBackAnswer]


def reached(_: str) -> DialBackAnswer:
    return DialBackAnswer(True, True, "", "8.8.4.4")


def unreached(address: str) -> DialBackAnswer:
    return DialBackAnswer(bool(address), False, f"cannot reach {address}: no answer", "8.8.4.4")


def busy(_: str) -> DialBackAnswer:
    return DialBackAnswer(False, False, "4 others are being dialled", "8.8.4.4")


def silent(_: str) -> DialBackAnswer:
    raise PeerError("x", "no answer in time")


def sees(host: str) -> Answer:
    return lambda address: DialBackAnswer(bool(address), address == "8.8.4.4:28480", "not there", host)


def patient(host: str, clock: VirtualClock) -> Answer:
    """As a real peer: it dials once in a while."""
    dialled_at: list[float] = []

    def answer(address: str) -> DialBackAnswer:
        if not address:
            return DialBackAnswer(False, False, "", host)
        if dialled_at and clock.monotonic() - dialled_at[-1] < PAUSE_S:
            return DialBackAnswer(False, False, "once in 5 s", host)
        dialled_at.append(clock.monotonic())
        return DialBackAnswer(True, address == "8.8.4.4:28480", "not there", host)

    return answer


class World:
    def __init__(self, *answers: Answer, is_lan: bool = False) -> None:
        self.answers = {f"peer-{n}": answer for n, answer in enumerate(answers)}
        self.asked: list[str] = []
        self.shown: list[str] = []
        self.said: list[str] = []
        self.reachable = Reachable(self, self._show, self.said.append, Random(1), VirtualClock(), 28480, 28481, is_lan)

    async def dial_back(self, peer: Contact, own: str) -> DialBackAnswer:
        assert not own or own == self.shown[-1], "the lease says so before a peer is asked"
        self.asked.append(peer.peer)
        return self.answers[peer.peer](own)

    async def _show(self, address: str) -> None:
        self.shown.append(address)

    def settle(self, address: str) -> str:
        return run_virtual(self.reachable.settle(address, [Contact(peer, "1.1.1.1:1") for peer in self.answers]))

    def refusal(self, address: str) -> str:
        with pytest.raises(UnusableError) as caught:
            self.settle(address)
        assert caught.value.code == 3
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.mark.parametrize("others", [[], [unreached, unreached], [busy, silent], [silent, unreached]])
def test_one_peer_that_gets_through_is_enough(others: list[Answer]) -> None:
    world = World(*others, reached)
    assert world.settle(HERE) == HERE
    assert world.shown == [HERE]


def test_three_different_peers_are_asked_and_then_it_is_told_what_to_do() -> None:
    world = World(*[unreached] * 5)
    line = world.refusal(HERE)
    assert len(set(world.asked)) == len(world.asked) == MAX_ASKED
    for words in (HERE, "no answer", "28480", "28481", "--listen", "--announce", "--lan"):
        assert words in line


def test_peers_that_cannot_try_are_no_reason_to_stop() -> None:
    world = World(busy, silent)
    assert world.settle(HERE) == HERE
    assert any("no peer could try" in line for line in world.said)
    assert World().settle(HERE) == HERE


def test_behind_a_router_peers_tell_the_address() -> None:
    world = World(silent, sees("8.8.4.4"))
    assert world.settle("") == HERE
    assert world.shown == [HERE]


@pytest.mark.parametrize("seed", range(4))
def test_a_peer_that_tells_nonsense_changes_nothing(seed: int) -> None:
    clock = VirtualClock()
    world = World(patient("9.9.9.9", clock), patient("8.8.4.4", clock))
    world.reachable = replace(world.reachable, rng=Random(seed), clock=clock)
    assert world.settle("") == HERE


def test_what_most_peers_see_is_tried_first() -> None:
    world = World(sees("9.9.9.9"), sees("8.8.4.4"), sees("8.8.4.4"))
    assert world.settle("") == HERE
    assert world.shown == [HERE]


def test_behind_a_router_that_does_not_forward() -> None:
    line = World(unreached).refusal("")
    assert "at 8.8.4.4:28480" in line
    assert "forward" in line


@pytest.mark.parametrize("host", ["10.0.0.7", "192.168.1.2", "100.64.3.4", "fd00::1", "127.0.0.1", "172.17.0.1"])
def test_a_private_address_is_never_announced_but_in_a_lan(host: str) -> None:
    world = World(sees(host))
    assert "--lan" in (line := world.refusal(""))
    assert host in line
    assert world.shown == []
    at_home = World(reached_at(host), is_lan=True)
    assert at_home.settle("") == (f"[{host}]:28480" if ":" in host else f"{host}:28480")


def reached_at(host: str) -> Answer:
    return lambda address: DialBackAnswer(bool(address), bool(address), "", host)


def test_nobody_there_who_could_tell_the_address() -> None:
    assert "no peer says from where it is called" in World(silent).refusal("")
