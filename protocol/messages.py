"""Control messages and payload headers: what peers say to each other, as plain data.

`node/transport` carries them as protobuf. What belongs to a decision names its ballot; a receiver drops what
carries a lower one. Messages may arrive twice, late or out of order: the receiver compares, it never assumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.ids import Ballot, Member, PeerId, RecordId, StateId
from protocol.lineage import Meeting
from protocol.records import Point, Rebuild, Record, Role, Rollback, Seating, Share
from protocol.restoring import Restoring
from protocol.revoking import Detour, Revoke, Revoked

Phase = Literal["starting", "waiting", "training", "evaluating", "paused", "finished", "leaving"]
LOST_STATE = 5
"""Exit code: state is lost that the manifest's policy cannot make again."""
PipeKind = Literal["forward", "backward", "evaluate"]


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a peer's gRPC server is reached: HOST:PORT."""

    peer: PeerId
    address: str


@dataclass(frozen=True, slots=True)
class Hop:
    """One station of a route."""

    stage: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class Route:
    """Way of one microbatch: stage 0, each block stage once in some order, stage 0 again."""

    microbatch: int
    hops: tuple[Hop, ...]
    amendment: int = 0
    """0 = as the step was opened; else the newest amendment that led it around somebody, as far as the sender knows."""


# ---- sent by every node ----


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I live; this is the newest decision I know, and the step, attempt and amendment that I work on (0 = none)."""

    incarnation: int
    ballot: Ballot
    head: RecordId
    step: int
    attempt: int
    amendment: int = 0
    aside: bool = False
    """I lead nobody and shall not stand for it: who takes me for the coordinator waits in vain."""
    standing: int = 0
    """Serial of the newest `Standing` that I heard of the coordinator that I follow; 0 = none."""
    lacks: bool = False
    """I am on the roster with a seat whose state I do not have: I hold nothing, and shall be off it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The whole state of a stage, exact, at a node without a seat for it."""

    stage: int
    state_id: StateId
    digest: str


@dataclass(frozen=True, slots=True)
class Wish:
    """I would like a seat. `stage` -1: wherever I am needed."""

    member: Member
    stage: int
    name: str
    address: str
    memory_bytes: int
    kept: tuple[Kept, ...] = ()
    """Stages that it held and still has, though the swarm took it off the roster."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """I am leaving now; do not wait for a lapse."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """I want to go in order: take me off the roster at the next boundary of a step. Repeated until it is done."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """I no longer hear this member."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class RecordsWanted:
    """Send me the records after this one."""

    head: RecordId


# ---- from a seat to the coordinator ----


@dataclass(frozen=True, slots=True)
class Learning:
    """How far this learner is. `state_id` and `digest` are '' while its ranges are of different states."""

    ballot: Ballot
    stage: int
    state_id: StateId
    digest: str
    seconds_left: float
    """Until the newest state, if no step were committed meanwhile, by what was measured."""
    head: RecordId
    """The last record that it knows: of a seat that it lost since then, and got again, it keeps nothing."""


@dataclass(frozen=True, slots=True)
class ReduceReady:
    """This active replica has accumulated all that it owns; or it is slow, and has accumulated these so far."""

    ballot: Ballot
    step: int
    attempt: int
    stage: int
    microbatches: str
    loss_sum: float
    """Stage 0: sum of the token losses of its microbatches; else 0."""
    tokens: int
    """Stage 0: number of predicted tokens; else 0."""
    seconds_per_microbatch: float


@dataclass(frozen=True, slots=True)
class ReducedReport:
    """This replica holds the stage's whole reduced gradient."""

    ballot: Ballot
    step: int
    attempt: int
    stage: int
    digest: str
    squared_norm: float
    sum_number: int = 0


@dataclass(frozen=True, slots=True)
class Stalled:
    """The attempt cannot be finished here: a bad tensor, a missed deadline, a broken send. `peer` may be to blame."""

    ballot: Ballot
    step: int
    attempt: int
    microbatch: int
    peer: PeerId
    reason: str
    unsent: bool = False
    """`peer` cannot be reached from here, nothing worse: another replica may do."""
    summing: int = -1
    """The stage in whose sum `peer` does not do its part; -1 = it is about something else."""
    sum_number: int = 0


