"""The directory in memory, with the rules of the real one: expiry, no shortening, records checked by every reader.

`MemoryDht` is what the peers of a simulated swarm share. `split` parts them into islands that no longer see each other's
new records; `heal` joins them again, as re-dialling remembered peers does in the real one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from node.leases import MAX_STAGES, all_keys, following, from_record, keys_of, newest, to_record
from node.ports import Clock, Lease
from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as stored; `value` may be anything, as in the real directory."""

    value: object
    expires: float


Table = dict[str, dict[PeerId, Entry]]


class MemoryDht:
    """All records, per island. A store takes effect `delay_s` after it was asked for."""

    def __init__(self, clock: Clock, delay_s: float = 0.0) -> None:
        self.clock = clock
        self.delay_s = delay_s
        self._island_of: dict[PeerId, int] = {}
        self._tables: list[Table] = [{}]

    def split(self, *islands: Collection[PeerId]) -> None:
        """Part the peers; those not named stay together on an island of their own. Old records stay visible everywhere."""
        before = self._merged()
        self._island_of = {peer: number for number, island in enumerate(islands, 1) for peer in island}
        self._tables = [_copy(before) for _ in range(len(islands) + 1)]

    def heal(self) -> None:
        """Join all islands; of two records under one key and peer the later expiry stays."""
        self._tables, self._island_of = [self._merged()], {}

    def store(self, by: PeerId, key: str, subkey: PeerId, entry: Entry) -> bool:
        """Whether the record was taken: refused if expired, or not later than the one it would replace."""
        table = self._tables[self._island_of.get(by, 0)]
        return entry.expires > self.clock.wall() and _store(table, key, subkey, entry)

    def find(self, by: PeerId, key: str) -> dict[PeerId, Entry]:
        """The unexpired records under a key that this peer's island has."""
        entries = self._tables[self._island_of.get(by, 0)].get(key, {})
        for peer in [peer for peer, entry in entries.items() if entry.expires <= self.clock.wall()]:
            del entries[peer]
        return dict(entries)

    def _merged(self) -> Table:
        merged: Table = {}
        for table in self._tables:
            for key, entries in table.items():
                for peer, entry in entries.items():
                    _store(merged, key, peer, entry)
        return merged


class MemoryDirectory:
    """The `Directory` of one simulated peer."""

    def __init__(self, dht: MemoryDht, peer: PeerId, run_digest: str, num_stages: int = MAX_STAGES) -> None:
        self.peer = peer
        self.failed_stores = 0
        self.malformed = 0
        self._dht = dht
        self._run_digest = run_digest
        self._keys = all_keys(run_digest, num_stages)
        self._last_expires: float | None = None

    def remembered(self) -> list[str]:
        """See `node.ports.Directory`."""
        return []

    async def publish(self, lease: Lease) -> None:
        """See `node.ports.Directory`."""
        assert lease.peer == self.peer, f"{self.peer} publishes a lease of {lease.peer}"
        dht = self.addresses()[0].rpartition("/p2p/")[0]
        lease = following(replace(lease, dht=dht), self._last_expires)
        self._last_expires = lease.expires
        await self._dht.clock.sleep(self._dht.delay_s)
        entry = Entry(to_record(lease), lease.expires)
        for key in keys_of(self._run_digest, lease):
            self.failed_stores += not self._dht.store(self.peer, key, self.peer, entry)

    async def leases(self) -> list[Lease]:
        """See `node.ports.Directory`."""
        now, found = self._dht.clock.wall(), []
        for key in self._keys:
            for peer, entry in self._dht.find(self.peer, key).items():
                try:
                    found.append(from_record(entry.value, peer, entry.expires, now))
                except ValueError:
                    self.malformed += 1
        return newest(found, now)

    def addresses(self) -> list[str]:
        """One address that nobody can dial."""
        return [f"/ip4/127.0.0.1/tcp/1/p2p/{self.peer}"]

    async def close(self) -> None:
        """Nothing is left behind; published records run out by themselves."""


def _store(table: Table, key: str, peer: PeerId, entry: Entry) -> bool:
    entries = table.setdefault(key, {})
    if peer in entries and entry.expires <= entries[peer].expires:
        return False
    entries[peer] = entry
    return True


def _copy(table: Table) -> Table:
    return {key: dict(entries) for key, entries in table.items()}
