"""One node of the simulated swarm: which it is, its decisions, its machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from node.sim.machine import Pool, SimSeat, Thread
from protocol.chain import Chain
from protocol.commands import Command, Exit
from protocol.events import Event
from protocol.ids import Member, PeerId
from protocol.manifest import Manifest
from protocol.messages import Contact
from protocol.node_state import NodeConfig, NodeState


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of the swarm."""

    member: Member
    name: str
    founder: bool
    wished_stage: int = -1
    unit_s: float = 0.01
    """Seconds of one forward pass of one microbatch through one stage."""
    memory_bytes: int = 0
    """What it lets the run use; 0 = it does not know."""
    drift: float = 0.0
    """Its clock gains so much of each second."""
    skew_s: float = 0.0
    """Its wall clock is ahead by so much."""


class Decider(Protocol):
    """`protocol.node_state.NodeState`, or what a test puts in its place."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Commands that follow from the event."""


MakeState = Callable[[Manifest, NodeSpec, str], Decider]
"""(manifest, spec, address) -> a fresh state."""


def real_state(manifest: Manifest, spec: NodeSpec, address: str) -> Decider:
    """The production decision object."""
    config = NodeConfig(manifest, spec.member, spec.name, address, spec.founder, spec.wished_stage, spec.memory_bytes)
    return NodeState(config)


class SimNode:
    """One incarnation of a node and everything on its machine."""

    def __init__(self, spec: NodeSpec, state: Decider, address: str, offset_s: float) -> None:
        self.spec = spec
        self.peer: PeerId = spec.member.peer
        self.state = state
        self.address = address
        self.contact = Contact(self.peer, address)
        self.pace = 1.0 + spec.drift
        """Seconds of its clock to a second of the world."""
        self._offset_s = offset_s
        self.slowness = 1.0
        """Each computation takes so many times as long."""
        self.num_slowed = 0
        """Computations that took longer for it."""
        self.dead = False
        self.frozen = False
        self.exit: Exit | None = None
        self.died_at = 0.0
        self.loud = True
        self.backlog: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.addresses: dict[PeerId, str] = {}
        self.heard: dict[PeerId, float] = {}
        self.pool = Pool()
        self.thread = Thread()
        self.seats: dict[int, SimSeat] = {}
        self.says = ""

    def clock(self, now: float) -> float:
        """What its monotonic clock reads at a time of the world."""
        return self._offset_s + now * self.pace

    def __repr__(self) -> str:
        return f"{self.peer}/{self.spec.member.incarnation}"


def chain_of(node: SimNode) -> Chain:
    """The node's."""
    return node.state.chain  # type: ignore[attr-defined,no-any-return]


def leader_of(node: SimNode) -> str:
    """Whom the node follows."""
    return str(node.state.leader.peer)  # type: ignore[attr-defined]
