"""Ids and bitmaps as bytes: each has one form, short where it is of a kind that we use, and comes again as a number."""

from __future__ import annotations

import hashlib
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.identity import load_or_create
from node.transport.bits import put_bits, put_places, put_rows, take_bits, take_places, take_rows
from node.transport.checks import WireError
from node.transport.frames import decode_message, encode_message
from node.transport.names import (
    HASH_SLOTS,
    MAX_NAME_CHARS,
    SLOTS,
    Names,
    _short_literal,
    peer_id,
    put_id,
    put_ids,
    take_id,
    take_ids,
)
from protocol.ids import Ballot, bitmap
from protocol.messages import Contact, Heartbeat, Hop, Message, OpenStep, RecordsWanted, Route, SeatWork

HASH = "0f" * 16
PEER = peer_id(hashlib.sha256(b"somebody").digest())
SIZES = {HASH: 17, HASH * 2: 33, HASH[:16]: 9, PEER: 33, "10.0.0.1:31337": 7, "": 2, "peer-a": 8}
ALMOST = [
    HASH.upper(),
    HASH[:-1],
    PEER[:-1] + "0",
    "1" + PEER[1:],
    "10.0.0.256:1",
    "10.0.0.01:1",
    "10.0.0.1:65536",
    "10.0.0.1:080",
    "１.0.0.1:1",
    "[::1]:31337",
]


@pytest.mark.parametrize("text", [*SIZES, *ALMOST])
def test_an_id_is_the_same_again(text: str) -> None:
    data = put_id(text, None)
    assert take_id(data, 0, None) == (text, len(data))
    assert len(data) == SIZES.get(text, 2 + len(text.encode()))


def test_a_real_peer_id_is_short(tmp_path: object) -> None:
    peer = load_or_create(tmp_path).peer  # type: ignore[arg-type]
    assert len(put_id(peer, None)) == 33


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes_are_the_one_form_of_their_ids_or_refused(data: bytes) -> None:
    try:
        ids = take_ids(data, None)
    except WireError:
        return
    assert put_ids(ids, None) == data


def test_both_ends_keep_the_same_names() -> None:
    """More names than there are slots, in any order; each comes again as one or two bytes as long as it has a slot."""
    rng, mine, theirs = Random(1), Names(), Names()
    known = [f"peer {n}" for n in range(2 * SLOTS)]
    short = 0
    known[::9] = [hashlib.sha256(b"%d" % n).hexdigest()[:32] for n in range(len(known[::9]))]
    for _ in range(12000):
        ids = tuple(rng.choices(known[: rng.choice((8, 600, 2 * SLOTS))], k=rng.randrange(4)))
        data = put_ids(ids, mine)
        assert take_ids(data, theirs) == ids
        short += len(data) <= 2 * len(ids)
    assert short > 4000


@pytest.mark.parametrize("text", ["x" * (MAX_NAME_CHARS + 1), "\U0001f600"])
def test_a_name_that_would_take_much_room_is_told_in_full_each_time(text: str) -> None:
    mine, theirs = Names(), Names()
    for _ in range(2):
        data = put_ids((text, "x"), mine)
        assert len(data) > len(text) and take_ids(data, theirs) == (text, "x")


def test_long_texts_of_strangers_are_not_kept() -> None:
    before = _short_literal.cache_info().currsize
    for n in range(64):
        take_id(put_id(f"{n}" + "x" * MAX_NAME_CHARS, None), 0, None)
    assert _short_literal.cache_info().currsize == before


def test_the_slot_after_the_last_is_the_first() -> None:
    mine, theirs = Names(), Names()
    for n in range(SLOTS + 1):
        take_ids(put_ids((f"{n}",), mine), theirs)
    slot_of = mine.others.slot_of
    assert "0" not in slot_of and slot_of[f"{SLOTS}"] == 0
    assert slot_of["1"] == 1 and theirs.others.at(0) == f"{SLOTS}"


def test_however_many_records_come_a_peer_keeps_its_slot() -> None:
    mine, theirs = Names(), Names()
    take_ids(put_ids((PEER,), mine), theirs)
    for n in range(HASH_SLOTS + SLOTS):
        take_ids(put_ids((hashlib.sha256(b"%d" % n).hexdigest()[:32],), mine), theirs)
    assert len(mine.hashes.slot_of) == len(theirs.hashes.slot_of) == HASH_SLOTS
    data = put_ids((PEER,), mine)
    assert len(data) == 1 and take_ids(data, theirs) == (PEER,)


def test_a_stream_takes_no_more_memory_than_the_docs_say() -> None:
    """All slots full of names as long as may be, each told in full."""
    names = Names()
    tracemalloc.start()
    try:
        for n in range(2 * SLOTS):
            names.told(f"{n}".zfill(MAX_NAME_CHARS), 0)
            names.told(f"{n:032x}", 1)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"\x10", b"\x2f", b"\x31", b"\xf0\x00", b"\xf0", b"\xff\xff"])
