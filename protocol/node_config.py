"""What a node is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Member
from protocol.manifest import Manifest


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What a node is, for as long as it lives."""

    manifest: Manifest
    member: Member
    name: str
    address: str
    """HOST:PORT of its gRPC server, as announced."""
    founder: bool = False
    """This node begins the run: it coordinates and is the genesis voter."""
    wished_stage: int = -1
    memory_bytes: int = 0
