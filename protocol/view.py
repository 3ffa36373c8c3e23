"""What a node knows of whom: when it last heard each peer, and which peers it expects to hear."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.ids import NO_BALLOT, Ballot, Member, PeerId, RecordId


@dataclass(slots=True)
class PeerNews:
    """The newest that a peer said of itself in a heartbeat."""

    incarnation: int = 0
    ballot: Ballot = NO_BALLOT
    head: RecordId = ""
    step: int = 0
    attempt: int = 0
    at: float = -math.inf
    """When it came."""
    lacks: bool = False
    """It has a seat without the state, and holds nothing."""


class View:
    """Silence is counted from the last byte, or from when the peer was first expected. A node that slept itself (its ticks
    stopped for half a lapse) starts all counts anew: the silence was its own."""

    def __init__(self, lapse_s: float) -> None:
        self._lapse_s = lapse_s
        self._heard_at: dict[PeerId, float] = {}
        self._unheard: set[PeerId] = set()
        """Expected, and not heard since."""
        self._ticked_at: float | None = None
        self.news: dict[PeerId, PeerNews] = {}

    def expect(self, peer: PeerId, now: float) -> None:
        """From now on silence of `peer` counts."""
        if peer not in self._heard_at:
            self._heard_at[peer] = now
            self._unheard.add(peer)

    def heard(self, peer: PeerId, now: float) -> None:
        """Something came from `peer`. Of strangers nothing is remembered: anybody may speak to a node."""
        if peer in self._heard_at:
            self._heard_at[peer] = now
            self._unheard.discard(peer)

    def forget(self, peer: PeerId) -> None:
        """The peer is of no more interest."""
        self._heard_at.pop(peer, None)
        self._unheard.discard(peer)
        self.news.pop(peer, None)

    def tick(self, heard: dict[PeerId, float], now: float) -> None:
        """Take in the ages of the last bytes; see the class about an own pause."""
        if self._ticked_at is not None and now - self._ticked_at > self._lapse_s / 2:
            self._heard_at = dict.fromkeys(self._heard_at, now)
        self._ticked_at = now
        heard_at = self._heard_at
        for peer, age in heard.items():
            before = heard_at.get(peer)
            if before is not None and before < now - age:
                heard_at[peer] = now - age
                self._unheard.discard(peer)

    def silent_s(self, peer: PeerId, now: float) -> float:
        """Seconds of silence; 0 for a peer that nobody expects."""
        return now - self._heard_at.get(peer, now)

    def beats(self, member: Member, now: float) -> bool:
        """Did a heartbeat of the member come within a lapse?"""
        news = self.news.get(member.peer)
        return news is not None and news.incarnation == member.incarnation and now - news.at <= self._lapse_s

    def holds(self, member: Member, now: float) -> bool:
        """Did one come, and does it not say that the member lacks what the roster seats it for?"""
        return self.beats(member, now) and not self.news[member.peer].lacks

    def lapsed(self, peer: PeerId, now: float) -> bool:
        """Silent for longer than the manifest's lapse."""
        return self.silent_s(peer, now) > self._lapse_s

    def is_there(self, peer: PeerId, seconds: float, now: float) -> bool:
        """Was it heard since it was expected, and within so many seconds? Where something is to be given up on the strength of
        it, a lapse is too long."""
        heard_at = self._heard_at.get(peer)
        return heard_at is not None and peer not in self._unheard and now - heard_at <= seconds

    def silent_among(self, peers: Iterable[PeerId], seconds: float, now: float) -> list[PeerId]:
        """Those of them that are silent for longer, in their order."""
        heard_at = self._heard_at
        return [peer for peer in peers if now - heard_at.get(peer, now) > seconds]

    def all_lapsed(self, peers: Iterable[PeerId], now: float) -> list[PeerId]:
        """Those of them that have `lapsed`, in their order."""
        return self.silent_among(peers, self._lapse_s, now)

    def hears(self, peers: Iterable[PeerId], now: float) -> bool:
        """Is any of them known to live?"""
        return any(peer in self._heard_at and not self.lapsed(peer, now) for peer in peers)

    def known(self) -> list[PeerId]:
        """Peers whose silence counts here, sorted."""
        return sorted(self._heard_at)
