"""What the dashboards show: the one source of truth for `generate.py`, for pictures and for tests.

Plain data. `$run`, `$stage`, `$peer` and `$__rate_interval` are Grafana's variables. A run's own series carry the label
`run`, a node's besides it `stage` and `peer`, as the monitor's service discovery says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "stack", "stat", "timeline", "by_step", "bars"]

RUN = 'run=~"$run"'
STAGE = f'{RUN}, stage=~"$stage"'
PEER = f'{RUN}, stage=~"$stage", peer=~"$peer"'
ANY_PEER = f'{RUN}, peer=~"$peer"'
RATE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and what its series are called in the legend."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `unit` is Grafana's name of it; widths are in 24ths of a row."""

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    unit: str = "short"
    about: str = ""
    width: int = 8
    height: int = 8
    low_is_bad: tuple[float, float] | None = None
    """Below the first red, below the second yellow, else green."""
    high_is_bad: tuple[float, float] | None = None
    """From the first yellow, from the second red, else green."""
    words: tuple[tuple[str, str, str], ...] = ()
    """(value, what is written instead, colour)."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard. `variables`: which of run, stage, peer it has."""

    uid: str
    title: str
    about: str
    variables: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation: something that happened, drawn over every panel."""

    name: str
    expr: str
    text: str
    colour: str


def one(expr: str, legend: str = "") -> tuple[Query, ...]:
    """A panel's only query."""
    return (Query(expr, legend),)


def both(first: Query, *others: Query) -> tuple[Query, ...]:
    """A panel's queries."""
    return (first, *others)


def rate(counter: str, labels: str) -> str:
    """Per second."""
    return f"rate({counter}{{{labels}}}[{RATE}])"


def grown(counter: str, labels: str) -> str:
    """By how much within the same window."""
    return f"increase({counter}{{{labels}}}[{RATE}])"


VARIABLES = {
    "run": "label_values(regrow_swarm_step, run)",
    "stage": 'label_values(up{job="regrow", run=~"$run"}, stage)',
    "peer": 'label_values(up{job="regrow", run=~"$run", stage=~"$stage"}, peer)',
}
MARKS = (
    Mark("Stage lost", f"max by (stage) (regrow_swarm_stage_lost{{{RUN}}}) == 1", "stage {{stage}} lost", "red"),
    Mark(
        "Recovery",
        f"sum by (rung) (changes(regrow_swarm_recoveries_total{{{RUN}}}[1m])) > 0",
        "recovered by {{rung}}",
        "green",
    ),
)
UP = (("0", "down", "red"), ("1", "up", "green"))
HELD = (("0", "lost", "red"), ("1", "1", "yellow"))

