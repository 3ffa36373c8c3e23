"""What every `PeerTransport` does, on the fake and on the real one."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from node.ports import PeerError, UnusableError
from protocol.version import PROTOCOL_VERSION
from tests.conformance.transport_worlds import Node, World, beat, header, note, on_both, on_grpc, until, within

MIB = 1 << 20


async def pair(world: World, **settings: object) -> tuple[Node, Node]:
    a = await world.node("peer-a", **settings)
    return a, await world.node("peer-b", known=(a,), **settings)


# ---- messages


@on_both
async def test_messages_keep_their_order(world: World) -> None:
    a, b = await pair(world)
    for number in range(300):
        a.transport.send("peer-b", note(number))
    assert [await b.message() for _ in range(300)] == [note(number) for number in range(300)]


@on_both
async def test_sender_and_incarnation_come_with_a_message(world: World) -> None:
    a = await world.node("peer-a", incarnation=7)
    b = await world.node("peer-b", known=(a,))
    a.transport.send("peer-b", note(1))
    assert await within(b.messages.get()) == ("peer-a", 7, note(1))
    assert b.transport.heard().keys() == {"peer-a"}
    assert 0 <= b.transport.heard()["peer-a"] < 5


@on_both
async def test_a_message_to_oneself_arrives_like_any_other(world: World) -> None:
    a = await world.node("peer-a", incarnation=3)
    a.transport.send("peer-a", note(1))
    assert a.messages.empty(), "delivered before send returned"
    assert await within(a.messages.get()) == ("peer-a", 3, note(1))


@on_both
async def test_without_an_address_messages_are_dropped_and_counted(world: World) -> None:
    a = await world.node("peer-a")
    a.transport.send("peer-b", note(1))
    assert a.transport.counts()["unaddressed"] == 1
    handle = a.put(bytes(8))
    with pytest.raises(PeerError, match="address is not known"):
        await a.transport.send_payload("peer-b", header(1), handle)
    a.pool.release(handle)


@on_both
async def test_a_peer_that_called_can_be_answered(world: World) -> None:
    a, b = await world.node("peer-a"), await world.node("peer-b")
    a.transport.introduce("peer-b", b.transport.address)
    a.transport.send("peer-b", note(1))
    await b.message()
    b.transport.send("peer-a", note(2))
    assert await a.message() == note(2)


@on_both
async def test_a_full_queue_drops_heartbeats_first(world: World) -> None:
    a = await world.node("peer-a", max_queued_messages=8, backoff_first_s=0.01, backoff_last_s=0.02)
    b = await world.node("peer-b")
    b_address = b.transport.address
    a.transport.introduce("peer-b", world.dead_address())
    for number in range(10):
        a.transport.send("peer-b", beat(number))
    for number in range(10):
        a.transport.send("peer-b", note(number))
    counts = a.transport.counts()
    assert (counts["dropped_heartbeats"], counts["dropped_messages"]) == (10, 2)
    assert a.transport.queues()["messages"] == 8
    a.transport.introduce("peer-b", b_address)
    assert [await b.message() for _ in range(8)] == [note(number) for number in range(8)]


# ---- payloads


@on_both
async def test_payloads_arrive_whole_and_in_order(world: World) -> None:
    a, b = await pair(world, chunk_bytes=4096)
    sent = [world.rng.randbytes(size) for size in (4, 4096, 4100, 40_000, 8)]
    async with asyncio.TaskGroup() as group:
        for tag, data in enumerate(sent):
            group.create_task(a.send_bytes(b, data, tag))
    for tag, data in enumerate(sent):
        assert await b.payload() == ("peer-a", header(tag), data)


@on_both
async def test_a_stream_may_be_opened_ahead_to_whoever_is_there_or_not(world: World) -> None:
    a, b = await pair(world, backoff_first_s=0.01, backoff_last_s=0.02)
    a.transport.introduce("peer-c", world.dead_address())
    for peer in ("peer-a", "peer-b", "peer-b", "peer-c", "a stranger"):
        a.transport.connect(peer)
    await a.send_bytes(b, b"12345678", 3)
    assert await b.payload() == ("peer-a", header(3), b"12345678")
    handle = a.put(bytes(8))
    with pytest.raises(PeerError):
        await a.transport.send_payload("peer-c", header(4), handle)
    a.pool.release(handle)


@on_grpc
async def test_a_stream_that_is_opened_ahead_is_there_before_the_payload(world: World) -> None:
    a, b = await pair(world)
    a.transport.connect("peer-b")
    await until(lambda: "peer-a" in b.transport.heard() and "peer-b" in a.transport.heard())
    assert (b.messages.empty(), b.payloads.empty()) == (True, True)


@on_both
async def test_a_large_payload_in_frames_over_grpcs_default_limit(world: World) -> None:
    a, b = await pair(world, chunk_bytes=4 * MIB)
    data = world.rng.randbytes(MIB) * 64
    async with asyncio.TaskGroup() as group:
        group.create_task(a.send_bytes(b, data))
        _, _, received = await b.payload()
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()


@on_both
async def test_a_payload_to_oneself_is_a_second_hold_on_the_same_buffer(world: World) -> None:
    a = await world.node("peer-a")
    handle = a.put(bytes(4096))
    await a.transport.send_payload("peer-a", header(5), handle)
    assert await within(a.payloads.get()) == ("peer-a", header(5), handle, 4096)
    a.pool.release(handle)
    assert a.pool.num_live == 1
    a.pool.release(handle)


@on_both
async def test_both_directions_at_once_with_slow_readers(world: World) -> None:
    """4 MiB payloads fill every window in both directions; nobody waits for anybody's reading."""
    a, b = await pair(world)
    world.paces = [400e6]
    data = bytes(4 * MIB)
    async with asyncio.TaskGroup() as group:
        for tag in range(12):
            group.create_task(a.send_bytes(b, data, tag))
            group.create_task(b.send_bytes(a, data, tag))
        for tag in range(12):
            assert [(await node.payload())[1] for node in (a, b)] == [header(tag)] * 2