@dataclass(frozen=True, slots=True)
class AppliedReport:
    """The update is in the weights; `digest` covers weights, moments and optimizer age."""

    ballot: Ballot
    stage: int
    step: int
    state_id: StateId
    digest: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Loss of one held-out microbatch at the parent record's weights."""

    ballot: Ballot
    parent: RecordId
    microbatch: int
    loss_sum: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Held:
    """This voter holds the proposed record."""

    ballot: Ballot
    record: RecordId


@dataclass(frozen=True, slots=True)
class Proposed:
    """A record and the ballot that carried it: held by a voter, or decided."""

    ballot: Ballot
    record: Record
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """From now on I serve no lower ballot."""

    ballot: Ballot
    head: RecordId
    held: tuple[Proposed, ...]
    """What I hold for the place after my head: one record or none."""
    decided: tuple[Proposed, ...]
    """Records after the candidate's head that I know to be decided, oldest first."""


# ---- from a candidate ----


@dataclass(frozen=True, slots=True)
class Prepare:
    """The coordinator is silent here: promise me to serve no lower ballot, if it is silent for you too."""

    ballot: Ballot
    head: RecordId
    decided: tuple[Proposed, ...]
    """Records that the receiver lacked when it last said where it stands, oldest first."""
    forks: bool = False
    """If no quorum promises, those that do are to go on without one."""


# ---- from the coordinator ----


@dataclass(frozen=True, slots=True)
class Propose:
    """Hold this record, voter. `shares` are those of all stages, for a Commit."""

    ballot: Ballot
    record: Record
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """The record is decided: apply it. `shares` are told to voters that do not hold it."""

    ballot: Ballot
    record: Record
    shares: tuple[Share, ...]
    contacts: tuple[Contact, ...] = ()
    """Of those that a Roster seats: whoever may have to lead one day must reach everybody."""
    above: tuple[str, ...] = ()
    """Of a Commit: what the receiver lacks to show its shares (`protocol.counted`)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Where the chain stands, for one that lacks more records than are kept. `contacts`: of all that are seated."""

    ballot: Ballot
    head: RecordId
    step: int
    tokens: int
    loss: float
    """Training loss of `step`, in nats per token; 0 before the first commit."""
    seatings: tuple[Seating, ...]
    voters: tuple[Member, ...]
    state_ids: tuple[StateId, ...]
    contacts: tuple[Contact, ...]
    height: int
    """Number of decided records up to `head`; nobody goes back on the chain."""
    lineage: RecordId = ""
    """The newest Roster on the chain that forked; '' = none did."""
    squared_norms: tuple[float, ...] = ()
    """Of the last commit, by stage; empty before the first."""
    generations: tuple[int, ...] = ()
    """How often each stage was rebuilt."""
    rebuilds: tuple[Rebuild, ...] = ()
    """Since the last commit."""
    lossy_forks: int = 0
    """How many Rosters on the chain forked and left a stage without a holder."""
    epoch: int = 0
    """How often the run has gone back."""
    points: tuple[Point, ...] = ()
    """What it may go back to."""
    rollback: Rollback | None = None
    """Since the last commit."""


@dataclass(frozen=True, slots=True)
class SeatWork:
    """What one seat does in a step. `microbatches` are in the order in which their gradients are accumulated."""

    stage: int
    role: Role
    generation: int
    microbatches: tuple[int, ...]
    taken: tuple[int, ...] = ()
    """Taken over from a replica that is lost to the attempt: accumulated as they come."""
    helped: tuple[int, ...] = ()
    """Computed and not accumulated: their owner has accumulated them and cannot be reached."""
    sum_number: int = 0
    """0 = the stage's first sum in the attempt; else the amendment with which its sum began anew."""


