"""What a monitor tells Prometheus of the whole run: a picture as metrics, each with the label `run`.

What is not known is absent. At most `max_series` are told: whatever concerns the run first, then node
by node, members of the run before others; what is left out is counted, and said once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from node.monitor.picture import LEASE_STATES, NODE_STATES, NodeView, Picture
from protocol.rungs import LADDER

MAX_SERIES = 20_000
OBSERVE_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_log = logging.getLogger(__name__)
Value = float | None
Row = tuple[tuple[str, ...], Value]
"""(values of the labels, value)."""


@dataclass(frozen=True, slots=True)
class _Series:
    """One metric of the run or, with `peer` among its labels, of its nodes."""

    name: str
    help: str
    labels: tuple[str, ...]
    rows: tuple[Row, ...]

    def known(self) -> _Series:
        """Without what is not known."""
        return replace(self, rows=tuple(row for row in self.rows if row[1] is not None))

    def family(self, run: str) -> Metric:
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        family = kind(self.name, self.help, labels=["run", *self.labels])
        for values, value in self.rows:
            assert value is not None, "unknown ones were left out"
            family.add_metric([run, *values], value)
        return family


class MonitorMetrics(Collector):
    """`show` takes the newest picture; `observed` and `failed` are told of each look at a node."""

    def __init__(self, run_id: str, max_series: int = MAX_SERIES) -> None:
        self.registry = CollectorRegistry()
        self._run, self._max_series = run_id, max_series
        self._series: list[_Series] = []
        self._seconds = Histogram(
            "regrow_monitor_observe_seconds",
            "Time until a node had told what the monitor asks.",
            ["run"],
            registry=self.registry,
            buckets=OBSERVE_SECONDS,
        ).labels(run_id)
        self._failures = Counter(
            "regrow_monitor_observe_failures",
            "Looks at a node that failed: it did not answer, or with something that cannot be shown.",
            ["run"],
            registry=self.registry,
        ).labels(run_id)
        self._dropped = Counter(
            "regrow_swarm_series_dropped",
            "Series that were left out, of the run's nodes or of what a node tells itself, each time that they were.",
            ["run"],
            registry=self.registry,
        ).labels(run_id)
        self.registry.register(self)

    def observed(self, seconds: float) -> None:
        """A node told something."""
        self._seconds.observe(max(0.0, seconds))

    def failed(self) -> None:
        """A node did not, or nothing of use."""
        self._failures.inc()

    def dropped(self, count: int, whose: str) -> None:
        """Series were left out."""
        if count > 0:
            if not self._dropped._value.get():
                _log.warning("series are left out from now on, and counted in regrow_swarm_series_dropped_total: %s", whose)
            self._dropped.inc(count)

    def show(self, picture: Picture) -> None:
        """From now on this is told."""
        run = [series.known() for series in _of_run(picture)]
        left = self._max_series - sum(len(series.rows) for series in run)
        kept, dropped = list[NodeView](), 0
        for node in sorted(picture.nodes, key=lambda node: (node.lease != "seated", node.peer)):
            size = sum(len(series.known().rows) for series in _of_nodes([node]))
            if size <= left and not dropped:
                kept.append(node)
                left -= size
            else:
                dropped += size
        self.dropped(dropped, f"the run has more than {self._max_series}")
        self._series = [*run, *(series.known() for series in _of_nodes(kept))]

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        for series in self._series:
            if series.rows:
                yield series.family(self._run)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: names do not clash."""
        return ()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """(body, content type) for a scrape."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _one(value: Value) -> tuple[Row, ...]:
    return (((), value),)


def _counts(found: Sequence[str], words: Iterable[str]) -> tuple[Row, ...]:
    return tuple(((word,), found.count(word)) for word in words)


def _of_run(p: Picture) -> Iterator[_Series]:
    def gauge(name: str, help_: str, value: Value) -> _Series:
        return _Series(f"regrow_swarm_{name}", help_, (), _one(value))

    yield gauge("step", "Last committed step, as the run's members tell it.", p.step)
    yield gauge("last_step", "The run's last step.", p.last_step)
    yield gauge("loss", "Mean training loss per token of the last step, in nats.", p.loss)
    yield gauge("validation_loss", "Mean held-out loss per token, in nats.", p.validation[1] if p.validation else None)
    yield gauge("tokens_total", "Tokens of all committed steps; what is repeated counts once.", p.tokens)
    yield gauge("tokens_per_second", "Of committed steps, over the last minute.", p.tokens_per_second)
    yield gauge("commit_age_seconds", "Since the monitor saw the last step being committed, or came.", p.commit_age_s)
    yield gauge("goodput_ratio", "Microbatches that count, as a share of those computed, of nodes seen.", p.goodput)
    yield gauge("bottleneck_stage", "The stage whose replicas together are slowest.", p.bottleneck)
    lost = sum(stage.lost for stage in p.stages) if p.stages else None
    yield gauge("lost_stages", "Stages without an active replica.", lost)
    yield from _of_stages(p)
    states = _counts([node.state for node in p.nodes], NODE_STATES)
    yield _Series("regrow_swarm_nodes", "Nodes with a lease, by how they are.", ("state",), states)
    claims = _counts([node.lease for node in p.nodes], LEASE_STATES)
    yield _Series("regrow_swarm_leases", "Leases, by what they are for.", ("state",), claims)
    rungs = tuple(((rung,), p.recoveries.get(rung, 0)) for rung in LADDER)
    yield _Series("regrow_swarm_recoveries_total", "Stages that train again, by how they came back.", ("rung",), rungs)


def _of_stages(p: Picture) -> Iterator[_Series]:
    def series(name: str, help_: str, labels: tuple[str, ...], rows: Iterable[Row]) -> _Series:
        return _Series(f"regrow_swarm_{name}", help_, labels, tuple(rows))

    replicas = (((str(s.stage), role), count) for s in p.stages for role, count in s.replicas.items())
    yield series("replicas", "Replicas on the roster.", ("stage", "role"), replicas)
    rates = (((str(s.stage),), s.throughput) for s in p.stages)
    yield series("stage_throughput", "Microbatches per second that its active replicas can compute.", ("stage",), rates)
    lost = (((str(s.stage),), float(s.lost)) for s in p.stages)
    yield series("stage_lost", "1 while a stage has no active replica.", ("stage",), lost)
    parts = (((str(s.stage), str(of)), value) for s in p.stages for of, value in s.coefficients.items())
    yield series("recovery_coefficient", "What a rebuilt stage was made of.", ("stage", "source"), parts)


def _of_nodes(nodes: Sequence[NodeView]) -> Iterator[_Series]:
    def series(name: str, help_: str, value: str) -> _Series:
        rows = tuple(((node.label,), getattr(node, value)) for node in nodes)
        return _Series(f"regrow_swarm_{name}", help_, ("peer",), rows)

    yield series("node_step", "Last committed step that the node tells.", "step")
    yield series("node_share", "Part of the swarm's work that was this node's.", "share")
    yield series("clock_offset_seconds", "The node's clock minus the monitor's.", "offset_s")
    yield series("node_starts_total", "Starts of the node so far, by its lease.", "incarnation")
    yield series("node_step_seconds", "Own computing for a step, over the last minute.", "step_seconds")
    tokens = "Tokens that the node has shown to be counted at a stage, by the commits: over a stage's nodes, those of the run."
    yield _Series("regrow_swarm_node_tokens_total", tokens, ("peer", "stage"), tuple(_token_rows(nodes)))


def _token_rows(nodes: Iterable[NodeView]) -> Iterator[Row]:
    for node in nodes:
        for stage, tokens in node.tokens.items():
            yield (node.label, str(stage)), tokens
