"""Invites: round trip, and every way in which people damage them is named."""

from __future__ import annotations

import string
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.identity import _base58
from protocol.invite import MAX_ADDRESSES, PREFIX, Invite, _encode, mint, parse
from protocol.version import PROTOCOL_VERSION

PEER = "QmZ5y8Tb1L6cZKhHcxxJwzjnWFe6GGq9V4gkm7pBRNiVbG"
ADDRESS = f"/ip4/203.0.113.7/tcp/4000/p2p/{PEER}"
INVITE = Invite((ADDRESS, f"/dns4/run.example.org/tcp/31337/p2p/{PEER}"), "0a" * 32, "my-run", "fe" * 32)

peers = st.integers(58**45, 58**46 - 1).map(lambda number: _base58(number.to_bytes(34)))
hosts = st.sampled_from(["ip4/203.0.113.7", "ip4/10.0.0.1", "ip6/2001:db8::1", "dns/a", "dns4/run.example.org"])
addresses = st.builds("/{}/tcp/{}/p2p/{}".format, hosts, st.integers(1, 65535), peers)
keys = st.binary(min_size=32, max_size=32).map(bytes.hex)
invites = st.builds(
    Invite,
    st.lists(addresses, min_size=1, max_size=MAX_ADDRESSES).map(tuple),
    keys,
    st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=31),
    st.one_of(st.just(""), keys),
)


@given(invites)
def test_round_trip(invite: Invite) -> None:
    token = mint(invite)
    assert token.startswith(PREFIX)
    assert not set(token.removeprefix(PREFIX)) - set(string.ascii_letters + string.digits + "-_")
    assert parse(token) == invite


@given(st.data())
def test_any_single_wrong_character_is_noticed(data: st.DataObject) -> None:
    token = mint(data.draw(invites))
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from((string.ascii_letters + string.digits + "-_:").replace(token[at], "")))
    with pytest.raises(ValueError, match="invite"):
        parse(token[:at] + other + token[at + 1 :])


def test_the_last_character_too() -> None:
    """Its low bits belong to no byte; a decoder that ignores them would let some changes pass."""
    for name in ("a", "ab", "abc"):
        token = mint(replace(INVITE, name=name))
        for other in set(string.ascii_letters + string.digits + "-_") - {token[-1]}:
            with pytest.raises(ValueError, match="mistyped"):
                parse(token[:-1] + other)


def test_every_truncation_is_noticed() -> None:
    token = mint(INVITE)
    for size in range(len(PREFIX), len(token)):
        with pytest.raises(ValueError, match=r"truncated|mistyped"):
            parse(token[:size])


def test_what_pasting_adds_is_ignored() -> None:
    token = mint(INVITE)
    assert parse(f"  {token[:60]}\n  {token[60:]} \n") == INVITE


def test_two_invites_pasted_together() -> None:
    with pytest.raises(ValueError, match="mistyped"):
        parse(mint(INVITE) + mint(INVITE).removeprefix(PREFIX))


@pytest.mark.parametrize("text", ["", "regrow", "/ip4/1.2.3.4/tcp/5", "regrow2:AAAA", "Regrow1:AAAA"])
def test_something_else(text: str) -> None:
    with pytest.raises(ValueError, match="does not start with 'regrow1:'"):
        parse(text)


def test_another_version_is_named_even_if_the_rest_is_unknown() -> None:
    body = struct.pack(">H", PROTOCOL_VERSION + 1) + b"who knows"
    data = struct.pack(">H", len(body)) + body
    data += struct.pack(">I", zlib.crc32(data))
    with pytest.raises(ValueError, match=rf"version {PROTOCOL_VERSION + 1}, this program speaks {PROTOCOL_VERSION}: install"):
        parse(PREFIX + _encode(data))


@given(st.binary(max_size=200))
def test_hostile_contents_are_one_line(contents: bytes) -> None:
    """A right checksum proves nothing: whoever mints a token can put anything into it."""
    body = struct.pack(">H", PROTOCOL_VERSION) + contents
    data = struct.pack(">H", len(body)) + body
    data += struct.pack(">I", zlib.crc32(data))
    with pytest.raises(ValueError, match="contents are wrong") as caught:
        parse(PREFIX + _encode(data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (f"/ip4/203.0.113.7/tcp/0/p2p/{PEER}", "--announce.*port 0"),
        (f"/ip4/0.0.0.0/tcp/4000/p2p/{PEER}", r"--announce.*0\.0\.0\.0 cannot be dialled"),
        (f"/ip6/::/tcp/4000/p2p/{PEER}", "--announce.*:: cannot be dialled"),
        ("/ip4/203.0.113.7/tcp/4000", "does not end in /p2p/"),
        ("203.0.113.7:4000", "not of the form"),
    ],
)
def test_addresses_that_nobody_can_dial_are_not_minted(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        mint(replace(INVITE, addresses=(address,)))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(INVITE, addresses=()),
        replace(INVITE, addresses=(ADDRESS,) * 4),
        replace(INVITE, name="No Slug"),
        replace(INVITE, manifest_digest="12"),
        replace(INVITE, organiser="xyz"),
    ],
)
def test_no_impossible_invite_is_minted(wrong: Invite) -> None:
    with pytest.raises(ValueError, match=r"address|name|digest|key"):
        mint(wrong)
