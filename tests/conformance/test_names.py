"""Ids and bitmaps as bytes: each has one form, short where it is of a kind that we use, and comes again as a number."""

from __future__ import annotations

import hashlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.identity import load_or_create
from node.transport.checks import WireError
from node.transport.frames import decode_message, encode_message
from node.transport.names import (
    MAX_NAME_CHARS,
    SLOTS,
    Names,
    _short_literal,
    peer_id,
    put_bits,
    put_id,
    put_ids,
    put_rows,
    take_bits,
    take_id,
    take_ids,
    take_rows,
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
    for _ in range(8000):
        ids = tuple(rng.choices(known[: rng.choice((8, 600, 2 * SLOTS))], k=rng.randrange(4)))
        data = put_ids(ids, mine)
        assert take_ids(data, theirs) == ids
        short += len(data) <= 2 * len(ids)
    assert short > 4000


def test_a_long_name_is_told_in_full_each_time() -> None:
    mine, theirs, text = Names(), Names(), "x" * (MAX_NAME_CHARS + 1)
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
    assert mine.slot_of("0") is None and mine.slot_of(f"{SLOTS}") == 0
    assert mine.slot_of("1") == 1 and theirs.at(0) == f"{SLOTS}"


@pytest.mark.parametrize("data", [b"\x11", b"\xf0\x00", b"\xf0", b"\xff\xff"])
def test_a_number_without_a_name_is_refused(data: bytes) -> None:
    names = Names()
    names.told("only one")
    with pytest.raises(WireError):
        take_id(data, 0, names)


@given(st.sets(st.integers(0, 4095), max_size=200))
def test_a_bitmap_is_the_same_again(members: set[int]) -> None:
    bits = bitmap(members)
    assert take_bits(put_bits(bits)) == bits
    assert take_rows(put_rows((bits, "0", bits))) == (bits, "0", bits)


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
