"""Visits a run without being part of it: reads its directory, looks at every leased node, and keeps what they told.

It publishes no lease and sends no message of the protocol: what it asks is `Observe`, which a node answers from what it shows
anyway. Nobody has to reach it, nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from node import http_client
from node.monitor.counted import Counted
from node.monitor.exposition import read
from node.monitor.metrics import MonitorMetrics
from node.monitor.picture import Picture, Sighting
from node.monitor.swarm import FRESH_S, Swarm
from node.monitor.targets import may_be_direct, targets
from node.monitor.told import MAX_COUNT, ShownProofs, Told, read_chronicle, read_proofs, read_status
from node.plain_text import printable
from node.ports import Clock, Lease, PeerError, UnusableError
from node.transport.config import Observation, ObserveRequest
from protocol.ids import PeerId
from protocol.messages import Contact

PERIOD_S, PERIOD_PER_NODE_S = 2.0, 0.015
"""Between two looks at a node that answers: the larger one, so that many cost no more than some."""
MAX_PERIOD_S = 60.0
"""The same for one that does not, after some tries; each time twice as long."""
LEASES_EVERY_S = 4.0
SHOW_EVERY_S = 1.0
PROBE_EVERY_S, PROBE_S = 30.0, 3.0
AT_ONCE = 32
MAX_NODES = 1000
MAX_EVENTS = 500
MAX_SHOWN_CLAIMS = 50_000
"""In one round; what is beyond is asked for again."""
MAX_NEWCOMER_BYTES = 64 << 10
"""Of the proofs of one who was no member so far. There may be a thousand strangers; a newcomer has done little."""
_log = logging.getLogger(__name__)


class Looks(Protocol):
    """How a node is looked at."""

    async def look(self, node: Contact, asked: ObserveRequest) -> Observation:
        """What it tells. Raises `PeerError`."""

    async def forget(self, node: Contact) -> None:
        """It is looked at no more."""


@dataclass(slots=True)
class _Watched:
    """A leased node. `due_at`: when it is looked at next; `after`: serial of its last event that is known."""

    sighting: Sighting
    due_at: float = float("-inf")
    failures: int = 0
    after: int = 0
    claims_after: int = 0
    roots_after: int = 0
    """Steps up to which its claims, and the roots that it knows, were told."""
    stood: tuple[int, int] = (-1, 0)
    """Its incarnation and step when it told something last."""
    shown: ShownProofs = field(default_factory=ShownProofs)
    """Of its work, since the last round."""
    direct: str = ""
    probe_at: float = field(default=float("-inf"))

    @property
    def contact(self) -> Contact:
        return Contact(self.sighting.lease.peer, self.sighting.lease.address)


Leases = Callable[[], Awaitable[list[Lease]]]
Probe = Callable[[str], Mapping[str, Any]]
"""/status at HOST:PORT; blocks, raises `UnusableError`."""


def probe_status(address: str) -> Mapping[str, Any]:
    """See `Probe`."""
    return http_client.status(address, PROBE_S)


class Observer:
    """`read_leases`, `look_around` and `show` are its three habits; `run` has them all until it is cancelled."""

    def __init__(
        self, run: tuple[str, str], leases: Leases, looks: Looks, clock: Clock, metrics: MonitorMetrics, probe: Probe
    ) -> None:
        self._run_id, self._digest = run
        self._leases, self._looks, self._clock, self._metrics, self._probe = leases, looks, clock, metrics, probe
        self._swarm, self._counted = Swarm(self._run_id), Counted(self._run_id)
        self._watched: dict[PeerId, _Watched] = {}
        self._num_shown = 0
        """Claims of this round."""
        self._round_at = float("-inf")
        """When all who are due were looked at last: together, so that what they tell is of about the same moment."""
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self.picture = Picture(self._run_id)
        self.chronicle: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        """What nodes note, in the order in which it was heard; `peer` says who."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(LEASES_EVERY_S, self.read_leases), name="the directory's leases")
            group.create_task(self._every(SHOW_EVERY_S, self._look_and_show), name="looks at the nodes")

    async def _every(self, seconds: float, habit: Callable[[], Awaitable[None]]) -> None:
        while True:
            began = self._clock.monotonic()
            await habit()
            await self._clock.sleep(max(0.1, began + seconds - self._clock.monotonic()))

    async def _look_and_show(self) -> None:
        await self.look_around()
        self.show()

    # ---- what is seen

    async def read_leases(self) -> None:
        """Who claims to be there. One who has gone, or whose lease has run out, is forgotten."""
        leases = await self._leases()
        if len(leases) > MAX_NODES:
            self._metrics.dropped(len(leases) - MAX_NODES, f"of more than {MAX_NODES} nodes")
            leases = sorted(leases, key=lambda lease: (lease.peer not in self._watched, not lease.stages))[:MAX_NODES]
        for lease in leases:
            known = self._watched.get(lease.peer)
            if known is None:
                self._watched[lease.peer] = _Watched(Sighting(lease))
            else:
                self._renew(known, lease)
        await self._forget_expired({lease.peer for lease in leases})

    def _renew(self, known: _Watched, lease: Lease) -> None:
        old = known.sighting.lease
        if lease.incarnation != old.incarnation or lease.address != old.address:
            known.due_at, known.failures, known.after, known.claims_after, known.roots_after = float("-inf"), 0, 0, 0, 0
            known.sighting = Sighting(lease)
        else:
            known.sighting = replace(known.sighting, lease=lease)
        if lease.http != old.http:
            known.direct, known.probe_at = "", float("-inf")

    async def _forget_expired(self, leased: set[PeerId]) -> None:
        wall = self._clock.wall()
        gone = [p for p, w in self._watched.items() if p not in leased or w.sighting.lease.expires <= wall]
        for peer in gone:
            await self._looks.forget(self._watched.pop(peer).contact)
        self._counted.keep(self._watched)

    async def look_around(self) -> None:
        """Look at all who are due, some at once."""
        now = self._round_at = self._clock.monotonic()
        due = [w for w in self._watched.values() if w.due_at <= now and w.sighting.lease.address]
        async with asyncio.TaskGroup() as group:
            for watched in due:
                group.create_task(self._look(watched), name=f"looks at {watched.contact.peer[-8:]}")

    @property
    def _period_s(self) -> float:
        return max(PERIOD_S, PERIOD_PER_NODE_S * len(self._watched))

    async def _look(self, watched: _Watched) -> None:
        async with self._at_once:
            began, asked_at = self._clock.monotonic(), self._clock.wall()
            asked = ObserveRequest(self._digest, True, watched.after, watched.claims_after, watched.roots_after)
            contact = watched.contact
            try:
                seen = await self._looks.look(contact, asked)
                self._take(watched, seen, (asked_at + self._clock.wall()) / 2)
            except (PeerError, ValueError) as error:
                self._fail(watched, str(error))
                return
            now = self._clock.monotonic()
            self._metrics.observed(now - began)
            watched.failures, watched.due_at = 0, self._round_at + self._period_s
            await self._probe_if_due(watched, now)

    def _take(self, watched: _Watched, seen: Observation, wall: float) -> None:
        """Raises `ValueError` for what cannot be shown; what was told before stands until it is too old."""
        peer = watched.sighting.lease.peer
        told, metrics, events = read_status(seen.status, self._run_id, peer), read(seen.metrics), read_chronicle(seen.chronicle)
        shown = ShownProofs()
        if self._swarm.heeds(peer):
            shown = read_proofs(seen.proofs) if self._num_shown < MAX_SHOWN_CLAIMS else shown
        else:
            told = told.without_hearsay()
            shown = read_proofs(seen.proofs) if len(seen.proofs) <= MAX_NEWCOMER_BYTES else shown
        self._metrics.dropped(metrics.num_dropped, f"of peer {peer[-12:]}, which cannot be passed on")
        offset = None if told.wall is None else told.wall - wall
        watched.sighting = replace(
            watched.sighting, told=told, told_at=self._clock.monotonic(), metrics=metrics, offset_s=offset
        )
        self._keep(watched, told, shown)
        for event in events:
            if watched.after < event["serial"] <= MAX_COUNT:
                watched.after = event["serial"]
                self.chronicle.append(event | {"peer": peer})

    def _keep(self, watched: _Watched, told: Told, shown: ShownProofs) -> None:
        """What it shows of its work, until it is known who is a member. Whose step is lower than before, in the same life, has
        gone back."""
        life, step = watched.stood
        watched.stood, watched.shown = (told.incarnation, told.step), shown
        self._num_shown += len(shown.claims)
        if life == told.incarnation and told.step < step:
            watched.claims_after = min(told.step, watched.claims_after)
            watched.roots_after = min(told.step, watched.roots_after)
            watched.shown = ShownProofs()
            self._counted.went_back(told.peer, told.step)

    def _count(self) -> None:
        """Take what members have shown; of all others nothing is kept, and it is asked for again should they become some."""
        members = frozenset(peer for _, peer, _ in self.picture.roster)
        for peer, watched in self._watched.items():
            shown, watched.shown = watched.shown, ShownProofs()
            if peer in members:
                self._counted.hear(peer, shown)
                watched.claims_after = max([watched.claims_after, *(claim.step for claim in shown.read_claims)])
                watched.roots_after = max([watched.roots_after, *(at for at, _ in shown.roots)])
        self._num_shown = 0
        for peer in self._counted.settle(members):
            _log.warning("peer %s claims work that the commits do not count; what it cannot show counts nowhere", peer[-12:])
        nodes = [replace(n, tokens=self._counted.tokens(n.peer) if n.step is not None else {}) for n in self.picture.nodes]
        self.picture = replace(self.picture, nodes=tuple(nodes))

    def _fail(self, watched: _Watched, why: str) -> None:
        self._metrics.failed()
        if not watched.failures:
            _log.info("peer %s: %s", watched.contact.peer[-12:], printable(why, 300))
        watched.failures += 1
        watched.direct = ""
        wait = min(MAX_PERIOD_S, self._period_s * 2 ** min(watched.failures - 1, 10))
        watched.due_at = self._clock.monotonic() + wait

    async def _probe_if_due(self, watched: _Watched, now: float) -> None:
        """Is it this very node that answers at its HTTP port?"""
        if now < watched.probe_at:
            return
        lease = watched.sighting.lease
        watched.probe_at = now + PROBE_EVERY_S
        watched.direct = ""
        if may_be_direct(lease):
            try:
                status = await asyncio.to_thread(self._probe, lease.http)
            except UnusableError:
                return
            if (status.get("peer"), status.get("incarnation")) == (lease.peer, lease.incarnation):
                watched.direct = lease.http

    # ---- what is shown

    def show(self) -> None:
        """Put together what is known now."""
        wall = self._clock.wall()
        sightings = [w.sighting for w in self._watched.values() if w.sighting.lease.expires > wall]
        self.picture = self._swarm.look(sightings, self._clock.monotonic())
        self._count()
        self._metrics.show(self.picture)

    def status(self) -> dict[str, Any]:
        """The object of the monitor's /status."""
        return self.picture.as_json()

    def targets(self, monitor: str) -> list[dict[str, Any]]:
        """See `node.monitor.targets`."""
        direct = {peer: watched.direct for peer, watched in self._watched.items() if watched.direct}
        return targets(self._run_id, self.picture.nodes, direct, monitor)

    def node_text(self, label: str) -> str | None:
        """Prometheus text of the node that is called so."""
        peer = next((node.peer for node in self.picture.nodes if node.label == label), "")
        watched = self._watched.get(peer)
        if watched is None or self._clock.monotonic() - watched.sighting.told_at > FRESH_S:
            return None
        return watched.sighting.metrics.text()
