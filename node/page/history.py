"""Curves of a whole run in bounded room: loss, validation loss, tokens per second, by step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_POINTS = 400
MAX_MARKS = 60
MARKED = ("lost", "rebuild", "recovered", "rolled_back", "forked")


@dataclass(slots=True)
class _Bucket:
    step: int
    total: float
    weight: float
    count: int = 1

    def take(self, other: _Bucket) -> None:
        self.step = max(self.step, other.step)
        self.total += other.total
        self.weight += other.weight
        self.count += other.count


class Curve:
    """At most `limit` points, whatever comes: each is the weighted mean of equally many values in a row, the last of fewer.
    Old points change only when all are halved."""

    def __init__(self, limit: int = MAX_POINTS) -> None:
        assert limit >= 2 and limit % 2 == 0, "points are merged in pairs"
        self._limit, self._per_point = limit, 1
        self._buckets: list[_Bucket] = []

    def add(self, step: int, value: float, weight: float = 1.0) -> None:
        """A value of a step; what is not finite, weighs nothing, or is of a step that was drawn already, is left out."""
        if not (math.isfinite(value) and math.isfinite(weight) and weight > 0):
            return
        last = self._buckets[-1] if self._buckets else None
        if last and step <= last.step:
            return
        fresh = _Bucket(step, value * weight, weight)
        if last and last.count < self._per_point:
            last.take(fresh)
            return
        if len(self._buckets) == self._limit:
            self._halve()
            self.add(step, value, weight)
            return
        self._buckets.append(fresh)

    def cut(self, step: int) -> None:
        """The run went back to this step: what came after is drawn again."""
        self._buckets = [bucket for bucket in self._buckets if bucket.step <= step]

    def points(self) -> list[tuple[int, float]]:
        """(last step, mean) of each."""
        return [(bucket.step, bucket.total / bucket.weight) for bucket in self._buckets]

    def _halve(self) -> None:
        self._per_point *= 2
        pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
        self._buckets = [self._merged(*pair) for pair in pairs]

    @staticmethod
    def _merged(first: _Bucket, second: _Bucket) -> _Bucket:
        first.take(second)
        return first


class History:
    """Fed with notes; `wall` is when each was made, in seconds since the epoch."""

    def __init__(self) -> None:
        self.loss, self.validation, self.tokens_per_s = Curve(), Curve(), Curve()
        self.step = 0
        """The newest."""
        self.committed_at: float | None = None
        """When the newest step was committed."""
        self.step_s: float | None = None
        """How long a step takes of late: a mean that forgets."""
        self._marks: deque[tuple[int, str, int | None]] = deque(maxlen=MAX_MARKS)

    def note(self, type_: str, fields: Mapping[str, Any], wall: float) -> None:
        """One note of the node."""
        step = int(fields.get("step", 0))
        if type_ == "loss":
            self._committed(step, float(fields["value"]), int(fields["tokens"]), wall)
        elif type_ == "validation":
            self.validation.add(step, float(fields["value"]))
        elif type_ == "rolled_back":
            for curve in (self.loss, self.validation, self.tokens_per_s):
                curve.cut(step)
        if type_ in MARKED:
            self.mark(step, type_, fields.get("stage"))

    def mark(self, step: int, what: str, stage: int | None) -> None:
        """Something happened there; told once."""
        mark = (step, what, stage)
        if mark not in self._marks:
            self._marks.append(mark)

    def _committed(self, step: int, loss: float, tokens: int, wall: float) -> None:
        self.step = step
        self.loss.add(step, loss, tokens)
        if self.committed_at is not None and wall > self.committed_at:
            seconds = wall - self.committed_at
            self.tokens_per_s.add(step, tokens / seconds, seconds)
            self.step_s = seconds if self.step_s is None else 0.9 * self.step_s + 0.1 * seconds
        self.committed_at = wall

    def as_json(self) -> dict[str, Any]:
        """{name: [[step, value], ...]} and `marks`: [[step, what, stage], ...]."""
        return {
            "loss": [[step, round(value, 5)] for step, value in self.loss.points()],
            "validation": [[step, round(value, 5)] for step, value in self.validation.points()],
            "tokens_per_s": [[step, round(value, 1)] for step, value in self.tokens_per_s.points()],
            "marks": [list(mark) for mark in self._marks],
        }
