"""Commands: requests in the imperative that `NodeState.handle` returns and the runtime carries out.

A command with an outcome carries (step, attempt, microbatch) and the outcome event brings them back; a stale outcome is
dropped by comparison. Every payload handle that NodeState was given ends in exactly one `Release`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from protocol.ids import Ballot, Member, PeerId, RecordId, StateId
from protocol.messages import Message, PipeHeader
from protocol.records import Role, Shadow, Source


@dataclass(frozen=True, slots=True)
class Work:
    """One computation of one microbatch at one seat.

    op `embed`: tokens -> hidden (stage 0, first hop). `forward`: hidden -> hidden. `head`: hidden -> loss and, unless
    `evaluate`, gradient of hidden (stage 0, last hop). `backward`: gradient -> gradient, accumulated. `embed_backward`:
    gradient into the embedding, nothing goes on. With `evaluate` nothing is retained. `redundant`: the forward pass of a stage
    (of stage 0 that to the loss) at a passive replica of it, of which nothing remains.
    """

    op: Literal["embed", "forward", "head", "backward", "embed_backward", "redundant"]
    stage: int
    step: int
    attempt: int
    microbatch: int
    evaluate: bool = False
    accumulate: bool = True


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Queue a control message; never fails (a peer that is not heard lapses)."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class SendPayload:
    """Send the payload, which NodeState keeps owning until its Release. Failing gives CommandFailed."""

    peer: PeerId
    header: PipeHeader
    handle: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run `work` on the payload `handle` (0 for `embed`). Outcome: ComputeDone or CommandFailed. `peer` sent the payload."""

    work: Work
    handle: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class Release:
    """The payload is no longer needed (a send in progress keeps its own hold until it ends)."""

    handle: int


@dataclass(frozen=True, slots=True)
class CreateSeat:
    """Make the stage's initial weights from the seed. Outcome: SeatCreated."""

    stage: int
    generation: int


@dataclass(frozen=True, slots=True)
class Learn:
    """Copy the stage's state from its other replicas, and keep it up with the run until DropSeat or StopLearning. Outcomes:
    LearningGoesOn now and then, Learned each time when all of it is of one state."""

    stage: int


@dataclass(frozen=True, slots=True)
class Regrow:
    """Make a lost stage of others (CheckFree): weights mixed, moments zero or mixed too. Without sources: draw it from the seed
    and the generation. Outcomes as of Learn."""

    stage: int
    state_id: StateId
    """Of what is made."""
    step: int
    generation: int
    sources: tuple[Source, ...]
    lr_factor: float
    shadow: Shadow | None = None
    """It is restored of this, and of no sources."""


@dataclass(frozen=True, slots=True)
class KeepShadow:
    """Keep a shadow of a stage that another node holds, chunk by chunk within the share of the link that the manifest allows;
    one of an older generation is given up. Ends with DropShadow; SealShadow interrupts it."""

    stage: int
    generation: int
    as_of: int = -1
    """What is sealed was taken over whole: it is what the stage was at this step, in this generation. -1: it was not."""


@dataclass(frozen=True, slots=True)
class SealShadow:
    """The stage has no holder any more: what is kept of it stays as it is, and is given to whom a decided Rebuild seats.
    Outcome: ShadowSealed."""

    stage: int


@dataclass(frozen=True, slots=True)
class DropShadow:
    """It is of no use any more."""

    stage: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """The state that the node has of the stage is its newest one again, under this name. Outcome: Learned, of no bytes."""

    stage: int
    state_id: StateId
    step: int
    digest: str
    optimizer_age: int
    lr_factor: float
    generation: int


@dataclass(frozen=True, slots=True)
class Save:
    """Save the state that the stage has now, while training goes on. Outcome: Saved. `lineage`: commits that the run could go
    back to, this one included; what was saved of the stage before the last complete sets of theirs is removed."""

    stage: int
    step: int
    state_id: StateId
    record: RecordId
    digest: str
    optimizer_age: int
    lr_factor: float
    lineage: tuple[RecordId, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Make the stage's state from what was saved of it as `source` (`step` 0: from the seed); its name is `state_id` then.
    Outcome: Learned, without donors, or RestoreFailed. Ends with DropSeat or StopLearning."""

    stage: int
    source: StateId
    state_id: StateId
    step: int
    generation: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Look which stages are saved whole. Outcome: Surveyed."""

    number: int


@dataclass(frozen=True, slots=True)
class MixAhead:
    """Mix share number `part` of `parts` equal ones of a lost stage, and keep it for the newcomer. Ranges that are mixed of the
    same sources already are kept too. No outcome; ends with StopMixing."""

    stage: int
    sources: tuple[Source, ...]
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class StopMixing:
    """What was mixed of the stage is of no use any more. No outcome."""

    stage: int


@dataclass(frozen=True, slots=True)
class StopLearning:
    """The seat takes part in steps now, with the state that it has. No outcome."""

    stage: int


@dataclass(frozen=True, slots=True)
class KeepGradients:
    """Keep the last `count` reduced gradients of the stage after their update, for learners. No outcome."""

    stage: int
    count: int


@dataclass(frozen=True, slots=True)
class DropSeat:
    """Forget the stage's state. No outcome."""

    stage: int


@dataclass(frozen=True, slots=True)
class ReduceMember:
    """One row of a reduce. `microbatches` is empty ('0') for a passive replica."""

    member: Member
    role: Role
    microbatches: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum the gradient over `members`, in roster order. Outcome: Reduced or CommandFailed. Local gradients are kept."""

    ballot: Ballot
    stage: int
    step: int
    attempt: int
    members: tuple[ReduceMember, ...]
    sum_number: int = 0


@dataclass(frozen=True, slots=True)
class StopReduce:
    """The stage's sum begins anew with this number: give up the one before, with what came of it. Local gradients are kept, and
    may grow before the next `Reduce`. No outcome."""

    stage: int
    step: int
    attempt: int
    sum_number: int


@dataclass(frozen=True, slots=True)
class Apply:
    """One optimizer update: gradient = reduced sum x `gradient_scale`. Outcome: Applied. Ends the attempt's gradients."""

    stage: int
    step: int
    attempt: int
    gradient_scale: float
    learning_rate: float
    state_id: StateId


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget retained activations, accumulated and reduced gradients of this and earlier attempts. No outcome."""

    stage: int
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Introduce:
    """From now on the peer is reached at this address."""

    peer: PeerId
    address: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Payloads will go to this peer soon: open the stream for them now. No outcome."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PublishLease:
    """Write this node's claim to the directory. `leaving` makes it a tombstone."""

    stages: tuple[int, ...]
    ballot_term: int
    coordinator: bool
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """One line for events.jsonl: its `type` and fields. The sink adds `t` and `wall`."""

    type: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """A sentence for people, each time it changes."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process with this code; the sentence goes to stderr."""

    code: int
    sentence: str


Command = (
    SendMessage
    | SendPayload
    | Compute
    | Release
    | CreateSeat
    | Learn
    | Regrow
    | GoOn
    | KeepShadow
    | SealShadow
    | DropShadow
    | Save
    | Restore
    | Survey
    | MixAhead
    | StopMixing
    | StopLearning
    | KeepGradients
    | DropSeat
    | Reduce
    | StopReduce
    | Apply
    | Discard
    | Introduce
    | Connect
    | PublishLease
    | Note
    | Say
    | Exit
)
