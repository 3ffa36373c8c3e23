"""A run as its monitor sees it at one moment: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from node.monitor.exposition import Exposition
from node.monitor.told import Told
from node.ports import Lease
from protocol.ids import PeerId

NodeState = Literal["live", "suspected", "unreachable"]
LeaseState = Literal["claimed", "seated", "spare", "leaving"]
NODE_STATES: tuple[NodeState, ...] = ("live", "suspected", "unreachable")
LEASE_STATES: tuple[LeaseState, ...] = ("claimed", "seated", "spare", "leaving")


@dataclass(frozen=True, slots=True)
class Sighting:
    """One leased node: what it claims, and what it told when it last answered (`told_at`, s, monotonic)."""

    lease: Lease
    told: Told | None = None
    told_at: float = float("-inf")
    metrics: Exposition = field(default_factory=Exposition)
    offset_s: float | None = None
    """Its clock minus ours."""


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage. `throughput`: microbatches per second that its active replicas could do together, where that is known;
    `coefficients`: what it was last made of, where that was other stages."""

    stage: int
    replicas: Mapping[str, int]
    lost: bool
    throughput: float | None = None
    coefficients: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. What it does not tell, or told too long ago, is None. `tokens`: by stage, those that it has shown to be
    counted (`node.monitor.counted`)."""

    peer: PeerId
    label: str
    """The end of the peer id, or all of it where two have the same end."""
    name: str
    state: NodeState
    lease: LeaseState
    stages: tuple[int, ...]
    incarnation: int
    seen_s: float | None
    version: str = ""
    phase: str = ""
    sentence: str = ""
    step: int | None = None
    tokens: Mapping[int, int] = field(default_factory=dict)
    share: float | None = None
    offset_s: float | None = None
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """The run. What is not known is None."""

    run_id: str
    step: int | None = None
    last_step: int | None = None
    phase: str = "unknown"
    sentence: str = ""
    loss: float | None = None
    validation: tuple[int, float] | None = None
    """(step, loss)."""
    tokens: int | None = None
    tokens_per_second: float | None = None
    commit_age_s: float | None = None
    goodput: float | None = None
    num_stages: int | None = None
    bottleneck: int | None = None
    witnesses: int = 0
    """Nodes that tell this very state."""
    stages: tuple[StageView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    recoveries: Mapping[str, int] = field(default_factory=dict)
    roster: tuple[tuple[int, PeerId, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For /status of the monitor; names as on a node's where they mean the same."""
        told = asdict(self)
        told["validation"] = {"step": self.validation[0], "loss": self.validation[1]} if self.validation else None
        told["roster"] = [{"stage": stage, "peer": peer, "role": role} for stage, peer, role in self.roster]
        told["view"] = [
            {"peer": n.peer, "stages": list(n.stages), "phase": _PHASES[n.state], "seen_s": n.seen_s} for n in self.nodes
        ]
        for stage in told["stages"]:
            stage["coefficients"] = [{"stage": s, "coefficient": c} for s, c in stage["coefficients"].items()]
        for node in told["nodes"]:
            node["tokens"] = [{"stage": s, "tokens": t} for s, t in node["tokens"].items()]
        return told


_PHASES = {"live": "live", "suspected": "lapsed", "unreachable": "unwatched"}
