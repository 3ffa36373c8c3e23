"""How fast each node computes, from what its counters gained over the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from node.monitor.exposition import Exposition
from protocol.ids import PeerId

EMBEDDING_OPS, BLOCK_OPS = ("embed", "head", "embed_backward"), ("forward", "backward")
MAX_POINTS = 64


@dataclass(frozen=True, slots=True)
class _Point:
    at: float
    step: int
    seconds: Mapping[str, float]
    counts: Mapping[str, float]


class Pace:
    """`window_s`: over how long. A node that began anew, or whose counters fell, is measured anew."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._points: dict[PeerId, tuple[int, deque[_Point]]] = {}

    def note(self, peer: PeerId, incarnation: int, at: float, step: int, metrics: Exposition) -> None:
        """What the peer told at `at`. While it computes nothing, its pace is what it was."""
        known, points = self._points.get(peer, (incarnation, deque[_Point](maxlen=MAX_POINTS)))
        point = _Point(at, step, _by_op(metrics, "regrow_compute_seconds_total"), _by_op(metrics, "regrow_computations_total"))
        if not point.counts or (points and points[-1].counts == point.counts):
            return
        if known != incarnation or (points and _fell(points[-1], point)):
            points = deque(maxlen=MAX_POINTS)
        points.append(point)
        while len(points) > 2 and at - points[1].at >= self._window_s:
            points.popleft()
        self._points[peer] = incarnation, points

    def keep(self, peers: Iterable[PeerId]) -> None:
        """Nobody else is measured any more."""
        kept = set(peers)
        self._points = {peer: points for peer, points in self._points.items() if peer in kept}

    def step_seconds(self, peer: PeerId) -> float | None:
        """Own computing for a step."""
        ends = self._ends(peer)
        if ends is None or ends[1].step <= ends[0].step:
            return None
        before, after = ends
        return (sum(after.seconds.values()) - sum(before.seconds.values())) / (after.step - before.step)

    def rate(self, peer: PeerId, stages: Sequence[int]) -> float | None:
        """Microbatches per second that it could take through the stages of which it is an active replica."""
        ends = self._ends(peer)
        if ends is None:
            return None
        blocks = sum(stage > 0 for stage in stages)
        parts = [_each(ends, BLOCK_OPS)] * blocks + ([_each(ends, EMBEDDING_OPS)] if 0 in stages else [])
        seconds = sum(part for part in parts if part is not None)
        return 1 / seconds if seconds > 0 and None not in parts else None

    def _ends(self, peer: PeerId) -> tuple[_Point, _Point] | None:
        _, points = self._points.get(peer, (0, deque[_Point]()))
        return (points[0], points[-1]) if len(points) > 1 else None


def _each(ends: tuple[_Point, _Point], ops: Sequence[str]) -> float | None:
    """Seconds that a microbatch takes in these passes, one after another; None before each was seen."""
    total = 0.0
    for op in ops:
        count = ends[1].counts.get(op, 0.0) - ends[0].counts.get(op, 0.0)
        if count <= 0:
            return None
        total += (ends[1].seconds.get(op, 0.0) - ends[0].seconds.get(op, 0.0)) / count
    return total


def _by_op(metrics: Exposition, name: str) -> dict[str, float]:
    return {dict(labels).get("op", ""): value for labels, value in metrics.by(name).items()}


def _fell(before: _Point, after: _Point) -> bool:
    return any(after.counts.get(op, 0.0) < count for op, count in before.counts.items()) or any(
        after.seconds.get(op, 0.0) < seconds for op, seconds in before.seconds.items()
    )