@on_both
async def test_heartbeats_pass_a_payload_on_its_way_to_a_slow_receiver(world: World) -> None:
    world.slow()
    a, b = await pair(world)
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(a.send_bytes(b, bytes(32 * MIB)))
        await until(lambda: a.transport.queues()["payloads"] == 1)
        for number in range(20):
            a.transport.send("peer-b", beat(number))
            assert await b.message() == beat(number)
            if number % 5 == 0:
                b.transport.send("peer-a", beat(number))
                assert await a.message() == beat(number)
        assert not sending.done(), "the payload was too fast to prove anything"
        assert b.payloads.empty()
        world.fast()
        await b.payload()


@on_both
async def test_a_payload_over_the_receivers_limit_is_refused(world: World) -> None:
    a = await world.node("peer-a")
    b = await world.node("peer-b", known=(a,), max_payload_bytes=MIB)
    with pytest.raises(PeerError, match="at most 1048576 are allowed"):
        await a.send_bytes(b, bytes(32 * MIB))
    assert b.transport.counts()["refused_size"] == 1
    await a.send_bytes(b, bytes(MIB))
    assert (await b.payload())[2] == bytes(MIB)


@on_grpc
async def test_limits_can_follow_the_manifest(world: World) -> None:
    a, b = await pair(world)
    b.transport.tune(chunk_bytes=MIB, max_payload_bytes=MIB)
    a.transport.tune(chunk_bytes=4096, max_payload_bytes=MIB)
    await a.send_bytes(b, bytes(MIB))
    await b.payload()
    assert a.counted["reduce", "out"] > MIB + 256 * 8, "chunks of 4096 bytes have more heads"
    with pytest.raises(PeerError, match="at most 1048576"):
        await a.send_bytes(b, bytes(32 * MIB))


@on_both
async def test_the_queue_of_payloads_is_bounded(world: World) -> None:
    world.slow()
    a, b = await pair(world, max_queued_payloads=2)
    async with asyncio.TaskGroup() as group:
        for tag in range(2):
            group.create_task(a.send_bytes(b, bytes(16 * MIB), tag))
        await until(lambda: a.transport.queues()["payloads"] == 2)
        with pytest.raises(PeerError, match="wait for it already"):
            await a.send_bytes(b, bytes(8))
        world.fast()
        for tag in range(2):
            assert (await b.payload())[1] == header(tag)


# ---- who may speak to whom


@on_both
async def test_another_run_is_refused_with_a_sentence(world: World) -> None:
    a = await world.node("peer-a", run_id="run-other")
    b = await world.node("peer-b", known=(a,))
    a.transport.send("peer-b", note(1))
    await until(lambda: bool(a.refused))
    assert a.refused == [("peer-b", "this node belongs to run run-1, not to run-other")]
    with pytest.raises(PeerError, match="this node belongs to run run-1, not to run-other"):
        await a.send_bytes(b, bytes(8))
    assert b.transport.counts()["refused_run"] >= 1
    assert b.messages.empty() and b.payloads.empty()
    assert b.transport.heard() == {}


