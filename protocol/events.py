"""Events: facts in the past tense that `NodeState.handle` decides about. They serialise to JSON (`protocol.plain`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.commands import Work
from protocol.ids import PeerId, StateId
from protocol.messages import Contact, Message, PipeHeader
from protocol.records import Shadow


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. `heard`: seconds since the last byte of each peer with an open stream."""

    heard: dict[PeerId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeasesSeen:
    """Who claims to be there, from the directory; `coordinator` is the claimant with the highest ballot."""

    coordinator: Contact | None
    others: tuple[Contact, ...]
    rivals: tuple[Contact, ...] = ()
    """Everybody else who claims to coordinate, the highest ballot first; a few are enough."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A peer said something. Its identity was established by the transport."""

    peer: PeerId
    incarnation: int
    message: Message


@dataclass(frozen=True, slots=True)
class PayloadArrived:
    """An activation or gradient is here, as a handle that this node must release."""

    peer: PeerId
    header: PipeHeader
    handle: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SeatCreated:
    """The stage's initial weights are made. `state_bytes`: weights and moments."""

    stage: int
    digest: str
    state_bytes: int


@dataclass(frozen=True, slots=True)
class LearningGoesOn:
    """A learner's copy has come so far. `seconds_left`: until the newest state if no step were committed meanwhile."""

    stage: int
    num_bytes: int
    """Received so far, over all tries."""
    total_bytes: int
    """Of the stage's whole state."""
    seconds_left: float
    """1e9 where nothing comes at present."""
    num_donors: int = 0
    """Asked at present."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Every element of the stage is of `state_id` now, and the digest is the one that a donor tells for that state."""

    stage: int
    state_id: StateId
    step: int
    digest: str
    optimizer_age: int
    lr_factor: float
    generation: int
    donors: tuple[PeerId, ...]
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A Save ended; `trouble` says why nothing was saved, '' = it is whole in the store."""

    stage: int
    step: int
    num_bytes: int
    seconds: float
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ShadowSealed:
    """What is kept of a stage is this (None: not all of it, or chunks too far apart)."""

    stage: int
    shadow: Shadow | None


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """What was saved is not there, or is damaged."""

    stage: int
    source: StateId
    reason: str


@dataclass(frozen=True, slots=True)
class SavedState:
    """A stage that is saved whole, as far as can be told without reading all of it."""

    stage: int
    state_id: StateId


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A Survey ended: what there is, or why the store cannot be looked at (`trouble`)."""

    number: int
    found: tuple[SavedState, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class ComputeDone:
    """A Forward or Backward ended. `handle` is what goes to the next hop (0 = nothing)."""

    work: Work
    handle: int
    num_bytes: int
    loss_sum: float
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Reduced:
    """The replica set's sum is here; equal bytes at every member."""

    stage: int
    step: int
    attempt: int
    digest: str
    squared_norm: float
    seconds: float
    sum_number: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """The optimizer update is done."""

    stage: int
    step: int
    state_id: StateId
    digest: str
    optimizer_age: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command with an outcome ended in somebody else's fault. `peer` is '' where nobody is to blame."""

    stage: int
    step: int
    attempt: int
    microbatch: int
    peer: PeerId
    reason: str
    unsent: bool = False
    """A payload could not be sent to `peer`."""
    sum_number: int = 0
    """Of a `Reduce`, whose `microbatch` is -1."""

    @property
    def is_sum(self) -> bool:
        """Does `peer` not do its part in a sum?"""
        return self.microbatch < 0 and bool(self.peer)


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The user or the system wants this node gone."""

    reason: str


Event = (
    Tick
    | LeasesSeen
    | MessageReceived
    | PayloadArrived
    | SeatCreated
    | LearningGoesOn
    | Learned
    | Saved
    | ShadowSealed
    | RestoreFailed
    | Surveyed
    | ComputeDone
    | Reduced
    | Applied
    | CommandFailed
    | LeaveAsked
)
