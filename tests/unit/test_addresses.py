"""Addresses: what is accepted, what is refused and in which words."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.addresses import Multiaddress, check_announce, multiaddress, parse_host_port, parse_multiaddress

PEER = "12D3KooWSE2rfCgYiGHPKoEHQyFsc5SJEdsZ24EvJBzyjCGGDYRw"


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/127.0.0.1/tcp/0",
        f"/ip4/203.0.113.7/tcp/65535/p2p/{PEER}",
        f"/ip6/2001:db8::1/tcp/4000/p2p/{PEER}",
        "/dns4/node-1.example.org/tcp/4000",
    ],
)
def test_multiaddress_round_trip(text: str) -> None:
    assert str(parse_multiaddress(f" {text}\n")) == text


def test_old_word_for_p2p() -> None:
    assert parse_multiaddress(f"/ip4/1.2.3.4/tcp/5/ipfs/{PEER}") == Multiaddress("ip4", "1.2.3.4", 5, PEER)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("127.0.0.1:4000", "not of the form"),
        ("/ip4/127.0.0.1/udp/4000", "not of the form"),
        ("/ip4/127.0.0.1/tcp/4000/", "not of the form"),
        ("/ip4/127.0.0.256/tcp/4000", "not an IP address"),
        ("/ip6/127.0.0.1/tcp/4000", "not an ip6 address"),
        ("/ip4/127.0.0.1/tcp/65536", "port"),
        ("/ip4/127.0.0.1/tcp/٤", "port"),
        ("/dns4/a b/tcp/4000", "host name"),
        ("/ip4/127.0.0.1/tcp/4000/p2p/me", "peer id"),
        ("/ip4/127.0.0.1/tcp/4000/p2p/", "peer id"),
        ("/ip4/" + "1" * 1000, "characters"),
    ],
)
def test_wrong_multiaddresses(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_multiaddress(text)


@given(st.text(max_size=80) | st.text("/ip4tcdns0123456789.:[]", max_size=60))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    for read in (parse_multiaddress, parse_host_port, check_announce):
        with contextlib.suppress(ValueError):
            read(text)


def test_host_and_port() -> None:
    assert parse_host_port("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_host_port("[::1]:80") == ("::1", 80)
    assert parse_host_port("example.org:443") == ("example.org", 443)
    assert multiaddress("::1", 80) == "/ip6/::1/tcp/80"
    assert multiaddress("127.0.0.1", 80, PEER) == f"/ip4/127.0.0.1/tcp/80/p2p/{PEER}"
    assert multiaddress("example.org", 80) == "/dns/example.org/tcp/80"


@pytest.mark.parametrize("text", ["", ":80", "host", "host:", "::1:80", "[::1]", "1.2.3:80", "host:http", "a/b:80"])
def test_wrong_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_host_port(text)


def test_what_may_be_announced() -> None:
    for address in ("203.0.113.7:4000", "[2001:db8::1]:1", "/dns/example.org/tcp/1", "127.0.0.1:4000"):
        check_announce(address)
    for address in ("203.0.113.7:0", "0.0.0.0:4000", "[::]:4000", "/ip4/0.0.0.0/tcp/1", "nonsense"):
        with pytest.raises(ValueError, match="--announce"):
            check_announce(address)
    for address in ("127.0.0.1:4000", "localhost:4000", "/ip6/::1/tcp/1"):
        with pytest.raises(ValueError, match=r"--announce.*only this machine"):
            check_announce(address, loopback_ok=False)
