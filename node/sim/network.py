"""Links of the simulated world: when what is sent arrives, and what the weather does to it.

Two lanes per directed link, as in production: control messages, which only suffer the latency, and payloads, which share
their sender's uplink and their receiver's downlink. Order holds within a lane unless the weather says otherwise.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from protocol.ids import PeerId

LOOPBACK_S = 20e-6


@dataclass(frozen=True, slots=True)
class Cut:
    """No byte passes between two peers, in either direction, from `begins_s` to `ends_s` (world time)."""

    one: PeerId
    other: PeerId
    begins_s: float
    ends_s: float


@dataclass(slots=True)
class Weather:
    """What goes wrong all the time, with which probability, and how often it did."""

    duplicate: float = 0.0
    reorder: float = 0.0
    late_s: float = 0.25
    """A duplicate or a reordered message comes up to so much later."""
    cuts: list[Cut] = field(default_factory=list)
    num_duplicates: int = 0
    num_reorders: int = 0
    num_cut: int = 0


class Network:
    """Latency per pair of peers, rate per peer; all of it drawn from `rng`."""

    def __init__(
        self,
        rng: random.Random,
        weather: Weather,
        latency_s: tuple[float, float] = (0.001, 0.08),
        rate_bytes_s: tuple[float, float] = (12e6, 120e6),
    ) -> None:
        self._rng = rng
        self._weather = weather
        self._latency_range = latency_s
        self._rate_range = rate_bytes_s
        self._latency: dict[tuple[PeerId, PeerId], float] = {}
        self._rate: dict[PeerId, float] = {}
        self._last: defaultdict[tuple[PeerId, PeerId, bool], float] = defaultdict(float)
        self._up_free: defaultdict[PeerId, float] = defaultdict(float)
        self._down_free: defaultdict[PeerId, float] = defaultdict(float)

    def latency(self, one: PeerId, other: PeerId) -> float:
        """One-way delay without queueing, in seconds; the same in both directions."""
        if one == other:
            return LOOPBACK_S
        key = (one, other) if one < other else (other, one)
        found = self._latency.get(key)
        if found is None:
            found = self._latency[key] = self._rng.uniform(*self._latency_range)
        return found

    def rate(self, peer: PeerId) -> float:
        """Bytes per second of the peer's uplink, and of its downlink."""
        found = self._rate.get(peer)
        if found is None:
            found = self._rate[peer] = self._rng.uniform(*self._rate_range)
        return found

    def set_rate(self, peer: PeerId, bytes_s: float) -> None:
        """This peer's link, instead of a drawn one."""
        self._rate[peer] = bytes_s

    def control(self, sender: PeerId, receiver: PeerId, now: float) -> list[float]:
        """When copies of a control message arrive; none if the link is cut."""
        if sender == receiver:
            return [now + LOOPBACK_S]
        return self._weathered(sender, receiver, now, now + self._delay(sender, receiver), payload=False)

    def payload(self, sender: PeerId, receiver: PeerId, now: float, num_bytes: int) -> tuple[float, list[float]]:
        """(when the sender is rid of it, when copies arrive)."""
        if sender == receiver:
            return now, [now + LOOPBACK_S]
        sent = max(now, self._up_free[sender]) + num_bytes / self.rate(sender)
        self._up_free[sender] = sent
        taken = num_bytes / self.rate(receiver)
        arrives = max(sent + self._delay(sender, receiver), self._down_free[receiver] + taken)
        self._down_free[receiver] = arrives
        return sent, self._weathered(sender, receiver, now, arrives, payload=True)

    def _delay(self, sender: PeerId, receiver: PeerId) -> float:
        return self.latency(sender, receiver) * (1.0 + 0.25 * self._rng.random())

    def _weathered(self, sender: PeerId, receiver: PeerId, now: float, arrives: float, *, payload: bool) -> list[float]:
        weather, rng = self._weather, self._rng
        if weather.cuts and self._is_cut(sender, receiver, now, arrives):
            weather.num_cut += 1
            return []
        lane = (sender, receiver, payload)
        if rng.random() < weather.reorder:
            weather.num_reorders += 1
            out = [arrives + rng.random() * weather.late_s]
        else:
            out = [max(arrives, self._last[lane] + 1e-9)]
            self._last[lane] = out[0]
        if rng.random() < weather.duplicate:
            weather.num_duplicates += 1
            out.append(out[0] + rng.random() * weather.late_s)
        return out

    def _is_cut(self, sender: PeerId, receiver: PeerId, leaves: float, arrives: float) -> bool:
        ends = {sender, receiver}
        return any(
            ends == {cut.one, cut.other} and leaves < cut.ends_s and arrives >= cut.begins_s for cut in self._weather.cuts
        )
