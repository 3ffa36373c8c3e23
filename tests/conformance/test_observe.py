"""Looking at a node from outside, without a lease: what is told to whom, how often, how much, and that nothing else is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import uvloop

from node.payloads import HandlePool
from node.ports import BusyError, PeerError
from node.transport.config import Hooks, Observation, ObserveRequest, TransportConfig
from node.transport.grpc_transport import GrpcTransport
from node.transport.library import MAX_PART_BYTES
from node.transport.sight import Sight
from node.transport.turnstile import BURST, MAX_KNOWN, MAX_PER_SECOND, PAUSE_S, Turnstile
from protocol.messages import Contact
from tests.conformance.tls_world import DIGEST, LIBRARY, TlsWorld, peer
from tests.conformance.transport_worlds import opened

RUN = "d" * 64
ASKED = ObserveRequest(RUN, True, 7)
Case = Callable[[TlsWorld, "Shown", Contact, Sight], Awaitable[None]]


class Shown:
    """What a test's node shows to whoever knows the run."""

    def __init__(self) -> None:
        self.size = 2
        self.asked: list[ObserveRequest] = []

    def __call__(self, asked: ObserveRequest) -> Observation | None:
        self.asked.append(asked)
        told = Observation(b"{}".ljust(self.size), b"metrics" if asked.metrics else b"", b"[]")
        return told if asked.run_digest == RUN else None


def on_node(case: Case) -> Callable[[int], None]:
    """A test of a node that knows nobody and of an observer (key 3) that has no lease."""

    async def main(seed: int) -> None:
        async with opened(TlsWorld, seed) as world:
            assert isinstance(world, TlsWorld)
            shown = Shown()
            config, library = TransportConfig("run-1", peer(0), 1), replace(LIBRARY, observe=shown)
            pool, security = HandlePool(), world.security(peer(0))
            transport = await GrpcTransport.start(config, pool, world.group, world.rng, library, Hooks(), security)
            sight = Sight(world.security(peer(3)))
            world.closers += [sight.close, transport.close, world.settle]
            await case(world, shown, Contact(peer(0), transport.address), sight)

    def test(seed: int) -> None:
        uvloop.run(main(seed))

    test.__name__, test.__doc__ = case.__name__, case.__doc__
    return test


@on_node
async def test_who_has_no_lease_sees_and_gets_nothing_else(world: TlsWorld, shown: Shown, node: Contact, sight: Sight) -> None:
    assert await sight.look(node, ASKED) == Observation(b"{}", b"metrics", b"[]")
    assert shown.asked == [ASKED]
    with pytest.raises(PeerError, match="has no lease"):
        await world.asker(3).blob(node, DIGEST, 100)


@on_node
async def test_who_does_not_know_the_run_sees_nothing(world: TlsWorld, shown: Shown, node: Contact, sight: Sight) -> None:
    with pytest.raises(PeerError, match="an observer names the run's digest"):
        await sight.look(node, replace(ASKED, run_digest="e" * 64))


@on_node
async def test_another_peer_at_the_address_is_not_believed(world: TlsWorld, shown: Shown, node: Contact, sight: Sight) -> None:
    with pytest.raises(PeerError, match="is another peer"):
        await sight.look(Contact(peer(1), node.address), ASKED)
    assert shown.asked == []


@on_node
async def test_too_often_and_too_much_are_refused(world: TlsWorld, shown: Shown, node: Contact, sight: Sight) -> None:
    shown.size = MAX_PART_BYTES + 1
    with pytest.raises(BusyError, match="at most"):
        await sight.look(node, ASKED)
    with pytest.raises(BusyError, match="once in"):
        await sight.look(node, ASKED)
    assert len(shown.asked) == 1, "who comes too often costs nothing"
    other = Sight(world.security(peer(2)))
    world.closers.insert(0, other.close)
    shown.size = MAX_PART_BYTES
    assert len((await other.look(node, ASKED)).status) == MAX_PART_BYTES


def test_each_may_look_once_in_a_while() -> None:
    turnstile = Turnstile()
    assert turnstile.refusal("a", 100.0) == ""
    assert "once in" in turnstile.refusal("a", 100.0 + PAUSE_S / 2)
    assert turnstile.refusal("b", 100.0 + PAUSE_S / 2) == ""
    assert turnstile.refusal("a", 100.0 + PAUSE_S) == "", "who was refused has not looked"


def test_many_strangers_together_are_held_to_a_rate_and_are_not_all_remembered() -> None:
    turnstile = Turnstile()
    seconds, tries = 100, 100
    served = sum(not turnstile.refusal(f"{n}", 50.0 + n / tries) for n in range(seconds * tries))
    assert seconds * MAX_PER_SECOND <= served <= seconds * MAX_PER_SECOND + BURST
    assert len(turnstile._last) <= MAX_KNOWN
