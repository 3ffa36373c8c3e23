"""Mutual TLS over real sockets: who has proven its key and has a lease is served; nobody else, by any call."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from grpc import aio

from node.certificates import papers_of, stamp
from node.ports import PeerError
from node.transport.channel import SERVER_OPTIONS
from node.transport.config import DialBackAnswer
from node.transport.fetch import describe
from node.transport.tls import PIN_S
from tests.conformance.tls_world import (
    DIGEST,
    FILE,
    RPCS,
    Stranger,
    TlsWorld,
    contact,
    garbage,
    key,
    papers,
    peer,
    signed_by,
)
from tests.conformance.transport_worlds import Node, note, opened, until, within

Case = Callable[[TlsWorld], Awaitable[None]]


def run(case: Case, seed: int) -> None:
    async def main() -> None:
        async with opened(TlsWorld, seed) as world:
            assert isinstance(world, TlsWorld)
            await case(world)
            world.closers.append(world.settle)

    uvloop.run(main())


def on_tls(case: Case) -> Callable[[int], None]:
    """Turns `async def test(world)` into a test."""

    def test(seed: int) -> None:
        run(case, seed)

    test.__name__, test.__doc__ = case.__name__, case.__doc__
    return test


async def two(world: TlsWorld) -> tuple[Node, Node]:
    a = await world.node(peer(0))
    return a, await world.node(peer(1), known=(a,))


def credentials(node: int, chain: bytes | None, private: bytes | None = None) -> grpc.ChannelCredentials:
    """Trusts the node with this key, and shows any chain."""
    return grpc.ssl_channel_credentials(papers(node).server, (private or papers(3).key) if chain else None, chain)


# ---- who is served


@on_tls
async def test_messages_and_payloads_both_ways(world: TlsWorld) -> None:
    a, b = await two(world)
    for here, there, number in ((a, b, 1), (b, a, 2)):
        here.transport.send(there.name, note(number))
        assert (await there.message()) == note(number)
        data = world.rng.randbytes(3_000_000)
        await here.send_bytes(there, data)
        assert (await there.payload())[::2] == (here.name, data)


@on_tls
async def test_the_library_for_a_peer_without_a_node_of_its_own(world: TlsWorld) -> None:
    a = await world.node(peer(0))
    world.publish(peer(3))
    asker = world.asker(3)
    assert await asker.blob(contact(a), DIGEST, 100) == FILE
    assert await asker.is_there(world.leases[a.name])


@on_tls
async def test_a_peer_dials_back_to_the_address_in_the_callers_lease(world: TlsWorld) -> None:
    """Reached is who answers there with the caller's own key; nobody else, and no other address, is dialled."""
    a, b = await two(world)
    asker = world.asker(0)
    here, there = a.transport.address, b.transport.address
    assert await asker.dial_back(contact(b), here) == DialBackAnswer(True, True, "", "127.0.0.1")
    assert "once in" in (await asker.dial_back(contact(b), here)).sentence
    world.back.clear()  # another answerer, who has dialled nobody yet
    elsewhere = await asker.dial_back(contact(b), "127.0.0.1:1")
    assert (elsewhere.dialled, "own lease" in elsewhere.sentence) == (False, True)
    world.back.clear()
    world.publish(a.name, there)
    impostor = await asker.dial_back(contact(b), there)
    assert (impostor.dialled, impostor.reached) == (True, False)
    assert "is another peer" in impostor.sentence
    world.back.clear()
    world.publish(a.name)
    nobody = await asker.dial_back(contact(b), "127.0.0.1:1")
    assert (nobody.dialled, nobody.reached) == (True, False)
    assert "127.0.0.1:1" in nobody.sentence
    assert (await asker.dial_back(contact(b), "")).seen_host == "127.0.0.1"


@pytest.mark.parametrize("rpc", RPCS)
def test_a_peer_with_a_lease_is_served(rpc: str, seed: int) -> None:
    """The means of the refusals below, used by somebody honest: they can succeed."""

    async def case(world: TlsWorld) -> None:
        a = await world.node(peer(0))
        world.publish(peer(3))
        assert await Stranger(a, credentials(0, papers(3).client)).call(rpc) == "served"

    run(case, seed)


