"""What a node tells of itself, as far as a monitor uses it. A stranger's bytes: types and bounds are checked here."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from node.leases import MAX_STAGES
from node.plain_text import printable
from protocol.counted import MAX_CLAIM_CHARS, Claim, claim_of
from protocol.ids import PeerId

MAX_COUNT = 2**53
MAX_ROSTER = 8192
MAX_EVENTS = 200
MAX_TEXT = 500
MAX_CLAIMS = 2048
Phase = Literal["starting", "waiting", "training", "evaluating", "paused", "finished", "leaving"]
Role = Literal["active", "passive", "learner", "parked"]
ROLES: tuple[Role, ...] = get_args(Role)
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Stage = Annotated[int, Field(ge=0, lt=MAX_STAGES)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
Id = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_.:-]*$")]
Text = Annotated[str, Field(max_length=4096)]


class Part(BaseModel):
    """Fields that nobody knows here are left out, wrong ones refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Source(Part):
    """A part of a rebuilt stage."""

    stage: Stage
    coefficient: Number


class Provenance(Part):
    """How a stage's weights came to be."""

    rung: Annotated[str, Field(max_length=32)]
    step: Annotated[int, Field(ge=-1, le=MAX_COUNT)] = -1
    sources: Annotated[tuple[Source, ...], Field(max_length=MAX_STAGES)] = ()


class Seat(Part):
    """A stage that the node says it holds."""

    stage: Stage
    role: Role
    provenance: Provenance


class Seating(Part):
    """A line of the roster."""

    stage: Stage
    peer: Id
    role: Role


class Neighbour(Part):
    """How the node sees another one."""

    peer: Id
    phase: Annotated[str, Field(max_length=32)]


class Validation(Part):
    """Held-out loss, and of which step."""

    step: Count
    loss: Number


class StageTokens(Part):
    """Of microbatches that the node computed at a stage, and that count."""

    stage: Stage
    tokens: Count


class Contribution(Part):
    """What the node did, by the commits."""

    steps: Count
    tokens: Count
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    stages: Annotated[tuple[StageTokens, ...], Field(max_length=MAX_STAGES)] = ()


class Told(Part):
    """A node's /status."""

    run_id: Id
    peer: Id
    incarnation: Count
    phase: Phase
    step: Count
    last_step: Count
    head: Id
    loss: Number | None
    tokens: Count
    num_stages: Annotated[int, Field(ge=1, le=MAX_STAGES)]
    seats: Annotated[tuple[Seat, ...], Field(max_length=MAX_STAGES)]
    roster: Annotated[tuple[Seating, ...], Field(max_length=MAX_ROSTER)]
    view: Annotated[tuple[Neighbour, ...], Field(max_length=MAX_ROSTER)]
    validation: Validation | None = None
    contribution: Contribution | None = None
    name: Annotated[str, Field(max_length=64)] = ""
    version: Annotated[str, Field(max_length=32)] = ""
    sentence: Text = ""
    wall: Annotated[float, Field(ge=0, le=1e11)] | None = None
    is_heeded: bool = True
    """What it says of others was kept."""

    def without_hearsay(self) -> Told:
        """Only what it says of itself: a stranger's roster may be long."""
        return self.model_copy(update={"roster": (), "view": (), "is_heeded": False})

    @cached_property
    def seatings(self) -> frozenset[tuple[int, PeerId, Role]]:
        """The roster as (stage, peer, role): cheap to compare."""
        return frozenset((line.stage, line.peer, line.role) for line in self.roster)


class Entry(BaseModel):
    """An event in plain words. Other fields are kept where they are plain."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    serial: Count
    wall: Annotated[float, Field(ge=0, le=1e11)]
    kind: Annotated[str, Field(max_length=40)]
    step: Annotated[int, Field(ge=-1, le=MAX_COUNT)]
    text: Text


Root = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
ClaimText = Annotated[str, Field(max_length=MAX_CLAIM_CHARS)]


class ShownProofs(Part):
    """What the node shows of its work, and the roots of commits that it knows, from some step on."""

    claims: Annotated[tuple[ClaimText, ...], Field(max_length=MAX_CLAIMS)] = ()
    roots: Annotated[tuple[tuple[Count, Root], ...], Field(max_length=MAX_CLAIMS)] = ()

    @cached_property
    def read_claims(self) -> list[Claim]:
        """Raises `ValueError` for a text that is none."""
        return [claim_of(text) for text in self.claims]


_ENTRIES = TypeAdapter(Annotated[list[Entry], Field(max_length=MAX_EVENTS)])


def read_status(data: bytes, run_id: str, peer: str) -> Told:
    """The status of this peer in this run. Raises `ValueError` with one line."""
    told: Told = _checked(Told.model_validate_json, data, "status")
    if (told.run_id, told.peer) != (run_id, peer):
        raise ValueError(f"the status is that of peer {told.peer[-12:]} in run {told.run_id}")
    return told


def read_chronicle(data: bytes) -> list[dict[str, Any]]:
    """Entries that may be shown: printable, of bounded size, plain values only. Raises `ValueError` with one line."""
    return [_plain(entry) for entry in _checked(_ENTRIES.validate_json, data, "chronicle")]


def read_proofs(data: bytes) -> ShownProofs:
    """Claims and roots; none where nothing is told. Raises `ValueError` with one line."""
    shown: ShownProofs = _checked(ShownProofs.model_validate_json, data, "list of proofs") if data else ShownProofs()
    try:
        len(shown.read_claims)
    except ValueError as error:
        raise ValueError(f"its list of proofs is not one: {error}") from None
    return shown


def _plain(entry: Entry) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, value in list(entry.model_dump().items())[:32]:
        if isinstance(value, str):
            shown[printable(key, 40)] = printable(value, MAX_TEXT)
        elif value is None or (isinstance(value, bool | int | float) and abs(value) <= 1e300):
            shown[printable(key, 40)] = value
    return shown


def _checked(read: Any, data: bytes, what: str) -> Any:
    try:
        return read(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])[:100]
        raise ValueError(printable(f"its {what} is not one: {place}: {first['msg']}", 300)) from None
