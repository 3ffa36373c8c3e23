"""Leases as directory records: their keys, their plain form, and the rules that the real directory and the fake share.

A lease stands under the key of each of its stages, or of the spares. Every record tells all of the peer's stages, so the
newest one, by (incarnation, expiry), says where a peer is; older ones under other keys run out by themselves. A record in
the DHT cannot be shortened or replaced by one of the same expiry: whatever follows expires at least one float later.

Records come from strangers: `from_record` checks every field and raises `ValueError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from node.ports import Lease
from protocol.addresses import parse_host_port, parse_multiaddress
from protocol.ids import PeerId
from protocol.manifest import MAX_BLOCK_STAGES
from protocol.tickets import MAX_CHARS

MAX_STAGES = MAX_BLOCK_STAGES + 1
MAX_RECORD_BYTES = 4096
MAX_NAME_CHARS = 64
MAX_ADDRESS_CHARS = 260
MAX_TICKET_CHARS = MAX_CHARS
"""Whether a ticket is good is not the directory's to judge (`node.admission`)."""
MAX_INTEGER = 2**53
MAX_LEASE_S = 2 * 3600.0
"""No lease is believed that expires later than this from now, in seconds (timing.lease_s is at most half of it)."""

Record = dict[str, str | int | bool | list[int]]


def stage_key(run_digest: str, stage: int) -> str:
    """The key of one stage's leases."""
    return f"{run_digest[:16]}/stage/{stage}"


def spare_key(run_digest: str) -> str:
    """The key of the leases of nodes without a seat."""
    return f"{run_digest[:16]}/spare"


def all_keys(run_digest: str, num_stages: int = MAX_STAGES) -> list[str]:
    """The keys of all stages and of the spares."""
    return [stage_key(run_digest, stage) for stage in range(num_stages)] + [spare_key(run_digest)]


def keys_of(run_digest: str, lease: Lease) -> list[str]:
    """The keys under which a lease stands."""
    return [stage_key(run_digest, stage) for stage in lease.stages] or [spare_key(run_digest)]


def to_record(lease: Lease) -> Record:
    """Plain form. Peer and expiry are not in it: they are the record's signer and lifetime.

    Raises `ValueError` for a lease that its readers would refuse.
    """
    record: Record = {
        "incarnation": lease.incarnation,
        "name": lease.name,
        "address": lease.address,
        "http": lease.http,
        "stages": list(lease.stages),
        "ballot_term": lease.ballot_term,
        "coordinator": lease.coordinator,
        "leaving": lease.leaving,
        "ticket": lease.ticket,
        "dht": lease.dht,
    }
    from_record(record, lease.peer, lease.expires, lease.expires)
    return record


def from_record(record: object, peer: PeerId, expires: float, now: float) -> Lease:
    """The lease in a record signed by `peer`. It may have expired: clocks differ, and `newest` leaves those out."""
    if not isinstance(record, dict) or set(record) != _FIELDS:
        raise ValueError("not the fields of a lease")
    if not isinstance(expires, int | float) or not 0 < expires <= now + MAX_LEASE_S:
        raise ValueError("expires too far from now")
    return Lease(
        peer=peer,
        incarnation=_integer(record["incarnation"]),
        name=_text(record["name"], MAX_NAME_CHARS),
        address=_address(record["address"]),
        http=_address(record["http"]),
        stages=_stages(record["stages"]),
        ballot_term=_integer(record["ballot_term"]),
        coordinator=_flag(record["coordinator"]),
        leaving=_flag(record["leaving"]),
        expires=expires,
        ticket=_text(record["ticket"], MAX_TICKET_CHARS),
        dht=_multiaddress(record["dht"]),
    )


def following(lease: Lease, last_expires: float | None) -> Lease:
    """`lease` with an expiry that supersedes what its peer published before (None = nothing).

    A tombstone takes the earliest such expiry, so that it is gone as soon as what it buries would have been.
    """
    if last_expires is None:
        return replace(lease, expires=float(lease.expires))
    earliest = math.nextafter(last_expires, math.inf)
    return replace(lease, expires=earliest if lease.leaving else max(lease.expires, earliest))


def newest(leases: Iterable[Lease], now: float) -> list[Lease]:
    """The unexpired lease of each peer that supersedes its others, sorted by peer."""
    best: dict[PeerId, Lease] = {}
    for lease in leases:
        known = best.get(lease.peer)
        if lease.expires > now and (known is None or _age(lease) > _age(known)):
            best[lease.peer] = lease
    return [best[peer] for peer in sorted(best)]


_FIELDS = {"incarnation", "name", "address", "http", "stages", "ballot_term", "coordinator", "leaving", "ticket", "dht"}


def _age(lease: Lease) -> tuple[int, float]:
    return lease.incarnation, lease.expires


def _integer(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ValueError(f"{value!r:.30} is not an integer from 0 to 2**53")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r:.30} is not a truth value")
    return value


def _text(value: object, limit: int) -> str:
    if type(value) is not str or len(value) > limit or not value.isprintable():
        raise ValueError(f"{value!r:.30} is not a printable text of at most {limit} characters")
    return value


def _address(value: object) -> str:
    text = _text(value, MAX_ADDRESS_CHARS)
    if text and parse_host_port(text)[1] == 0:
        raise ValueError(f"address {text!r} has port 0")
    return text


def _multiaddress(value: object) -> str:
    text = _text(value, MAX_ADDRESS_CHARS)
    if text and (parse_multiaddress(text).peer or parse_multiaddress(text).port == 0):
        raise ValueError(f"address {text!r} names a peer, or port 0")
    return text


def _stages(value: object) -> tuple[int, ...]:
    if type(value) is not list or len(value) > MAX_STAGES:
        raise ValueError("stages are not a list")
    stages = tuple(_integer(stage) for stage in value)
    if list(stages) != sorted(set(stages)) or (stages and stages[-1] >= MAX_STAGES):
        raise ValueError(f"stages {stages} are not ascending and below {MAX_STAGES}")
    return stages
