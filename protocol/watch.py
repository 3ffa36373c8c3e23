"""Whom a node exchanges heartbeats with, the coordinator apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from protocol.ids import PeerId
from protocol.view import View


class Watch:
    """Peers that the newest open step names, and for a while those that somebody asked about or that asked."""

    def __init__(self, view: View, while_s: float) -> None:
        self._view = view
        self._while_s = while_s
        self._named: dict[PeerId, None] = {}
        self._until: dict[PeerId, float] = {}
        self._told: list[PeerId] = []

    def __iter__(self) -> Iterator[PeerId]:
        return iter(dict.fromkeys([*self._named, *self._until]))

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._named or peer in self._until

    def name(self, peers: Iterable[PeerId], now: float) -> None:
        """A step was opened here: from now on the silence of these peers counts. Nobody had to say anything before."""
        before, self._named = set(self), dict.fromkeys(peers)
        for peer in self._named:
            self._view.expect(peer, now)
            if peer not in before:
                self._view.heard(peer, now)

    def for_a_while(self, peer: PeerId, now: float) -> None:
        """Answer the heartbeats of a peer that probes or is probed, without answering answers for ever."""
        self._until[peer] = now + self._while_s

    def expire(self, now: float, members: Callable[[PeerId], object]) -> None:
        """Time has passed. Who was named and is no member any more is not spoken to: it may belong to another lineage, whose
        ballots are of no concern here, nor these there."""
        if any(members(peer) is None for peer in self._named):
            self._named = {peer: None for peer in self._named if members(peer) is not None}
        if self._until:
            self._until = {peer: until for peer, until in self._until.items() if now < until}

    def lapsed(self, now: float, again: bool) -> list[PeerId]:
        """Those that are silent for too long; unless `again`, only those that were not at the last call."""
        before, self._told = self._told, self._view.all_lapsed({**self._named, **self._until}, now)
        return [peer for peer in self._told if again or peer not in before]
