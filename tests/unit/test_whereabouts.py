"""What is told of a node's addresses, and to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.config import NodeSettings
from node.ports import UnusableError
from node.reach import announced, is_mine, is_private
from node.whereabouts import Whereabouts

PUBLIC, PRIVATE = "8.8.4.4:28480", "192.168.1.5:28480"
PEER = "QmWk4D3inzEH9vrPWamP7Em63XkB36wmQEyRn9JJL2mHN2"
INVITE = (f"/ip4/1.1.1.1/tcp/28481/p2p/{PEER}",)


def where(bound: str, towards: tuple[str, ...] = INVITE, is_local: bool = False, **settings: Any) -> Whereabouts:
    return Whereabouts.guess(NodeSettings(state_dir=Path("x"), threads=1, **settings), bound, towards, is_local)


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("8.8.4.4", False),
        ("2606:4700::1", False),
        ("node.example.org", False),
        ("10.1.2.3", True),
        ("172.17.0.1", True),
        ("192.168.0.1", True),
        ("169.254.1.1", True),
        ("100.64.0.1", True),
        ("127.0.0.1", True),
        ("0.0.0.0", True),
        ("203.0.113.5", True),
        ("::1", True),
        ("fd00::2", True),
        ("fe80::1%eth0", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:8.8.4.4", False),
        ("localhost", True),
        ("nas", True),
        ("nas.local", True),
    ],
)
def test_which_hosts_stay_at_home(host: str, private: bool) -> None:
    assert is_private(host) is private


@pytest.mark.parametrize("bound", ["127.0.0.1:5", "[::1]:5", "192.0.2.7:5", "localhost:5"])
def test_a_server_on_one_address_is_reached_there(bound: str) -> None:
    assert announced(bound, INVITE) == bound


@pytest.mark.parametrize(
    ("bound", "towards", "expected"), [("0.0.0.0:5", "/ip4/127.0.0.1", "127.0.0.1:5"), ("[::]:5", "/ip6/::1", "[::1]:5")]
)
def test_a_server_on_all_addresses_is_reached_on_the_way_to_its_peers(bound: str, towards: str, expected: str) -> None:
    other = "/ip6/::1/tcp/1" if towards.startswith("/ip4") else "/ip4/127.0.0.1/tcp/1"
    assert announced(bound, (other, f"{towards}/tcp/1")) == expected, "an address of the other IP version is no help"


def test_own_addresses_are_known() -> None:
    assert is_mine("127.0.0.1")
    assert not is_mine("192.0.2.1")


def test_a_public_address_is_told_at_once() -> None:
    found = where(PUBLIC)
    assert (found.told, found.dht(found.told), found.http("127.0.0.1:1")) == (PUBLIC, "8.8.4.4", "")


def test_a_private_one_is_not_told_before_the_run_is_known_to_be_near() -> None:
    found = where(PRIVATE)
    assert (found.told, found.dht(found.told)) == ("", "")
    assert found.in_run(is_local=False).told == ""
    near = found.in_run(is_local=True)
    assert (near.told, near.dht(near.told), near.http("127.0.0.1:1")) == (PRIVATE, "192.168.1.5", "127.0.0.1:1")
    assert where(PRIVATE, lan=True).in_run(is_local=False).told == PRIVATE


def test_an_invite_to_this_very_machine_is_near_until_the_manifest_says_otherwise() -> None:
    here = (f"/ip4/127.0.0.1/tcp/28481/p2p/{PEER}",)
    assert where("127.0.0.1:5", here).told == "127.0.0.1:5"
    assert where("127.0.0.1:5", here).in_run(is_local=False).told == ""
    assert where("127.0.0.1:5", (*here, *INVITE)).told == ""


def test_what_the_user_announces_comes_first() -> None:
    found = where(PRIVATE, announce="9.9.9.9:40000")
    assert (found.told, found.dht(found.told)) == ("9.9.9.9:40000", "9.9.9.9")
    found = where(PRIVATE, dht_announce="/dns/node.example.org/tcp/1")
    assert (found.told, found.dht("")) == ("", "/dns/node.example.org/tcp/1")


@pytest.mark.parametrize(
    ("option", "given"),
    [("announce", "10.0.0.5:4000"), ("announce", "203.0.113.5:4000"), ("dht_announce", "/ip4/127.0.0.1/tcp/4000")],
)
def test_a_private_address_that_the_user_announces(option: str, given: str) -> None:
    found = where(PUBLIC, **{option: given})
    with pytest.raises(UnusableError, match=f"^--{option.replace('_', '-')} {given}: .*public.*--lan") as caught:
        found.in_run(is_local=False)
    assert caught.value.code == 2
    found.in_run(is_local=True)


def test_a_founder_needs_an_address_that_others_reach() -> None:
    assert where(PUBLIC, ()).for_founder(28481) == PUBLIC
    assert where(PRIVATE, (), lan=True).for_founder(28481) == PRIVATE
    assert where("127.0.0.1:5", (), is_local=True).for_founder(28481) == "127.0.0.1:5"
    with pytest.raises(UnusableError, match=r"192\.168\.1\.5:28480 .*--announce HOST:PORT.*28481.*--lan") as caught:
        where(PRIVATE, ()).for_founder(28481)
    assert caught.value.code == 3