@dataclass(frozen=True, slots=True)
class OpenStep:
    """Work on this step. `routes`: of the receiver's stage-0 microbatches. The highest amendment says all that holds now."""

    ballot: Ballot
    step: int
    attempt: int
    parent: RecordId
    seats: tuple[SeatWork, ...]
    routes: tuple[Route, ...]
    contacts: tuple[Contact, ...]
    """The receiver's neighbours on all routes through it, and the peer that it has to watch."""
    watch: tuple[PeerId, ...]
    """Peers to exchange heartbeats with, the coordinator apart."""
    amendment: int = 0
    """How often work was given to others in this attempt."""
    without: tuple[PeerId, ...] = ()
    """Through these no microbatch passes any more."""
    detours: tuple[Detour, ...] = ()
    """Of microbatches that pass the receiver's seats: where they go next, or come from, instead."""


@dataclass(frozen=True, slots=True)
class StartReduce:
    """Every microbatch is accounted for once: sum the stage's gradients, whoever has its state on the roster of the parent."""

    ballot: Ballot
    step: int
    attempt: int
    stage: int
    owners: tuple[int, ...]
    """For each microbatch the place, from 0, of the replica that accumulated it among the active ones that take part."""
    without: tuple[PeerId, ...] = ()
    """Replicas that take no part in this attempt."""
    contacts: tuple[Contact, ...] = ()
    """Of those that take part, where it is told again or the step's first attempt was voided: the roster came with them."""
    sum_number: int = 0


@dataclass(frozen=True, slots=True)
class VoidStep:
    """Forget all work on the attempt."""

    ballot: Ballot
    step: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """I no longer hear this member; exchange heartbeats with it and tell me with `Suspect` if it lapses at you too."""

    ballot: Ballot
    member: Member
    address: str


@dataclass(frozen=True, slots=True)
class OpenEvaluation:
    """Run these held-out microbatches forward at the parent record's weights."""

    ballot: Ballot
    parent: RecordId
    step: int
    routes: tuple[Route, ...]
    contacts: tuple[Contact, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """How the run stands, for everybody who waits for something."""

    ballot: Ballot
    phase: Phase
    sentence: str
    step: int
    validation_step: int
    """Step of the last evaluation; -1 = none yet."""
    validation_loss: float
    """Mean held-out loss per token, in nats."""
    exit_code: int = 0
    """`LOST_STATE`: the run is over, as the sentence says; every node ends with this code."""
    order: Order | None = None
    """The newest order of the organiser that the coordinator knows; None = none yet."""
    serial: int = 0
    """Grows with each change under the ballot."""


@dataclass(frozen=True, slots=True)
class Yield:
    """Another lineage of the run is further: begin anew and ask its coordinator for a seat, as I do."""

    ballot: Ballot
    to: Contact


@dataclass(frozen=True, slots=True)
class Order:
    """What the organiser wants, signed with the organiser's key (see `protocol.orders`)."""

    action: Literal["pause", "resume", "stop"]
    serial: int
    """Orders with a serial not above the last one obeyed are dropped."""
    signature: str


Message = (
    Heartbeat
    | Wish
    | Goodbye
    | Leave
    | Suspect
    | RecordsWanted
    | Learning
    | Restoring
    | ReduceReady
    | ReducedReport
    | Revoked
    | Stalled
    | AppliedReport
    | Evaluated
    | Held
    | Promise
    | Prepare
    | Propose
    | Decide
    | Summary
    | OpenStep
    | StartReduce
    | VoidStep
    | Revoke
    | Probe
    | OpenEvaluation
    | Standing
    | Yield
    | Meeting
    | Order
)


# ---- payload headers ----


@dataclass(frozen=True, slots=True)
class PipeHeader:
    """In front of an activation or a gradient. `hop` is the receiver's index in `route.hops`."""

    ballot: Ballot
    step: int
    attempt: int
    parent: RecordId
    kind: PipeKind
    hop: int
    route: Route


@dataclass(frozen=True, slots=True)
class ReduceHeader:
    """In front of a piece of a stage's gradient. kind `part`: to the range's owner; `sum`: from the owner."""

    ballot: Ballot
    step: int
    attempt: int
    stage: int
    kind: Literal["part", "sum"]
    first: int
    """Index of the first element in the stage's flat gradient."""
    count: int
    sum_number: int = 0


PayloadHeader = PipeHeader | ReduceHeader