@on_both
async def test_another_version_is_refused_with_a_sentence(world: World) -> None:
    a = await world.node("peer-a", protocol_version=99)
    b = await world.node("peer-b", known=(a,))
    a.transport.send("peer-b", note(1))
    await until(lambda: bool(a.refused))
    [(peer, sentence)] = a.refused
    assert peer == "peer-b"
    assert f"protocol version {PROTOCOL_VERSION}, you speak 99: install the version" in sentence
    assert b.messages.empty()


@on_both
async def test_a_message_never_reaches_another_peer_at_the_same_address(world: World) -> None:
    a, c = await world.node("peer-a"), await world.node("peer-c")
    a.transport.introduce("peer-b", c.transport.address)
    a.transport.send("peer-b", note(1))
    await until(lambda: c.transport.counts().get("refused_peer", 0) > 1)
    with pytest.raises(PeerError, match="peer peer-b is not here: this is peer-c"):
        await a.send_bytes(Node("peer-b", None, a.pool, [], a.counted), bytes(8))
    assert c.messages.empty()
    assert c.payloads.empty()
    assert a.refused == [], "a wrong address is no word of the run"


@on_both
async def test_an_older_incarnation_is_refused(world: World) -> None:
    a_new, b = await pair(world)
    a_old = await world.node("peer-a", incarnation=0)
    a_old.transport.introduce("peer-b", b.transport.address)
    a_new.transport.send("peer-b", note(1))
    assert await b.message() == note(1)
    a_old.transport.send("peer-b", note(2))
    await until(lambda: bool(a_old.refused))
    assert "is older" in a_old.refused[0][1]
    assert b.transport.counts()["refused_stale"] >= 1
    a_new.transport.send("peer-b", note(3))
    assert await b.message() == note(3)


@on_both
async def test_an_address_in_use_is_one_clear_line(world: World) -> None:
    a = await world.node("peer-a")
    with pytest.raises(UnusableError) as caught:
        await world.node("peer-b", listen=a.transport.address)
    assert caught.value.code == 2
    assert str(caught.value) == (
        f"cannot listen on {a.transport.address}: the port is in use; choose another --listen HOST:PORT"
    )


@on_both
async def test_a_listen_address_must_have_a_port(world: World) -> None:
    for bad in ("127.0.0.1", ":1", "127.0.0.1:x", "127.0.0.1:65536", ""):
        with pytest.raises(UnusableError, match=r"--listen .* is not HOST:PORT"):
            await world.node("peer-b", listen=bad)


# ---- broken streams


@on_both
async def test_a_peer_that_dies_amid_a_payload_is_a_peer_error(world: World) -> None:
    world.slow()
    a, b = await pair(world)
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(outcome(a.send_bytes(b, bytes(64 * MIB))))
        await until(lambda: a.transport.queues()["payloads"] == 1)
        await b_is_receiving(world, b)
        await world.kill(b)
        assert isinstance(await within(sending), PeerError)
    assert b.payloads.empty()


async def outcome(action: object) -> object:
    try:
        return await action  # type: ignore[misc]
    except PeerError as error:
        return error


async def b_is_receiving(world: World, b: Node) -> None:
    if world.real:
        await until(lambda: b.transport.queues()["assembly_bytes"] > 0)


@on_both
async def test_payloads_to_a_dead_peer_fail_together(world: World) -> None:
    a = await world.node("peer-a")
    b = await world.node("peer-b")
    a.transport.introduce("peer-b", world.dead_address())
    async with asyncio.TaskGroup() as group:
        sends = [group.create_task(outcome(a.send_bytes(b, bytes(8), tag))) for tag in range(20)]
    assert all(isinstance(send.result(), PeerError) for send in sends)
    assert a.transport.counts().get("failed_dials", 1) == 1


@on_both
async def test_a_receiver_that_stops_reading_is_a_peer_error(world: World) -> None:
    a, b = await pair(world, progress_s=0.5)
    await world.stop_reading(b)
    with pytest.raises(PeerError, match=r"took no bytes for 0\.5 s"):
        await a.send_bytes(b, bytes(64 * MIB))