def test_a_number_without_a_name_is_refused(data: bytes) -> None:
    names = Names()
    take_id(put_id("only one", None), 0, names)
    assert take_id(b"\x30", 0, names) == ("only one", 1)
    with pytest.raises(WireError):
        take_id(data, 0, names)


@given(st.sets(st.integers(0, 4095), max_size=200))
def test_a_bitmap_is_the_same_again(members: set[int]) -> None:
    bits = bitmap(members)
    assert take_bits(put_bits(bits)) == bits
    assert take_rows(put_rows((bits, "0", bits))) == (bits, "0", bits)


@given(st.lists(st.integers(0, 8191), max_size=300), st.integers(0, 13))
def test_places_are_the_same_again(places: list[int], bits: int) -> None:
    few = tuple(place & ((1 << bits) - 1) for place in places)
    assert take_places(put_places(few)) == few


@settings(max_examples=200)
@given(st.binary(max_size=12))
def test_any_bytes_are_the_one_form_of_places_or_refused(data: bytes) -> None:
    try:
        places = take_places(data)
    except WireError:
        return
    assert put_places(places) == data


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"\x00\x00",
        b"\x01",
        b"\x01\x01",
        b"\x01\x02\x01",
        b"\x01\x01\x03",
        b"\x01\x00\x00",
        b"\x81\x20\x00",
        b"\x01\x0e\x00\x20",
    ],
)
def test_places_in_another_form_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        take_places(data)


def test_the_owners_of_64_microbatches_take_as_many_bytes_as_they_need() -> None:
    assert len(put_places(tuple(m % 2 for m in range(64)))) == 2 + 8
    assert len(put_places(tuple(m % 30 for m in range(64)))) == 2 + 40


def test_a_bitmap_is_short() -> None:
    assert len(put_bits("0")) == 0
    assert len(put_bits(bitmap(range(64)))) == 9
    assert len(put_bits(bitmap([5, 60]))) == 3


@pytest.mark.parametrize(
    "data",
    [
        *(b"\x00", b"\x00\x00\x01", b"\x01" * 10, b"\x01\x00", b"\x01\xff\xff\x7f"),
        *(b"\x02\x01", b"\x01\x80\x00", b"\x01\x81", b"\x00" + b"\xff" * 600, b"\x01\x01"),
    ],
)
def test_a_bitmap_in_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        take_bits(data)


@settings(max_examples=200)
@given(st.binary(max_size=12))
def test_any_bytes_are_the_one_form_of_a_bitmap_or_refused(data: bytes) -> None:
    try:
        bits = take_bits(data)
    except WireError:
        return
    assert put_bits(bits) == data


# ---- messages on one stream

BALLOT = Ballot(3, PEER)


def an_open_step() -> OpenStep:
    peers = [peer_id(hashlib.sha256(b"%d" % n).digest()) for n in range(33)]
    route = Route(4, tuple(Hop(stage, peer) for stage, peer in enumerate(peers)))
    contacts = tuple(Contact(peer, f"10.0.0.{n}:31337") for n, peer in enumerate(peers[:6]))
    return OpenStep(BALLOT, 7, 1, HASH, (SeatWork(0, "active", 0, (4,)),), (route,), contacts, tuple(peers[:6]))


def on_one_stream(*messages: Message) -> list[int]:
    """Sizes as written; each is read as it was."""
    mine, theirs, sizes = Names(), Names(), []
    for message in messages:
        data = encode_message(message, mine)
        assert decode_message(data, theirs) == message
        sizes.append(len(data))
    return sizes


def test_what_is_named_again_is_short() -> None:
    first, second = on_one_stream(an_open_step(), an_open_step())
    assert first > 1200 and second < 160


def test_a_heartbeat_is_small() -> None:
    """64 bytes with gRPC's prefix and the frame's header, from the second one on, also where the head is another."""
    others = [hashlib.sha256(b"%d" % step).hexdigest()[:32] for step in range(3)]
    beats = [Heartbeat(3, Ballot(3, PEER), head, 20_000 + n, 2001) for n, head in enumerate(others)]
    sizes = on_one_stream(beats[0], *beats)
    assert sizes[0] <= 96 and max(sizes[1:]) <= 64 - 14, sizes


def test_a_name_is_not_known_on_another_stream() -> None:
    mine = Names()
    encode_message(RecordsWanted(HASH), mine)
    with pytest.raises(WireError, match=r"RecordsWanted\.head.*name 0 of 0"):
        decode_message(encode_message(RecordsWanted(HASH), mine), Names())