@on_tls
async def test_one_whose_lease_shows_up_late_is_served_then(world: TlsWorld) -> None:
    world.unleased.add(peer(1))
    a, b = await two(world)
    b.transport.send(a.name, note(1))
    await until(lambda: a.transport.counts().get("refused_peer", 0) > 0)
    assert a.messages.empty()
    assert b.refused == [], "a peer that is not known yet does not give up"
    world.publish(b.name)
    assert await a.message() == note(1)


@on_tls
async def test_the_own_key_at_another_address_is_answered(world: TlsWorld) -> None:
    """So that a second start with one identity is found out, with no lease but the first one's."""
    a = await world.node(peer(0))
    assert await world.asker(0).is_there(world.leases[a.name])
    b = await world.node(peer(1))
    world.publish(a.name, b.transport.address)
    assert not await world.asker(0).is_there(world.leases[a.name]), "another peer lives there by now"


# ---- who is not


def _ec_key() -> tuple[bytes, Any]:
    private = ec.generate_private_key(ec.SECP256R1())
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), private.public_key()


def _another_stamp() -> bytes:
    return signed_by(ec.generate_private_key(ec.SECP256R1()), key(3).public_key())


def _stamped(public: Any) -> bytes:
    """By the real stamp, whose private key everybody has."""
    from node.certificates import _stamp_key

    return signed_by(_stamp_key(), public)


def _without_tls() -> None:
    return None


def _no_certificate() -> grpc.ChannelCredentials:
    return credentials(0, None)


def _foreign_certificate() -> grpc.ChannelCredentials:
    return credentials(0, papers(3).server)


def _foreign_stamp() -> grpc.ChannelCredentials:
    return credentials(0, _another_stamp())


def _no_lease() -> grpc.ChannelCredentials:
    return credentials(0, papers_of(key(2)).client, papers(2).key)


def _no_rsa_key() -> grpc.ChannelCredentials:
    private, public = _ec_key()
    return credentials(0, _stamped(public), private)


CLOSED = "UNAVAILABLE"
REFUSALS = {
    _without_tls: CLOSED,
    _no_certificate: CLOSED,
    _foreign_certificate: CLOSED,
    _foreign_stamp: CLOSED,
    _no_lease: "has no lease in this run's directory",
    _no_rsa_key: "is that of no peer",
}


@pytest.mark.parametrize("rpc", RPCS)
@pytest.mark.parametrize("means", REFUSALS, ids=lambda means: means.__name__.strip("_"))
def test_refused(means: Callable[[], grpc.ChannelCredentials | None], rpc: str, seed: int) -> None:
    """A stranger that claims the name of a peer that does have a lease."""

    async def case(world: TlsWorld) -> None:
        a = await world.node(peer(0))
        world.publish(peer(3))
        said = await Stranger(a, means()).call(rpc)
        assert REFUSALS[means] in said, said
        assert a.transport.counts().get("refused_peer", 0) == (REFUSALS[means] != CLOSED)
        assert await Stranger(a, credentials(0, papers(3).client)).call(rpc) == "served", "and the node is as well as before"

    run(case, seed)


@pytest.mark.parametrize("rpc", ["Light", "Bulk"])
def test_a_peer_that_claims_to_be_another_is_refused(rpc: str, seed: int) -> None:
    """It has a lease, and has captured that of the other: no use without the other's key."""

    async def case(world: TlsWorld) -> None:
        a = await world.node(peer(0))
        world.publish(peer(2))
        world.publish(peer(3))
        honest = Stranger(a, credentials(0, papers(3).client))
        assert await honest.call(rpc) == "served"
        liar = Stranger(a, credentials(0, papers(3).client), claims=peer(2))
        assert await liar.call(rpc) == f"this connection is not that of peer {peer(2)[-8:]}"

    run(case, seed)


# ---- who answers


@on_tls
async def test_another_peer_at_the_address_gets_nothing(world: TlsWorld) -> None:
    a, b = await two(world)
    a.transport.introduce(peer(2), b.transport.address)
    a.transport.send(peer(2), note(1))
    await until(lambda: a.transport.counts().get("failed_dials", 0) > 0)
    with pytest.raises(PeerError, match=f"is another peer, not {peer(2)[-8:]}"):
        await a.send_bytes(Node(peer(2), None, a.pool, [], Counter()), bytes(4))
    assert b.messages.empty()
    assert b.transport.heard() == {}


