"""Memory, descriptors and threads of nodes while they live, and how they grow."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import linear_regression

import psutil

from node.demo.process import NodeProcess

WARM_UP_S, LEAST_S = 45.0, 90.0
"""Of a life, what is left out at its begin; and how much of the rest a slope takes."""
MIB = float(1 << 20)
COLUMNS = ("memory_mib_per_min", "descriptors_per_min", "threads_per_min")
Row = tuple[float, float, float, float]
"""Monotonic seconds, MiB, descriptors, threads."""


@dataclass
class Gauges:
    """Rows of each life of a node, by its name and process id."""

    rows: dict[tuple[str, int], list[Row]] = field(default_factory=dict)

    def read(self, nodes: list[NodeProcess]) -> None:
        """Another row of each."""
        for node in nodes:
            try:
                process = psutil.Process(node.process.pid)
                with process.oneshot():
                    row = process.memory_info().rss / MIB, float(process.num_fds()), float(process.num_threads())
            except psutil.Error:  # it ended between two looks
                continue
            self.rows.setdefault((node.name, node.process.pid), []).append((time.monotonic(), *row))

    def slopes(self) -> dict[str, dict[str, float]]:
        """Of each node's longest life, per minute; none where no life was long enough."""
        longest: dict[str, list[Row]] = {}
        for (name, _), rows in self.rows.items():
            warm = [row for row in rows if row[0] >= rows[0][0] + WARM_UP_S]
            if warm and warm[-1][0] - warm[0][0] >= LEAST_S and len(warm) > len(longest.get(name, ())):
                longest[name] = warm
        return {name: slopes_of(rows) for name, rows in sorted(longest.items())}


def slopes_of(rows: list[Row]) -> dict[str, float]:
    """By least squares."""
    minutes = [row[0] / 60 for row in rows]
    return {
        column: round(linear_regression(minutes, [row[index] for row in rows]).slope, 3)
        for index, column in enumerate(COLUMNS, start=1)
    }
