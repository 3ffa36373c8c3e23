"""Every metric that our code has, as it is scraped, and every metric that an expression asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from node.metrics import Metrics
from tests.tools.clock import StepClock

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",), "gauge": ("",)}
MONITOR = frozenset(
    "regrow_swarm_step regrow_swarm_last_step regrow_swarm_loss regrow_swarm_validation_loss regrow_swarm_tokens_total"
    " regrow_swarm_tokens_per_second regrow_swarm_commit_age_seconds regrow_swarm_goodput_ratio regrow_swarm_replicas"
    " regrow_swarm_stage_throughput regrow_swarm_bottleneck_stage regrow_swarm_stage_lost regrow_swarm_lost_stages"
    " regrow_swarm_recoveries_total regrow_swarm_recovery_coefficient regrow_swarm_nodes regrow_swarm_leases"
    " regrow_swarm_node_step regrow_swarm_node_tokens_total regrow_swarm_node_share regrow_swarm_clock_offset_seconds"
    " regrow_swarm_node_starts_total regrow_swarm_node_step_seconds regrow_swarm_series_dropped_total"
    " regrow_monitor_observe_seconds_bucket regrow_monitor_observe_seconds_sum regrow_monitor_observe_seconds_count"
    " regrow_monitor_observe_failures_total".split()
)
"""What `regrow monitor` tells of the swarm."""
PROMETHEUS = frozenset({"up", "ALERTS"})
"""What Prometheus makes itself."""
_NAME = re.compile(r"(?<![\w:$\"])(?:regrow_\w+|process_\w+|run(?:_\w+)?:[\w:]+|up|ALERTS)\b(?!\s*\()")


def families() -> list[Metric]:
    """Of a node: name, type, help; with samples where the value is known."""
    metrics = Metrics(StepClock())
    metrics.facts.refresh = lambda: None
    told = {family.name: family for family in metrics.registry.collect()}
    return [*told.values(), *(family for family in metrics.facts.describe() if family.name not in told)]


def scraped(found: Iterable[Metric]) -> set[str]:
    """Names of the series that these families have."""
    return {family.name + suffix for family in found for suffix in SUFFIXES[family.type]}


def in_code() -> set[str]:
    """Every name that a node or the monitor may show."""
    return scraped(families()) | MONITOR


def asked_for(expr: str) -> set[str]:
    """Metrics and recorded series in an expression."""
    return set(_NAME.findall(expr)) - PROMETHEUS
