"""Leases as records: strangers' records are checked field by field, and order decides which one stands."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.leases import MAX_LEASE_S, MAX_STAGES, MAX_TICKET_CHARS, all_keys, following, from_record, keys_of, newest, to_record
from node.ports import Lease

NOW = 1000.0
LEASE = Lease("QmA", 2, "anna", "203.0.113.7:4000", "[::1]:80", (0, 3), 5, True, False, NOW + 30, "regrow-pass1:x")


def test_round_trip() -> None:
    for lease in (LEASE, replace(LEASE, stages=(), http="", leaving=True)):
        assert from_record(to_record(lease), lease.peer, lease.expires, NOW) == lease


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("incarnation", -1),
        ("incarnation", 2**60),
        ("incarnation", True),
        ("incarnation", 1.0),
        ("name", "a\nb"),
        ("name", "x" * 65),
        ("name", b"bytes"),
        ("address", "203.0.113.7"),
        ("address", "203.0.113.7:0"),
        ("address", "x" * 300 + ":1"),
        ("http", "nonsense"),
        ("stages", [1, 1]),
        ("stages", [2, 1]),
        ("stages", [MAX_STAGES]),
        ("stages", [-1]),
        ("stages", ["1"]),
        ("stages", list(range(MAX_STAGES + 1))),
        ("stages", (1,)),
        ("ballot_term", None),
        ("coordinator", 1),
        ("leaving", "no"),
        ("ticket", None),
        ("ticket", b"regrow-pass1:"),
        ("ticket", "x" * (MAX_TICKET_CHARS + 1)),
        ("ticket", "a\nb"),
        ("dht", "203.0.113.7:4000"),
        ("dht", "/ip4/203.0.113.7/tcp/0"),
        ("dht", "/ip4/203.0.113.7/tcp/1/p2p/" + "Q" * 46),
    ],
)
def test_wrong_fields(field: str, value: object) -> None:
    record = {**to_record(LEASE), field: value}
    with pytest.raises(ValueError, match=r"."):
        from_record(record, "QmA", NOW + 30, NOW)


@pytest.mark.parametrize("expires", [NOW + MAX_LEASE_S + 1, math.inf, math.nan, -math.inf, 10**9, "soon", None])
def test_lifetimes_that_nobody_grants(expires: Any) -> None:
    with pytest.raises(ValueError, match="expires"):
        from_record(to_record(LEASE), "QmA", expires, NOW)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
)


@given(st.one_of(plain, st.fixed_dictionaries(dict.fromkeys(to_record(LEASE), plain))))
def test_any_record_is_a_lease_or_a_value_error(record: object) -> None:
    try:
        from_record(record, "QmA", NOW + 30, NOW)
    except ValueError:
        pass


def test_missing_and_extra_fields() -> None:
    record = to_record(LEASE)
    for wrong in ({**record, "more": 1}, {k: v for k, v in record.items() if k != "http"}, list(record), None):
        with pytest.raises(ValueError, match="fields"):
            from_record(wrong, "QmA", NOW + 30, NOW)


def test_our_own_lease_is_checked_too() -> None:
    with pytest.raises(ValueError, match="port 0"):
        to_record(replace(LEASE, address="127.0.0.1:0"))


def test_keys() -> None:
    digest = "0123456789abcdef" * 4
    assert keys_of(digest, LEASE) == ["0123456789abcdef/stage/0", "0123456789abcdef/stage/3"]
    assert keys_of(digest, replace(LEASE, stages=())) == ["0123456789abcdef/spare"]
    assert all_keys(digest, 2) == ["0123456789abcdef/stage/0", "0123456789abcdef/stage/1", "0123456789abcdef/spare"]


def test_what_follows_always_expires_later() -> None:
    assert following(LEASE, None) == LEASE
    assert following(LEASE, NOW).expires == LEASE.expires
    assert following(LEASE, LEASE.expires).expires == math.nextafter(LEASE.expires, math.inf)
    tombstone = following(replace(LEASE, leaving=True, expires=NOW + 90), NOW + 30)
    assert tombstone.expires == math.nextafter(NOW + 30, math.inf), "no longer than what it buries"


def test_the_newest_stands() -> None:
    restarted = replace(LEASE, incarnation=3, expires=NOW + 10)
    tombstone = replace(LEASE, leaving=True, expires=math.nextafter(LEASE.expires, math.inf))
    other = replace(LEASE, peer="Qm1")
    assert newest([LEASE, other, tombstone], NOW) == [other, tombstone]
    assert newest([restarted, LEASE, tombstone], NOW) == [restarted], "another incarnation, whatever its expiry"
    assert newest([LEASE, restarted], NOW + 10) == [LEASE], "the restarted one ran out"
    assert newest([LEASE], LEASE.expires) == []
