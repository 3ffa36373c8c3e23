"""What a runtime is given: the ports of its node, and who else looks at what passes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node.checkpoints.store import CheckpointStore
from node.ports import Clock, Directory, EventSink, Lease, Neighbours, PayloadPool, PeerError, PeerTransport, StageExecutor
from node.range_book import Piece, in_earnest
from protocol.commands import Command
from protocol.events import Event


def _nobody(_: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Ports:
    """The world of one node."""

    clock: Clock
    directory: Directory
    transport: PeerTransport
    executor: StageExecutor
    pool: PayloadPool
    sink: EventSink
    donors: Neighbours
    store: CheckpointStore | None = None
    """Where stages are saved, under policy `checkpoint`."""
    piece: Piece = in_earnest
    """In which pieces state is copied."""


@dataclass(frozen=True, slots=True)
class Observers:
    """Who else wants to see what passes through; none may block or raise."""

    on_event: Callable[[Event], None] = _nobody
    on_command: Callable[[Command], None] = _nobody
    on_lag: Callable[[float], None] = _nobody
    """How much later than asked a tick came, in seconds."""
    on_published: Callable[[float], None] = _nobody
    """Monotonic time of the last lease that was stored."""
    on_fault: Callable[[PeerError], None] = _nobody
    """What another did wrong here: a tensor that was refused is a `BadTensorError`."""
    on_leases: Callable[[list[Lease]], None] = _nobody
    """Who was in the directory at the last look."""
    on_decided: Callable[[Event, float, list[Command]], None] = lambda *_: None
    """What followed from an event at a time of the node's clock, before it is carried out."""