async def posing(world: TlsWorld, private: bytes, chain: bytes, listen: str = "127.0.0.1:0") -> str:
    """Address of a server that shows these papers and would take any client."""
    server = aio.server(options=SERVER_OPTIONS)
    port = server.add_secure_port(listen, grpc.ssl_server_credentials([(private, chain)], stamp(), True))
    await server.start()

    async def close() -> None:
        await server.stop(0)

    world.closers.append(close)
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("known_before", [False, True])
def test_a_server_with_the_peers_names_but_not_its_key_is_not_spoken_to(known_before: bool, seed: int) -> None:
    """Names copied, stamped by the issuer that everybody has. `known_before`: the right peer was seen there just now."""

    async def case(world: TlsWorld) -> None:
        a, b = await two(world)
        address = b.transport.address
        if known_before:
            a.transport.send(b.name, note(1))
            await b.message()
        await world.kill(b)
        await posing(world, papers(3).key, papers(3).client + stamp(), address)
        failed = a.transport.counts().get("failed_dials", 0)
        with pytest.raises(PeerError, match="CERTIFICATE_VERIFY_FAILED" if known_before else "is another peer"):
            await a.send_bytes(b, bytes(4))
        assert a.transport.counts()["failed_dials"] > failed

    assert PIN_S > 10, "the second case needs the first certificate still pinned"
    run(case, seed)


@on_tls
async def test_what_is_no_node_at_all_is_said(world: TlsWorld) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    private, public = _ec_key()
    web = await posing(world, private, _stamped(public))
    mail = await asyncio.start_server(greet, "127.0.0.1", 0)
    sayings = {
        f"127.0.0.1:{mail.sockets[0].getsockname()[1]}": "does not speak our protocol: no TLS",
        web: "is no node of ours",
        world.dead_address(): "connection refused",
        "nonsense": "is no node of ours: it shows address 'nonsense' is not HOST:PORT",
    }
    async with mail:
        for address, saying in sayings.items():
            with pytest.raises(PeerError, match=saying):
                await describe(address, world.asker(0)._asking(peer(1)))


# ---- coming back


@on_tls
async def test_a_restarted_peer_is_found_at_its_address(world: TlsWorld) -> None:
    a, b = await two(world)
    a.transport.send(b.name, note(1))
    await b.message()
    await world.kill(b)
    await until(lambda: a.transport.counts().get("broken_streams", 0) > 0)
    a.transport.send(b.name, note(2))
    await until(lambda: a.transport.counts().get("failed_dials", 0) > 0)
    again = await world.node(b.name, incarnation=2, listen=b.transport.address)
    got = await again.message()
    a.transport.send(b.name, note(3))
    assert (got, await again.message()) == (note(2), note(3))


@on_tls
async def test_a_peer_that_moved_is_found(world: TlsWorld) -> None:
    a, b = await two(world)
    a.transport.send(b.name, note(1))
    await b.message()
    await world.kill(b)
    moved = await world.node(b.name, incarnation=2)
    moved.transport.introduce(a.name, a.transport.address)
    moved.transport.send(a.name, note(2))
    assert await a.message() == note(2)
    await a.send_bytes(moved, bytes(8))
    assert (await moved.payload())[2] == bytes(8)


# ---- noise


def test_noise_costs_nothing_that_stays(seed: int) -> None:
    """Raw connections that say anything but a handshake: the node goes on, its memory and its descriptors do not grow."""

    async def case(world: TlsWorld) -> None:
        a, b = await two(world)
        host, port = a.transport.address.rsplit(":", 1)
        process, rng, now = psutil.Process(os.getpid()), Random(seed), SimpleNamespace()
        for round_ in ("warm", "end"):
            for _ in range(12):
                await asyncio.gather(*(shout(host, int(port), garbage(rng)) for _ in range(25)))
            b.transport.send(a.name, note(1))
            assert await a.message() == note(1)
            gc.collect()
            setattr(now, round_, (process.memory_info().rss, process.num_fds()))
        assert now.end[0] - now.warm[0] < 8 << 20
        assert now.end[1] <= now.warm[1] + 5

    run(case, seed)


async def shout(host: str, port: int, data: bytes) -> None:
    """Say it, and wait until the node hangs up; some hang up themselves."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        if data[:1] != b"\x16":  # what begins like a handshake may be waited for by the node
            await within(reader.read())
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
