"""What the demo learns of its swarm, from outside only: event logs and /status, like any script could."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from node import http_client
from node.demo.process import NodeProcess
from node.ports import UnusableError
from node.progress import Progress

STATUS_INTERVAL_S = 1.0
STATUS_TIMEOUT_S = 0.5
RECOVERIES = ("rebuild", "promoted", "rolled_back")


@dataclass
class Watch:
    """Follows a swarm. The run's progress is the furthest of all nodes' event logs."""

    nodes: Sequence[NodeProcess]
    progress: Progress
    on_event: Callable[[dict[str, Any]], None] = lambda _event: None
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name of the node; the last one that it gave."""
    _recoveries: set[tuple[Any, ...]] = field(default_factory=set)
    _asked_at: float = 0.0

    def look(self, now: float) -> None:
        """Read new events; ask for /status once a second. `now`: monotonic s."""
        for node in self.nodes:
            for event in node.tail.read():
                self._on_event(event)
        if now - self._asked_at >= STATUS_INTERVAL_S:
            self._asked_at = now
            self._ask()

    def _on_event(self, event: dict[str, Any]) -> None:
        self.on_event(event)
        type_ = str(event.get("type"))
        if type_ in RECOVERIES:
            # Several nodes note the same recovery.
            number = event.get("epoch") if type_ == "rolled_back" else event.get("generation")
            self._recoveries.add((type_, event.get("stage"), str(number), event.get("step")))
        elif type_ in ("loss", "validation"):
            # All processes of one machine share the monotonic clock.
            self.progress.note(type_, event, float(event["t"]))
        self.progress.num_recoveries = len(self._recoveries)

    def _ask(self) -> None:
        for node in self.nodes:
            if node.running is None or node.process.poll() is not None:
                continue
            try:
                self.statuses[node.name] = http_client.status(node.running.http, STATUS_TIMEOUT_S)
            except UnusableError:
                continue  # It is busy or about to end; the next round tells.

    @property
    def sentence(self) -> str:
        """What the swarm does or waits for."""
        told = [status for status in self.statuses.values() if status.get("sentence")]
        return str(max(told, key=lambda status: int(status.get("step") or 0))["sentence"]) if told else ""


def wait_until_ready(node: NodeProcess, deadline: float) -> bool:
    """Poll until the node is up, False once it ended or the deadline (monotonic s) passed."""
    while time.monotonic() < deadline:
        if node.check_ready():
            return True
        if node.exit_code is not None:
            return False
        time.sleep(0.05)
    return False
