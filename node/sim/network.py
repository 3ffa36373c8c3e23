"""Links of the simulated world: when what is sent arrives, and what the weather does to it.

Two lanes per directed link, as in production: control messages, which only suffer the latency, and payloads, which share
their sender's uplink and their receiver's downlink. Order holds within a lane unless the weather says otherwise.

What is on a link when it is cut is lost: so a cut that takes no time is a connection that breaks. Nobody is told of a control
message that is lost. Payloads are acknowledged, and sent again when the link passes something once more; see `Network.payload`.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.ids import PeerId

LOOPBACK_S = 20e-6


RECONNECT_S = (0.05, 0.5)
"""Until a connection that broke is there again."""


@dataclass(frozen=True, slots=True)
class Cut:
    """No byte passes from a peer of `one` to one of `other` from `begins_s` to `ends_s` (world time), nor back unless it is
    `one_way`. Without `other`: from those of `one` to everybody else.
    """

    one: frozenset[PeerId]
    other: frozenset[PeerId]
    begins_s: float
    ends_s: float
    one_way: bool = False

    def takes(self, sender: PeerId, receiver: PeerId, leaves: float, arrives: float) -> bool:
        """Is this message lost?"""
        if leaves >= self.ends_s or arrives < self.begins_s:
            return False
        return self._parts(sender, receiver) or (not self.one_way and self._parts(receiver, sender))

    def _parts(self, sender: PeerId, receiver: PeerId) -> bool:
        return sender in self.one and (receiver in self.other if self.other else receiver not in self.one)


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
    taken: Counter[Cut] = field(default_factory=Counter)
    """Messages and payloads that each cut took."""


@dataclass(frozen=True, slots=True)
class Squeeze:
    """A peer's link at present: `share` of its rate, and so many seconds more latency."""

    share: float = 1.0
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a payload: when its sender is rid of it, or finds that it `failed`, and when copies arrive."""

    at: float
    arrivals: tuple[float, ...]
    failed: bool = False


class Line:
    """An uplink or a downlink: one payload at a time, each as early as it fits. One that is sent again later, when a cut is
    over, has its time then, and holds up nobody until then."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float]] = []
        """(begin, end), in order, apart from each other."""

    def begins(self, earliest: float, seconds: float) -> float:
        """When a payload that takes so long could begin, not before `earliest`."""
        for begin, end in self._taken:
            if earliest + seconds <= begin:
                break
            earliest = max(earliest, end)
        return earliest

    def take(self, begins: float, ends: float, now: float) -> None:
        """A payload has this time, which `begins` found free. What was before now is forgotten."""
        old = min(now, begins)
        before = [taken for taken in self._taken if old < taken[1] <= begins]
        after = [taken for taken in self._taken if taken[0] >= ends]
        if before and before[-1][1] == begins:
            begins = before.pop()[0]
        self._taken = [*before, (begins, ends), *after]


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
        self._up: defaultdict[PeerId, Line] = defaultdict(Line)
        self._down: defaultdict[PeerId, Line] = defaultdict(Line)
        self._squeezed: dict[PeerId, Squeeze] = {}
        self.num_squeezed: Counter[PeerId] = Counter()
        """Payloads that took longer for it."""

    def latency(self, one: PeerId, other: PeerId) -> float:
        """One-way delay without queueing, in seconds; the same in both directions."""
        if one == other:
            return LOOPBACK_S
        key = (one, other) if one < other else (other, one)
        found = self._latency.get(key)
        if found is None:
            found = self._latency[key] = self._rng.uniform(*self._latency_range)
        if not self._squeezed:
            return found
        return found + sum(self._squeezed[peer].late_s for peer in key if peer in self._squeezed)

    def rate(self, peer: PeerId) -> float:
        """Bytes per second of the peer's uplink, and of its downlink."""
        found = self._rate.get(peer)
        if found is None:
            found = self._rate[peer] = self._rng.uniform(*self._rate_range)
        return found * self._squeezed[peer].share if peer in self._squeezed else found

    def set_rate(self, peer: PeerId, bytes_s: float) -> None:
        """This peer's link, instead of a drawn one."""
        self._rate[peer] = bytes_s

    def squeeze(self, peer: PeerId, squeeze: Squeeze | None) -> None:
        """This peer's link is worse from now on, or (None) as it was."""
        self._squeezed.pop(peer, None)
        if squeeze:
            self._squeezed[peer] = squeeze

    def parted(self, peers: Collection[PeerId], now: float) -> tuple[PeerId, PeerId] | None:
        """Two of the peers of which the first can tell the second nothing at present."""
        cuts = [cut for cut in self._weather.cuts if cut.begins_s <= now < cut.ends_s]
        if not cuts:
            return None
        pairs = ((a, b) for a in peers for b in peers if a != b)
        found = next((pair for pair in pairs if any(cut.takes(*pair, now, now) for cut in cuts)), None)
        if found:
            self._weather.taken.update(cut for cut in cuts if cut.takes(*found, now, now))
        return found

    def control(self, sender: PeerId, receiver: PeerId, now: float) -> list[float]:
        """When copies of a control message arrive; none if the link is cut."""
        if sender == receiver:
            return [now + LOOPBACK_S]
        arrives = now + self._delay(sender, receiver)
        if self._weather.cuts and self._cut(sender, receiver, now, arrives):
            return []
        return self._weathered(sender, receiver, arrives, payload=False)

    def payload(self, sender: PeerId, receiver: PeerId, now: float, num_bytes: int, patience_s: float = math.inf) -> Sent:
        """A payload that the link takes is sent again when it passes something once more; if that takes longer than
        `patience_s`, the sender is told that it failed."""
        if sender == receiver:
            return Sent(now, (now + LOOPBACK_S,))
        self.num_squeezed.update(peer for peer in (sender, receiver) if peer in self._squeezed)
        up, down, earliest = self._up[sender], self._down[receiver], now
        while True:
            sends_s, gets_s = self._seconds(sender, receiver, num_bytes)
            leaves = up.begins(earliest, sends_s)
            rid = leaves + sends_s
            arrives = rid + self._delay(sender, receiver)
            cut = self._cut(sender, receiver, earliest, arrives)
            if cut is None:
                break
            earliest = cut.ends_s + self._rng.uniform(*RECONNECT_S)
            if earliest - now > patience_s:
                return Sent(now + patience_s, (), failed=True)
        up.take(leaves, rid, now)
        comes = down.begins(arrives - gets_s, gets_s)
        arrives = max(arrives, comes + gets_s)
        down.take(comes, arrives, now)
        return Sent(rid, tuple(self._weathered(sender, receiver, arrives, payload=True)))

    def _seconds(self, sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, float]:
        """For how long a payload takes the sender's uplink, and the receiver's downlink."""
        return num_bytes / self.rate(sender), num_bytes / self.rate(receiver)

    def forget(self, now: float) -> None:
        """What has arrived before now holds up nothing that is sent from now on."""
        old = [lane for lane, at in self._last.items() if at < now]
        for lane in old:
            del self._last[lane]

    def _delay(self, sender: PeerId, receiver: PeerId) -> float:
        return self.latency(sender, receiver) * (1.0 + 0.25 * self._rng.random())

    def _weathered(self, sender: PeerId, receiver: PeerId, arrives: float, *, payload: bool) -> list[float]:
        weather, rng = self._weather, self._rng
        lane = (sender, receiver, payload)
        if rng.random() < weather.reorder:
            weather.num_reorders += 1
            out = [arrives + rng.random() * weather.late_s]
        else:
            earliest = self._last[lane] + 1e-9
            self._last[lane] = at = arrives if arrives >= earliest else earliest
            out = [at]
        if rng.random() < weather.duplicate:
            weather.num_duplicates += 1
            out.append(out[0] + rng.random() * weather.late_s)
        return out

    def _cut(self, sender: PeerId, receiver: PeerId, leaves: float, arrives: float) -> Cut | None:
        """The cut that takes this, the one that lasts longest; it is counted."""
        cuts = [cut for cut in self._weather.cuts if cut.takes(sender, receiver, leaves, arrives)]
        if not cuts:
            return None
        self._weather.taken.update(cuts)
        return max(cuts, key=lambda cut: cut.ends_s)
