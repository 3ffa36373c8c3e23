"""Every metric that our code has, as it is scraped, and every metric that an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from node.metrics import Metrics
from node.monitor.metrics import MonitorMetrics
from node.monitor.picture import NodeView, Picture, StageView
from tests.tools.clock import StepClock

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}
PROMETHEUS = frozenset({"up", "ALERTS"})
"""What Prometheus makes itself."""
_NAME = re.compile(r"(?<![\w:$\"])(?:regrow_\w+|process_\w+|run(?:_\w+)?:[\w:]+|up|ALERTS)\b(?!\s*\()")


def families() -> list[Metric]:
    """Of a node: name, type, help; with samples where the value is known."""
    metrics = Metrics(StepClock())
    metrics.facts.refresh = lambda: None
    told = {family.name: family for family in metrics.registry.collect()}
    return [*told.values(), *(family for family in metrics.facts.describe() if family.name not in told)]


def monitor_metrics() -> MonitorMetrics:
    """Of a monitor that knows all there is to know of a run."""
    stage = StageView(1, {"active": 1}, False, throughput=1.0, coefficients={2: 0.5})
    node = NodeView(
        "peer", "peer", "", "live", "seated", (1,), 1, 0.1, step=1, tokens={1: 64}, share=0.5, offset_s=0.1, step_seconds=1.0
    )
    picture = Picture(
        "run",
        step=1,
        last_step=2,
        loss=1.0,
        validation=(1, 1.0),
        tokens=64,
        tokens_per_second=1.0,
        commit_age_s=1.0,
        goodput=1.0,
        bottleneck=1,
        stages=(stage,),
        nodes=(node,),
    )
    metrics = MonitorMetrics("run")
    metrics.show(picture)
    return metrics


def monitor_families() -> list[Metric]:
    """Of a monitor: name, type, help, samples."""
    return list(monitor_metrics().registry.collect())


def scraped(found: Iterable[Metric]) -> set[str]:
    """Names of the series that these families have."""
    return {family.name + suffix for family in found for suffix in SUFFIXES[family.type]}


def in_code() -> set[str]:
    """Every name that a node or the monitor may show."""
    return scraped([*families(), *monitor_families()])


def asked_for(expr: str) -> set[str]:
    """Metrics and recorded series in an expression."""
    return set(_NAME.findall(expr)) - PROMETHEUS
