"""What every `Directory` does, on the one in memory and on real p2pd processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from node.leases import all_keys, stage_key, to_record
from node.ports import Directory, Lease
from tests.conformance.directory_worlds import NUM_STAGES, RUN_DIGEST, DirectorySwarm, MemorySwarm, RealSwarm, lease

SEARCH_LIMIT_S = 8.0

LIFE_S = 30.0


@pytest.fixture(params=["memory", "real"])
async def swarm(request: pytest.FixtureRequest, tmp_path: Path, no_orphans: str) -> AsyncIterator[DirectorySwarm]:
    if request.param == "memory":
        yield MemorySwarm()
        return
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        yield RealSwarm(tmp_path, tasks, stack)


async def seen(directory: Directory) -> dict[str, Lease]:
    leases = await directory.leases()
    assert [one.peer for one in leases] == sorted({one.peer for one in leases}), "one per peer, sorted"
    return {one.peer: replace(one, dht="") for one in leases}


async def test_everybody_sees_what_anybody_published(swarm: DirectorySwarm) -> None:
    peers = [await swarm.join(name) for name in "abc"]
    expires = swarm.now() + LIFE_S
    claims = [lease(peers[0], expires, 0), lease(peers[1], expires, 1, 2), lease(peers[2], expires)]
    for peer, claim in zip(peers, claims, strict=True):
        await peer.publish(claim)
    for peer in peers:
        assert await seen(peer) == {claim.peer: claim for claim in claims}
    told = {f"{one.dht}/p2p/{one.peer}" for one in await peers[0].leases()}
    assert told == {peer.addresses()[0] for peer in peers}, "a lease tells by which address its peer's directory is entered"


async def test_a_lease_runs_out(swarm: DirectorySwarm) -> None:
    a, b = [await swarm.join(name) for name in "ab"]
    expires = swarm.now() + 1.0
    await a.publish(lease(a, expires, 1))
    await b.publish(lease(b, expires + LIFE_S, 2))
    assert set(await seen(b)) == {a.peer, b.peer}
    await swarm.until(expires + 0.01)
    assert set(await seen(b)) == {b.peer}


async def test_a_renewed_lease_tells_the_news(swarm: DirectorySwarm) -> None:
    a, b = [await swarm.join(name) for name in "ab"]
    expires = swarm.now() + LIFE_S
    await a.publish(lease(a, expires))
    for changed in (lease(a, expires, 1), lease(a, expires, 1, 2), lease(a, expires - 5, 2)):
        await a.publish(changed)
        found = (await seen(b))[a.peer]
        assert found.expires > expires, "a record is not replaced by one of the same or an earlier expiry"
        assert replace(found, expires=0) == replace(changed, expires=0), "older records under other keys do not count"


async def test_a_tombstone_supersedes_at_once(swarm: DirectorySwarm) -> None:
    a, b = [await swarm.join(name) for name in "ab"]
    expires = swarm.now() + LIFE_S
    await a.publish(lease(a, expires, 1))
    await a.publish(lease(a, expires + LIFE_S, 1, leaving=True))
    found = (await seen(b))[a.peer]
    assert found.leaving
    assert expires < found.expires < expires + 1e-3, "it goes when what it buries would have gone"


async def test_a_restarted_peer_supersedes_its_earlier_life(swarm: DirectorySwarm) -> None:
    await swarm.join("first")
    a, b = [await swarm.join(name) for name in "ab"]
    expires = swarm.now() + LIFE_S
    await a.publish(lease(a, expires, 1))
    await a.publish(lease(a, expires, 1, leaving=True))
    await a.close()
    again = await swarm.join("a")
    assert again.peer == a.peer
    await again.publish(lease(again, expires + 1, 2, incarnation=2))
    found = (await seen(b))[a.peer]
    assert (found.incarnation, found.stages, found.leaving) == (2, (2,), False)


async def test_junk_under_our_keys_hides_nothing(swarm: DirectorySwarm) -> None:
    a, b = [await swarm.join(name) for name in "ab"]
    expires = swarm.now() + LIFE_S
    good = to_record(lease(a, expires, 1))
    claims = {peer.peer: lease(peer, expires, 1) for peer in (a, b)}
    for peer in (a, b):
        await peer.publish(claims[peer.peer])
    forged: list[tuple[object, object]] = [
        ("name", good),
        (b"[owner:ssh-rsa AAAA]", good),
        (b"[owner:ssh-rsa " + b"A" * 372 + b"]", good),
        (b"\xff" * 2000, good),
    ]
    malformed: list[tuple[object, object]] = [
        (17, {**good, "address": 5}),
        ("long", {**good, "name": "x" * 5000}),
        ("text", "no record at all"),
        ("deep", [[[[{}]]]]),
        ("raw", b"\xc1 no msgpack"),
    ]
    for key in all_keys(RUN_DIGEST, NUM_STAGES):
        await swarm.plant(key, [*forged, *malformed] if swarm.signs else malformed, expires + 5)
    await swarm.plant(stage_key(RUN_DIGEST, 2), [(None, "a value where subkeys belong")], expires + 6)
    for peer in (a, b):
        met = swarm.malformed(peer)
        async with asyncio.timeout(SEARCH_LIMIT_S):  # below the timeout of a search, far above what one takes
            assert await seen(peer) == claims
        assert swarm.malformed(peer) > met, "the junk was really met"
    await a.publish(lease(a, expires + 7, 1, incarnation=2))
    assert (await seen(b))[a.peer].incarnation == 2


async def test_closing_disturbs_nobody(swarm: DirectorySwarm) -> None:
    a, b, c = [await swarm.join(name) for name in "abc"]
    expires = swarm.now() + LIFE_S
    await c.publish(lease(c, expires, 1))
    await c.close()
    await b.publish(lease(b, expires, 2))
    assert set(await seen(a)) == {b.peer, c.peer}, "what was published stays until it runs out"


async def test_addresses_name_the_peer(swarm: DirectorySwarm) -> None:
    a = await swarm.join("a")
    assert a.addresses()
    assert all(address.endswith(f"/p2p/{a.peer}") for address in a.addresses())
