"""A captured lease is of no use to another key: neither as it is, nor under the other's name, nor changed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from node.directory.library import DHTID, DHTRecord, MSGPackSerializer
from node.directory.validator import LeaseValidator, peer_of
from node.identity import peer_id_of
from node.leases import from_record, spare_key, stage_key, to_record
from node.ports import Lease

RUN, NOW = "0123456789abcdef" * 4, 1_000_000.0


@cache
def validator(number: int) -> LeaseValidator:
    return LeaseValidator(RUN, key(number), lambda: NOW)


@cache
def key(number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def published(number: int, **changes: Any) -> Any:
    """What this peer puts into the directory."""
    peer = peer_id_of(key(number).public_key())
    lease = replace(Lease(peer, 1, "anna", "127.0.0.1:4000", "", (), 0, False, False, NOW + 30), **changes)
    value = MSGPackSerializer.dumps(to_record(lease))
    subkey = MSGPackSerializer.dumps(validator(number).subkey)
    record = DHTRecord(DHTID.generate(source=spare_key(RUN)).to_bytes(), subkey, value, lease.expires)
    return replace(record, value=validator(number).sign_value(record))


def test_a_signed_lease_is_its_owners() -> None:
    record = published(0)
    assert all(validator(reader).validate(record) for reader in (0, 1, 2))
    assert peer_of(MSGPackSerializer.loads(record.subkey)) == peer_id_of(key(0).public_key())


CHANGES = {
    "under another peer's name": {"subkey": MSGPackSerializer.dumps(b"of the thief")},
    "under another key of the directory": {"key": DHTID.generate(source=stage_key(RUN, 1)).to_bytes()},
    "living longer": {"expiration_time": NOW + 60},
    "saying something else": {"value": b""},
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_captured_lease_is_refused(how: str) -> None:
    captured, changes = published(0), dict(CHANGES[how])
    if "subkey" in changes:
        changes["subkey"] = MSGPackSerializer.dumps(validator(1).subkey)
    if "value" in changes:
        changes["value"] = captured.value.replace(b"127.0.0.1:4000", b"127.0.0.1:4001")
        assert changes["value"] != captured.value
    replayed = replace(captured, **changes)
    assert not any(validator(reader).validate(replayed) for reader in (0, 1, 2))


def test_a_thief_that_signs_it_anew_signs_with_its_own_name() -> None:
    """The words of another's lease under one's own signature are one's own lease: the name comes from the key."""
    stolen = published(1)
    plain = MSGPackSerializer.loads(validator(2).strip_value(stolen))
    read = from_record(plain, peer_of(MSGPackSerializer.loads(stolen.subkey)), stolen.expiration_time, NOW)
    assert read.peer == peer_id_of(key(1).public_key())
