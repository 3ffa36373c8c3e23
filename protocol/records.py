"""The decided records: one chain, each naming its parent. Together they are all that the swarm ever agrees on.

A record's id is the hash of what it says, without the ballot that carried it. A stage's state_id is the hash of its parent
state_id and the record that changed it; a `Roster` changes no weights and so no state_id.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, TypeGuard

from protocol.ids import NO_BALLOT, Ballot, Member, RecordId, StateId, hash_of

Role = Literal["active", "passive", "learner", "parked"]
"""`parked`: keeps the exact state of a stage that nobody computes, and has no part in steps."""


SHORT_DIGITS = 16


@dataclass(frozen=True, slots=True)
class StageResult:
    """What one stage contributed to a step: the digest and squared norm of its reduced, unclipped gradient sum."""

    stage: int
    digest: str
    """The first 16 digits, so that a record of many stages is short: each replica compares them with what it holds itself."""
    squared_norm: float


@dataclass(frozen=True, slots=True)
class Share:
    """Member accumulated these microbatches (bitmap) into the stage's gradient."""

    stage: int
    member: Member
    microbatches: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One optimizer update, for every stage at once."""

    parent: RecordId
    step: int
    attempt: int
    results: tuple[StageResult, ...]
    loss_sum: float
    """Sum of the token losses, in nats."""
    tokens: int
    """Number of predicted tokens."""
    contributors: str = ""
    """Root of the tree of all shares (`protocol.counted`): who accumulated which microbatches. A voter checks it first."""


@dataclass(frozen=True, slots=True)
class Seating:
    """Member holds the stage in this role."""

    stage: int
    member: Member
    role: Role
    generation: int = 0
    pinned: bool = False
    """The member asked for this stage: it is not moved elsewhere."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who holds what from here on, and who votes on the next records."""

    parent: RecordId
    step: int
    """Last committed step when the record was made."""
    joins: tuple[Seating, ...]
    """New seats, and seats whose role changes."""
    leaves: tuple[Seating, ...]
    voters: tuple[Member, ...]
    """All voters from here on (at most 7), in roster order."""
    forked: Ballot = NO_BALLOT
    """Under which those that it seats parted from the rest, without a quorum; NO_BALLOT in every other Roster. It makes the
    record unique: what follows it is a lineage of its own."""


@dataclass(frozen=True, slots=True)
class Source:
    """A stage's weights as of `state_id`, and the part that they have in what is made of them."""

    stage: int
    state_id: StateId
    coefficient: float


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a node that does not hold a stage keeps of it: chunks of its weights, each as of some step."""

    keeper: Member
    digest: str
    """Of the state that is made of it: weights, moments and optimizer age."""
    oldest: int
    """Step of its oldest chunk."""
    newest: int
    optimizer_age: int
    """0 where it has no moments."""
    lr_factor: float
    """Of the newest chunk."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A stage that nobody holds any more is made of others, at the members that `joins` seats there; or it goes on from an
    older state of its own, at the member that kept it; or from its own weights alone, which a leaver still gives that has no
    time for the whole state; or it is restored of its shadow, without sources."""

    parent: RecordId
    step: int
    """Last committed step when the record was made."""
    stage: int
    generation: int
    sources: tuple[Source, ...]
    joins: tuple[Seating, ...]
    """Seats of the stage; all earlier ones end. They are active, of this generation; who gives the stage's own weights stays
    besides, parked, in his generation."""
    voters: tuple[Member, ...]
    shadow: Shadow | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """A step after which all stages are to be saved: the commit, and their state_ids."""

    step: int
    record: RecordId
    states: tuple[StateId, ...]


@dataclass(frozen=True, slots=True)
class Rollback:
    """Everybody goes back: each stage goes on from what was saved of it after an earlier step, or from the seed. Steps are
    counted from there again, so whatever was said of one before this record is fenced by its ballot: no step is opened under
    that any more."""

    parent: RecordId
    step: int
    """Last committed step when the record was made."""
    epoch: int
    """How many there are on the chain by now, this one included."""
    to_step: int
    states: tuple[StateId, ...]
    """As they were saved, by stage."""
    joins: tuple[Seating, ...]
    """Who takes the stages that nobody holds."""
    voters: tuple[Member, ...]
    ballot: Ballot
    """Under which it was made."""


Record = Commit | Roster | Rebuild | Rollback


def is_fork(record: Record) -> TypeGuard[Roster]:
    """Does another lineage begin with it?"""
    return isinstance(record, Roster) and record.forked != NO_BALLOT


def is_of_itself(rebuild: Rebuild) -> bool:
    """Is the stage made of a state of its own?"""
    return [source.stage for source in rebuild.sources] == [rebuild.stage]


def is_weights_alone(rebuild: Rebuild) -> bool:
    """Does the stage keep its weights, and lose only its optimizer's moments?"""
    return is_of_itself(rebuild) and any(s.role == "parked" for s in rebuild.joins)


def is_older_copy(rebuild: Rebuild) -> bool:
    """Does the stage go on from a whole state that it had some steps ago, at the one who kept it?"""
    return is_of_itself(rebuild) and not is_weights_alone(rebuild)


MAX_NAMED = 64
_named: dict[int, tuple[Record, RecordId]] = {}


def genesis_id(run_id: str) -> RecordId:
    """Parent of a run's first record."""
    return hash_of(["genesis", run_id])


def record_id(record: Record) -> RecordId:
    """Name of a record: a hash of its kind and contents.

    One is asked for many times over, so the last ones are remembered; by object, as equal ones may differ as JSON (0 and 0.0).
    """
    known = _named.get(id(record))
    if known is None:
        known = _named[id(record)] = record, hash_of([type(record).__name__, asdict(record)])
        if len(_named) > MAX_NAMED:
            del _named[next(iter(_named))]
    return known[1]


def short(digest: str) -> str:
    """A digest as a `StageResult` has it."""
    return digest[:SHORT_DIGITS]