@on_both
async def test_what_is_queued_goes_out_when_the_peer_is_back_at_its_address(world: World) -> None:
    a, b = await pair(world)
    a.transport.send("peer-b", note(1))
    assert await b.message() == note(1)
    address = b.transport.address
    await world.kill(b)
    await until(lambda: isinstance_broken(world, a))
    for number in range(2, 5):
        a.transport.send("peer-b", note(number))
    again = await world.node("peer-b", incarnation=2, listen=address)
    assert [await again.message() for _ in range(3)] == [note(number) for number in range(2, 5)]
    await a.send_bytes(again, b"back")
    assert (await again.payload())[2] == b"back"


def isinstance_broken(world: World, a: Node) -> bool:
    return not world.real or a.transport.counts().get("broken_streams", 0) > 0


@on_both
async def test_a_peer_that_moved_is_found_by_introduction(world: World) -> None:
    a, b = await pair(world)
    await a.send_bytes(b, b"here")
    await b.payload()
    await world.kill(b)
    again = await world.node("peer-b", incarnation=2)
    a.transport.introduce("peer-b", again.transport.address)
    a.transport.send("peer-b", note(1))
    assert await again.message() == note(1)
    await a.send_bytes(again, b"thither.")
    assert (await again.payload())[2] == b"thither."


@on_both
async def test_a_peer_that_moved_is_found_because_it_calls(world: World) -> None:
    a, b = await pair(world)
    b.transport.send("peer-a", note(1))
    await a.message()
    await world.kill(b)
    again = await world.node("peer-b", incarnation=2)
    again.transport.introduce("peer-a", a.transport.address)
    again.transport.send("peer-a", note(2))
    assert await a.message() == note(2)
    a.transport.send("peer-b", note(3))
    assert await again.message() == note(3)


@on_both
async def test_forgetting_a_peer_ends_what_goes_to_it(world: World) -> None:
    world.slow()
    a, b = await pair(world)
    a.transport.send("peer-b", note(1))
    await b.message()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(outcome(a.send_bytes(b, bytes(64 * MIB))))
        await until(lambda: a.transport.queues()["payloads"] == 1)
        a.transport.forget("peer-b")
        assert isinstance(await within(sending), PeerError)
    a.transport.send("peer-b", note(2))
    assert a.transport.counts()["unaddressed"] == 1
    assert "peer-b" not in a.transport.heard()


# ---- the end


@on_both
async def test_closing_takes_less_than_two_seconds_whatever_the_peers_do(world: World) -> None:
    """One peer is dead, one does not read, one never answers; messages and payloads wait for all of them."""
    a, b = await pair(world, progress_s=60.0)
    dead = await world.node("peer-d", known=(a,))
    await world.kill(dead)
    a.transport.introduce("peer-u", await world.silent_address())
    unreachable = Node("peer-u", None, b.pool, [], b.counted)
    await world.stop_reading(b)
    async with asyncio.TaskGroup() as group:
        sends = [group.create_task(outcome(a.send_bytes(node, bytes(32 * MIB)))) for node in (b, b, dead, unreachable)]
        for peer in ("peer-b", "peer-d", "peer-u"):
            a.transport.send(peer, note(1))
        await until(lambda: a.transport.queues()["payloads"] >= 2)
        began = asyncio.get_running_loop().time()
        await a.transport.close()
        await asyncio.wait(sends)
        assert asyncio.get_running_loop().time() - began < 2.0
    assert all(isinstance(send.result(), PeerError) for send in sends)
    assert a.pool.num_live == 0


@on_both
async def test_after_closing_nothing_is_sent_or_delivered(world: World) -> None:
    a, b = await pair(world)
    await a.transport.close()
    await a.transport.close()
    a.transport.send("peer-b", note(1))
    with pytest.raises(PeerError, match="closing"):
        await a.send_bytes(b, bytes(8))
    b.transport.send("peer-a", note(1))
    await until(lambda: b.transport.queues()["messages"] == 1 or b.transport.counts().get("failed_dials", 0) > 0)
    assert a.messages.empty()


# ---- numbers


@on_both
async def test_bytes_are_counted_by_kind_and_alike_at_both_ends(world: World) -> None:
    a, b = await pair(world)
    a.transport.send("peer-b", beat(1))
    a.transport.send("peer-b", note(1))
    await a.send_bytes(b, bytes(MIB))
    for _ in range(2):
        await b.message()
    await b.payload()
    assert MIB <= a.counted["reduce", "out"] < MIB + 4096
    for kind in ("heartbeat", "control", "reduce"):
        assert b.counted[kind, "in"] >= a.counted[kind, "out"] > 0, kind
    assert b.counted["heartbeat", "in"] == a.counted["heartbeat", "out"]
    assert b.counted["reduce", "in"] == a.counted["reduce", "out"]
