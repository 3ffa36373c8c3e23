"""Payloads that simulated nodes have, by attempt: what they have sent on and keep for others until the step is over apart, the
rest is in flight."""

from __future__ import annotations

from collections import Counter, defaultdict

from node.sim.machine import BrokenError, Key, require
from node.sim.nodes import SimNode


def _kept(node: SimNode) -> tuple[Key, int] | None:
    """(step, attempt) of the open attempt, and how many payloads its seats keep that they have sent on."""
    bench = getattr(node.state, "bench", None)
    if bench is None or bench.open is None:
        return None
    count = 0
    for seat in bench.seats.values():
        if seat.attempt:
            count += len(seat.attempt.sent)
    return ((bench.open.step, bench.open.attempt), count) if count else None


class InFlight:
    """Raises `BrokenError` where a payload is released that was never given, or one is left that should not."""

    def __init__(self) -> None:
        self.grown: Key | None = None
        """Of which attempt the last payload came."""
        self.count: Counter[Key] = Counter()
        self._kept: dict[SimNode, tuple[Key, int]] = {}
        self._tags: dict[SimNode, dict[int, Key]] = defaultdict(dict)

    def given(self, node: SimNode, handle: int, tag: Key) -> None:
        """A node has one more."""
        self._tags[node][handle] = tag
        self.count[tag] += 1
        self.grown = tag

    def released(self, node: SimNode, handle: int) -> None:
        """One less."""
        tag = self._tags[node].get(handle)
        if tag is None:
            raise BrokenError(f"{node!r} releases payload {handle}, which it was never given")
        self.count[tag] -= 1

    def forget(self, node: SimNode, handle: int) -> None:
        """The node will not have this one again."""
        self._tags[node].pop(handle, None)

    def look(self, node: SimNode) -> None:
        """As many are kept as the seats say: what they have not there is in flight, or leaks."""
        if node.dead:
            return
        before, now = self._kept.pop(node, None), _kept(node)
        if node.frozen and before:
            now = max(before, now or before)  # what it has decided to release is not released yet
        if before:
            self.count[before[0]] += before[1]
        if now:
            self._kept[node] = now
            self.count[now[0]] -= now[1]

    def gone(self, node: SimNode) -> None:
        """The node's memory is gone."""
        tag, kept = self._kept.pop(node, ((0, 0), 0))
        self.count[tag] += kept
        for handle, count in node.pool.owned.items():
            self.count[self._tags[node][handle]] -= count
        self._tags.pop(node, None)

    def quiet(self, node: SimNode) -> None:
        """A node at rest has none."""
        left = sorted(node.pool.owned)
        where = [self._tags[node][handle] for handle in left]
        require(not left, f"{node!r} never released payloads {left} of {where}")
