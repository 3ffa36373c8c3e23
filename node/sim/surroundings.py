"""The part of the simulated world that computing and copying need."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from node.sim.invariants import Invariants
from node.sim.network import Network
from node.sim.nodes import SimNode
from protocol.events import Event
from protocol.ids import PeerId
from protocol.manifest import Manifest


class Surroundings(Protocol):
    """What `World` offers."""

    manifest: Manifest
    rng: random.Random
    network: Network
    watch: Invariants
    now: float
    nodes: dict[PeerId, SimNode]
    payload_bytes: int

    def post(self, at: float, node: SimNode | None, call: Callable[..., None], *args: Any) -> None:
        """Call at a time."""

    def handle(self, node: SimNode, event: Event) -> None:
        """Let the node decide about the event and carry out what follows."""

    def running(self, stage: int) -> list[SimNode]:
        """Nodes that run and have something of the stage."""