SWARM = Board(
    "regrow-swarm",
    "Regrow: swarm",
    "One run as a whole: what it learns, how fast, who holds what.",
    ("run", "stage", "peer"),
    (
        Row(
            "At a glance",
            (
                Panel("Step", "stat", one(f"regrow_swarm_step{{{RUN}}}"), "none", "The last committed one.", 3, 4),
                Panel("of", "stat", one(f"regrow_swarm_last_step{{{RUN}}}"), "none", "The run's last step.", 3, 4),
                Panel("Loss", "stat", one(f"regrow_swarm_loss{{{RUN}}}"), "none", "Mean per token, in nats.", 3, 4),
                Panel("Validation loss", "stat", one(f"regrow_swarm_validation_loss{{{RUN}}}"), "none", "Held-out.", 3, 4),
                Panel("Tokens/s", "stat", one(f"regrow_swarm_tokens_per_second{{{RUN}}}"), "short", "That count.", 3, 4),
                Panel(
                    "Last commit",
                    "stat",
                    one(f"regrow_swarm_commit_age_seconds{{{RUN}}}"),
                    "s",
                    "How long ago.",
                    3,
                    4,
                    high_is_bad=(120, 600),
                ),
                Panel(
                    "Lost stages",
                    "stat",
                    one(f"regrow_swarm_lost_stages{{{RUN}}}"),
                    "none",
                    "That nobody holds now.",
                    3,
                    4,
                    high_is_bad=(1, 1),
                ),
                Panel(
                    "Goodput",
                    "stat",
                    one(f"regrow_swarm_goodput_ratio{{{RUN}}}"),
                    "percentunit",
                    "Tokens that counted, of those computed.",
                    3,
                    4,
                    low_is_bad=(0.5, 0.9),
                ),
            ),
        ),
        Row(
            "Learning",
            (
                Panel(
                    "Loss by time",
                    "line",
                    both(
                        Query(f"regrow_swarm_loss{{{RUN}}}", "training"),
                        Query(f"regrow_swarm_validation_loss{{{RUN}}}", "validation"),
                    ),
                    "none",
                    "Mean per token, in nats.",
                    12,
                ),
                Panel(
                    "Loss by step",
                    "by_step",
                    both(
                        Query(f"max by (run) (regrow_swarm_step{{{RUN}}})", "step"),
                        Query(f"max by (run) (regrow_swarm_loss{{{RUN}}})", "training"),
                        Query(f"max by (run) (regrow_swarm_validation_loss{{{RUN}}})", "validation"),
                    ),
                    "none",
                    "The same over the step; choose one run.",
                    12,
                ),
                Panel(
                    "Perplexity by time",
                    "line",
                    both(
                        Query(f"run:regrow_perplexity:exp{{{RUN}}}", "training"),
                        Query(f"run:regrow_validation_perplexity:exp{{{RUN}}}", "validation"),
                    ),
                    "none",
                    "exp of the loss.",
                    12,
                ),
                Panel(
                    "Perplexity by step",
                    "by_step",
                    both(
                        Query(f"max by (run) (regrow_swarm_step{{{RUN}}})", "step"),
                        Query(f"exp(max by (run) (regrow_swarm_loss{{{RUN}}}))", "training"),
                        Query(f"exp(max by (run) (regrow_swarm_validation_loss{{{RUN}}}))", "validation"),
                    ),
                    "none",
                    "The same over the step; choose one run.",
                    12,
                ),
            ),
        ),
        Row(
            "Speed",
            (
                Panel(
                    "Tokens/s",
                    "line",
                    both(
                        Query(f"regrow_swarm_tokens_per_second{{{RUN}}}", "as the monitor sees it"),
                        Query(rate("regrow_swarm_tokens_total", RUN), "by the count"),
                    ),
                ),
                Panel(
                    "Throughput by stage",
                    "line",
                    one(f"regrow_swarm_stage_throughput{{{STAGE}}}", "stage {{stage}}"),
                    "ops",
                    "Microbatches per second that a stage's replicas could do together.",
                ),
                Panel(
                    "Bottleneck",
                    "timeline",
                    one(f"regrow_swarm_bottleneck_stage{{{RUN}}}", "stage"),
                    "none",
                    "The stage with the least throughput.",
                ),
            ),
        ),
        Row(
            "Who holds what",
            (
                Panel(
                    "Replicas by stage",
                    "timeline",
                    one(f"run_stage:regrow_replicas:sum{{{STAGE}}}", "stage {{stage}}"),
                    "none",
                    "Active and passive ones. Red: lost; yellow: the last one; green: more.",
                    12,
                    low_is_bad=(1, 2),
                    words=HELD,
                ),
                Panel(
                    "Replicas by role",
                    "line",
                    one(f"sum by (role) (regrow_swarm_replicas{{{STAGE}}})", "{{role}}"),
                    "none",
                    "Learners copy a stage just now.",
                    4,
                ),
                Panel(
                    "Nodes", "line", one(f"regrow_swarm_nodes{{{RUN}}}", "{{state}}"), "none", "As the monitor sees them.", 4
                ),
                Panel("Leases", "line", one(f"regrow_swarm_leases{{{RUN}}}", "{{state}}"), "none", "In the directory.", 4),
            ),
        ),
        Row(
            "Nodes",
            (
                Panel(
                    "Share of the work",
                    "bars",
                    one(f"regrow_swarm_node_share{{{ANY_PEER}}}", "{{peer}}"),
                    "percentunit",
                    "By what the commits count.",
                ),
                Panel(
                    "Tokens that count",
                    "line",
                    one(f"sum by (peer) (regrow_swarm_node_tokens_total{{{ANY_PEER}}})", "{{peer}}"),
                    "short",
                    "Over all stages that the node computed.",
                ),
                Panel(
                    "Own time per step",
                    "line",
                    one(f"regrow_swarm_node_step_seconds{{{ANY_PEER}}}", "{{peer}}"),
                    "s",
                    "A straggler stands out.",
                ),
                Panel(
                    "Slowness",
                    "line",
                    one(f"run_peer:regrow_slowness:ratio{{{ANY_PEER}}}", "{{peer}}"),
                    "none",
                    "Own time per step against the median node's.",
                ),
                Panel("Step of each node", "line", one(f"regrow_swarm_node_step{{{ANY_PEER}}}", "{{peer}}"), "none"),
                Panel(
                    "Clocks",
                    "line",
                    one(f"regrow_swarm_clock_offset_seconds{{{ANY_PEER}}}", "{{peer}}"),
                    "s",
                    "Against the monitor's.",
                ),
                Panel(
                    "Starts",
                    "line",
                    one(f"regrow_swarm_node_starts_total{{{ANY_PEER}}}", "{{peer}}"),
                    "none",
                    "Incarnations that were seen: who comes and goes.",
                ),
            ),
        ),
        Row(
            "The monitor itself",
            (
                Panel(
                    "Targets",
                    "timeline",
                    one(f'up{{job="regrow", {RUN}}}', "{{peer}}"),
                    "none",
                    words=(("0", "down", "red"), ("1", "up", "green")),
                ),
                Panel(
                    "Time of an observation",
                    "line",
                    one(
                        f"histogram_quantile(0.9, sum by (le) ({rate('regrow_monitor_observe_seconds_bucket', RUN)}))",
                        "9 of 10 within",
                    ),
                    "s",
                ),
                Panel(
                    "Trouble",
                    "line",
                    both(
                        Query(grown("regrow_monitor_observe_failures_total", RUN), "visits that failed"),
                        Query(grown("regrow_swarm_series_dropped_total", RUN), "series left out"),
                    ),
                    "none",
                ),
            ),
        ),
    ),
)
