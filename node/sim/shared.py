"""What simulated nodes may know together, because it is a function of the decided records and of who lives.

A thousand nodes that each derive the roster after every record, and count the heartbeats of their neighbours, do the same work
a thousand times. Here the first one does it, and a node's silence is looked up in the world. Decisions stay the node's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from node.sim.nodes import SimNode
from protocol.chain import KEPT_RECORDS, Chain, Decided, Past
from protocol.ids import Member, PeerId, RecordId
from protocol.manifest import Manifest
from protocol.records import Commit, Record, Share, record_id
from protocol.view import PeerNews, View

DERIVED = (
    "head",
    "height",
    "step",
    "tokens",
    "loss",
    "state_ids",
    "squared_norms",
    "generations",
    "rebuilds",
    "regained",
    "lineage",
    "seatings",
    "voters",
    "seen",
    "_seats",
)
"""Attributes of a `Chain` that follow from its records alone."""
MAX_KNOWN = 2 * KEPT_RECORDS
"""Records of which the consequences are remembered. Who lacks more than is kept is told where the chain stands."""


class Records:
    """What follows from each record after each head."""

    def __init__(self) -> None:
        self.after: dict[tuple[RecordId, RecordId], dict[str, Any]] = {}
        self.fits: dict[tuple[RecordId, RecordId], str] = {}

    def trim(self) -> None:
        """Forget the oldest."""
        _trim(self.after)
        _trim(self.fits)


def _trim(known: dict[Any, Any]) -> None:
    while len(known) > MAX_KNOWN:
        del known[next(iter(known))]


class SharedChain(Chain):
    """A `Chain` that takes over what another one has derived from the same record after the same head."""

    def __init__(self, manifest: Manifest, founder: Member | None, shared: Records | None = None) -> None:
        if shared is not None:
            self._shared = shared
        super().__init__(manifest, founder)

    def fits(self, record: Record) -> str:
        """See `Chain`."""
        key = self.head, record_id(record)
        found = self._shared.fits.get(key)
        if found is None:
            found = self._shared.fits[key] = super().fits(record)
        return found

    def append(self, record: Record, shares: tuple[Share, ...]) -> RecordId:
        """See `Chain`."""
        key = self.head, record_id(record)
        after = self._shared.after.get(key)
        if after is None:
            self.state_ids, self.generations = list(self.state_ids), list(self.generations)
            self.rebuilds, self.regained = dict(self.rebuilds), dict(self.regained)
            super().append(record, shares)
            after = self._shared.after[key] = {name: getattr(self, name) for name in DERIVED}
            if isinstance(record, Commit):
                after["past"] = self.past[-1]
            self._shared.trim()
            return self.head
        past: Past | None = after.get("past")
        for name in DERIVED:
            setattr(self, name, after[name])
        self._kept.append((self.head, Decided(record, shares)))
        if past:
            self.past.append(past)
        return self.head


class Lives:
    """Who lives in the world. `silent`: since when nothing was heard of those that do not."""

    def __init__(self, nodes: dict[PeerId, SimNode]) -> None:
        self.nodes = nodes
        self.silent: dict[PeerId, float] = {}

    def news(self, peer: PeerId, now: float) -> PeerNews | None:
        """What the peer's newest heartbeat says, wherever it is heard."""
        node = self.nodes.get(peer)
        if node is None or peer in self.silent:
            return None
        state: Any = node.state
        ballot = max(state.ballot, state.acceptor.promised, state.acceptor.floor)
        step, attempt = (state.bench.open.step, state.bench.open.attempt) if state.bench.open else (0, 0)
        me = node.spec.member
        return PeerNews(me.incarnation, ballot, state.chain.head, step, attempt, now, state.bench.lacks(me))


class News(dict[PeerId, PeerNews]):
    """Of peers that live, the newest; nothing else is remembered."""

    def __init__(self, view: LivesView) -> None:
        super().__init__()
        self._view = view

    def get(self, peer: PeerId, default: Any = None) -> Any:
        """What it says now."""
        return self._view.lives.news(peer, self._view.now) or default

    def __getitem__(self, peer: PeerId) -> PeerNews:
        """The same, of one that is known to live."""
        news = self._view.lives.news(peer, self._view.now)
        if news is None:
            raise KeyError(peer)
        return news

    def __setitem__(self, peer: PeerId, news: PeerNews) -> None:
        """It is known already."""


class LivesView(View):
    """A `View` that looks up who lives: between two that live, heartbeats come."""

    def __init__(self, lapse_s: float, lives: Lives) -> None:
        super().__init__(lapse_s)
        self.lives = lives
        self.now = 0.0
        self.news = News(self)

    def tick(self, heard: dict[PeerId, float], now: float) -> None:
        """Time has passed; nobody sleeps here without being asked to."""
        self.now = now

    def silent_s(self, peer: PeerId, now: float) -> float:
        """See `View`."""
        self.now = now
        since, heard_at = self.lives.silent.get(peer), self._heard_at.get(peer)
        return 0.0 if since is None or heard_at is None else max(0.0, now - max(since, heard_at))

    def silent_among(self, peers: Iterable[PeerId], seconds: float, now: float) -> list[PeerId]:
        """See `View`; `seconds` is not negative. Few are silent."""
        self.now = now
        silent = self.lives.silent
        if isinstance(peers, dict) and silent.keys().isdisjoint(peers.keys()):
            return []
        return [peer for peer in peers if peer in silent and self.silent_s(peer, now) > seconds]

    def beats(self, member: Member, now: float) -> bool:
        """See `View`."""
        self.now = now
        news = self.lives.news(member.peer, now)
        return news is not None and news.incarnation == member.incarnation

    def misses(self) -> bool:
        """Is somebody silent whose silence counts here?"""
        return not self._heard_at.keys().isdisjoint(self.lives.silent.keys())
