"""Gauges and counters that are read when somebody scrapes, and are absent while they are not known.

What is absent says "not known here"; a 0 would say something false. All names and helps are there from the start (`describe`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from node.machine import available_memory, free_disk

Type = Literal["gauge", "counter"]
Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, slots=True)
class Fact:
    """One metric. `label`: its only label, '' for none; the values that it takes come from our code."""

    type: Type
    help: str
    label: str = ""


class Facts(Collector):
    """Holds the last value of each fact that was told; `refresh` is called before they are shown."""

    def __init__(self, registry: CollectorRegistry, facts: dict[str, Fact]) -> None:
        self._facts = facts
        self._values: dict[str, dict[str, float]] = {name: {} for name in facts}
        self.refresh: Callable[[], None] = lambda: None
        registry.register(self)

    def tell(self, name: str, value: float | None, label: str = "") -> None:
        """None: not known (any more). A counter that would fall keeps its value."""
        fact, values = self._facts[name], self._values[name]
        if value is None:
            values.pop(label, None)
        elif fact.type == "counter":
            values[label] = max(value, values.get(label, 0.0))
        else:
            values[label] = value

    def collect(self) -> Iterator[Family]:
        """Those that are known."""
        self.refresh()
        for name, family in zip(self._facts, self.describe(), strict=True):
            for label, value in sorted(self._values[name].items()):
                family.add_metric([label] if self._facts[name].label else [], value)
            if family.samples:
                yield family

    def describe(self) -> list[Family]:
        """All, without values."""
        return [
            (GaugeMetricFamily if fact.type == "gauge" else CounterMetricFamily)(
                name, fact.help, labels=[fact.label] if fact.label else None
            )
            for name, fact in self._facts.items()
        ]


NODE_FACTS = {
    "regrow_loss": Fact("gauge", "Mean training loss per token of the last step, in nats."),
    "regrow_validation_loss": Fact("gauge", "Mean held-out loss per token, last evaluation, in nats."),
    "regrow_shadow_age_steps": Fact("gauge", "How far behind the oldest chunk kept of another stage was when told of."),
    "regrow_lease_age_seconds": Fact("gauge", "Since the last lease was stored."),
    "regrow_state_dir_free_bytes": Fact("gauge", "Room on the disk of the node's state directory."),
    "regrow_available_memory_bytes": Fact("gauge", "Memory of the machine that can be taken without swapping."),
    "regrow_gpu_memory_bytes": Fact("gauge", "Memory of the GPU that computes; absent without one.", "state"),
    "regrow_clock_offset_seconds": Fact("gauge", "This machine's clock minus that of the peer it was last compared with."),
    "regrow_upload_limit_bytes_per_second": Fact("gauge", "Most that may be sent as payload, if --max-upload-mbit says so."),
    "regrow_link_peak_bytes_per_second": Fact("gauge", "Most that went over the network within a second.", "direction"),
    "regrow_sending_seconds": Fact("counter", "Time in which a payload was on its way out, waiting for the link included."),
    "regrow_stream_events": Fact("counter", "What befell streams: refusals by fault, drops, failed dials, breaks.", "event"),
    "regrow_contributed_tokens": Fact("counter", "Tokens of committed microbatches that this node computed a stage of."),
    "regrow_contributed_steps": Fact("counter", "Committed steps that this node had a part in."),
    "regrow_work_share_ratio": Fact("gauge", "Part of the swarm's work since this node has a seat that was its own."),
}
"""What a node tells beside `node/metrics.py`."""

DeviceMemory = Callable[[], tuple[int, int]]
"""(free, total) bytes of the device that computes."""


@dataclass(frozen=True, slots=True)
class MachineWatch:
    """Reads what the machine has left. `device_memory` is None where no GPU computes."""

    state_dir: Path
    device_memory: DeviceMemory | None = None

    def tell(self, facts: Facts) -> None:
        """Bring the machine's facts up to date. What cannot be read is not known."""
        try:
            facts.tell("regrow_state_dir_free_bytes", free_disk(self.state_dir))
        except OSError:
            facts.tell("regrow_state_dir_free_bytes", None)
        facts.tell("regrow_available_memory_bytes", available_memory() or None)
        if self.device_memory is not None:
            free, total = self.device_memory()
            facts.tell("regrow_gpu_memory_bytes", free, "free")
            facts.tell("regrow_gpu_memory_bytes", total - free, "used")
