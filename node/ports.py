"""Ports: what the runtime needs from the world. Each has a production adapter and a fake in `node/sim`.

Errors: an adapter raises `PeerError` for what another peer did or did not do and `UnusableError` for what this machine or its
user must change; anything else that it raises is a defect of ours and ends the node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from protocol.commands import Work
from protocol.ids import PeerId, StateId
from protocol.messages import Contact, Message, PayloadHeader


class PeerError(Exception):
    """Another peer's fault: a broken stream, a bad tensor, a missed deadline."""

    def __init__(self, peer: PeerId, reason: str) -> None:
        super().__init__(f"peer {peer[-8:] or '?'}: {reason}")
        self.peer = peer
        self.reason = reason

    def by(self, peer: PeerId) -> PeerError:
        """The same, when it is known whose fault it is."""
        return PeerError(peer, self.reason)


class BadTensorError(PeerError):
    """A tensor that was refused, and `kind`, which of its faults: a word of `KINDS`, for counting."""

    KINDS = ("codec", "shape", "size", "not_finite", "beyond_reason", "state")

    def __init__(self, peer: PeerId, reason: str, kind: str) -> None:
        assert kind in self.KINDS, kind
        super().__init__(peer, reason)
        self.kind = kind

    def by(self, peer: PeerId) -> BadTensorError:
        """The same, when it is known whose tensor it was."""
        return BadTensorError(peer, self.reason, self.kind)


class UninvitedError(PeerError):
    """The peer says that the run is by invitation, and that this node has no good ticket."""


class UnusableError(Exception):
    """Something that the user must change. `code` is the exit code of docs/contract.md."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Clock(Protocol):
    """Time as the node sees it."""

    def monotonic(self) -> float:
        """Seconds that only move forward."""

    def wall(self) -> float:
        """Seconds since the epoch, by this machine."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A signed, expiring claim in the directory. `stages` is empty for a spare."""

    peer: PeerId
    incarnation: int
    name: str
    address: str
    """HOST:PORT of the gRPC server, '' while its peer does not know where it is reached."""
    http: str
    """HOST:PORT of the HTTP server, '' where it is not told."""
    stages: tuple[int, ...]
    ballot_term: int
    coordinator: bool
    leaving: bool
    expires: float
    """Wall-clock seconds."""
    ticket: str = ""
    """What admits the peer to a run by invitation; '' where it has none."""
    dht: str = ""
    """Multiaddress by which the directory is entered at this peer, without /p2p/PEER; '' = not told. `Directory` sets it."""


class Directory(Protocol):
    """The DHT: a hint for finding peers, never a decision."""

    peer: PeerId

    async def publish(self, lease: Lease) -> None:
        """Store the lease under each of its stages' keys (a spare: under the spares' key). A `leaving` lease supersedes all
        earlier ones of this incarnation at once. A failed store is logged and counted, not raised."""

    async def leases(self) -> list[Lease]:
        """All valid, unexpired leases of the run, newest per peer, sorted by peer; malformed ones are left out and counted."""

    def addresses(self) -> list[str]:
        """Multiaddresses (with /p2p/PEER) by which others can enter the directory through this peer."""

    def remembered(self) -> list[str]:
        """The same of other peers that were there lately, newest first."""

    async def close(self) -> None:
        """Leave; nothing of the adapter is left behind."""


MessageHandler = Callable[[PeerId, int, Message], None]
"""(sender, its incarnation, message); must not block."""
PayloadHandler = Callable[[PeerId, PayloadHeader, int, int], None]
"""(sender, header, handle, number of bytes); must not block. The receiver owns the handle."""


class PeerTransport(Protocol):
    """Streams to other peers. Order holds within control messages and within payloads of one pair, not between the two."""

    def on_message(self, handler: MessageHandler) -> None:
        """Set who gets control messages."""

    def on_payload(self, handler: PayloadHandler) -> None:
        """Set who gets whole payloads."""

    def introduce(self, peer: PeerId, address: str) -> None:
        """From now on `peer` is reached at `address`; an open stream to another address is closed."""

    def connect(self, peer: PeerId) -> None:
        """Payloads will go to the peer soon: open their stream now, if it is not open. Never blocks or raises: where it cannot
        be opened, the first payload finds out."""

    def send(self, peer: PeerId, message: Message) -> None:
        """Queue a control message (heartbeats in front). Never blocks or raises: without a known address, or with a full
        queue, the message is dropped and counted. A message to this peer itself arrives like any other."""

    async def send_payload(self, peer: PeerId, header: PayloadHeader, handle: int) -> None:
        """Send a payload; returns when the peer has it whole. What was on its way over a connection that broke is sent again,
        so it may arrive twice. Raises `PeerError` if it cannot be sent. Keeps its own hold on the handle until then. To this
        peer itself: delivers a second hold on the same buffer."""

    def heard(self) -> dict[PeerId, float]:
        """Seconds since the last byte from each peer that ever was heard."""

    def forget(self, peer: PeerId) -> None:
        """Close the streams to a peer that left."""

    async def close(self) -> None:
        """Close all streams and the server."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A flat encoded tensor: `codec` is `f32` or `bf16`."""

    codec: str
    shape: tuple[int, ...]


@dataclass(slots=True)
class Payload:
    """Bytes of one encoded tensor, with what they are said to be."""

    spec: TensorSpec
    data: memoryview


@dataclass(frozen=True, slots=True)
class ComputeResult:
    """`payload` is None where nothing goes on."""

    payload: Payload | None
    loss_sum: float
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SeatInfo:
    """What a node tells about a seat's state."""

    stage: int
    num_elements: int
    state_bytes: int
    optimizer_age: int
    digest: str


@dataclass(frozen=True, slots=True)
class Update:
    """Scalars of one optimizer update; all exactly representable as Python floats."""

    gradient_scale: float
    learning_rate: float


class StageExecutor(Protocol):
    """The computation of the seats of one node. Calls may overlap; the executor runs one computation at a time and prefers
    backward to head to forward, and lower microbatches to higher. A foreign tensor that does not fit (codec, shape, byte
    count, not finite) raises `PeerError('', reason)`."""

    async def create(self, stage: int, generation: int = 0) -> SeatInfo:
        """Make weights from the manifest's seed and the generation (the same bits on every machine), zero moments."""

    async def blank(self, stage: int) -> SeatInfo:
        """A seat without state yet: all zero, age 0, no digest (''), for a learner that fills it range by range. Calls about
        the seat that are made after this one are done after it, whether it was waited for or not."""

    async def adopt_range(self, stage: int, first: int, weights: memoryview, *moments: memoryview) -> None:
        """Put foreign elements (little-endian f32, finite) in place: weights, exp_avg and exp_avg_sq, or weights alone; the
        moments stay as they are then. `PeerError('', reason)` if they do not fit; nothing is changed then."""

    async def replay_range(self, stage: int, first: int, gradient: memoryview, update: Update, optimizer_age: int) -> None:
        """The canonical update of a range by a foreign reduced gradient (little-endian f32); `optimizer_age` is that of the
        state before. The range ends with the same bits as at the donor."""

    async def adopted(self, stage: int, optimizer_age: int) -> SeatInfo:
        """All ranges are of one state, of this age: sets the age and returns the digest."""

    async def keep_gradients(self, stage: int, count: int) -> None:
        """Keep the last `count` reduced gradients after `apply`; 0 = none (and frees those that are kept)."""

    async def export_state(self, stage: int, first: int, count: int) -> tuple[int, memoryview]:
        """(optimizer age, weights, exp_avg and exp_avg_sq of the range behind one another), of one state; a copy."""

    async def export_gradient(self, stage: int, optimizer_age: int, first: int, count: int) -> memoryview | None:
        """A range of the kept reduced gradient whose update led to that age; None if it is not kept (any more)."""

    async def mix(self, parts: list[bytes | bytearray | memoryview], coefficients: list[float]) -> memoryview:
        """Sum of coefficient x part, in f32 and in the given order. Parts are equally many little-endian f32. `PeerError('',
        reason)` if the sum is not finite."""

    async def drop(self, stage: int) -> None:
        """Forget the seat."""

    async def compute(self, work: Work, payload: Payload | None) -> ComputeResult:
        """Run one piece of work. Backward needs what the forward of the same (stage, step, attempt, microbatch) retained."""

    async def discard(self, stage: int, step: int, attempt: int) -> None:
        """Drop retained activations and gradients of this attempt and older ones."""

    async def gradient_range(self, stage: int, first: int, count: int) -> Payload:
        """The accumulated (summed over own microbatches) flat gradient, encoded with wire.gradients."""

    async def sum_range(self, stage: int, first: int, parts: list[Payload]) -> Payload:
        """Decode, add in the given order in f32, encode. Each part has the same length."""

    async def install_range(self, stage: int, first: int, payload: Payload) -> None:
        """Put the decoded sum into the reduced gradient. Local gradients are kept."""

    async def use_local(self, stage: int) -> None:
        """Alone in the replica set: the reduced gradient is the accumulated one."""

    async def forget_sum(self, stage: int) -> None:
        """The sum begins anew: ranges that were installed count for nothing. What is accumulated stays, and may grow."""

    async def reduced(self, stage: int) -> tuple[str, float]:
        """(digest, squared l2 norm) of the reduced gradient; the norm in float64, summed in a fixed order."""

    async def apply(self, stage: int, update: Update) -> SeatInfo:
        """The canonical optimizer update from the reduced gradient; clears gradients and retained activations."""

    async def info(self, stage: int) -> SeatInfo:
        """Digest of weights, moments and optimizer age, and sizes."""

    async def export(self, stage: int, section: str, first: int, count: int) -> memoryview:
        """Raw little-endian f32 bytes of elements of the flat `weights`, `exp_avg` or `exp_avg_sq` as last committed."""

    def parameters(self, stage: int) -> list[tuple[str, tuple[int, ...]]]:
        """Hugging Face names and shapes in the order of the flat vectors."""

    async def close(self) -> None:
        """Stop the compute thread; work in progress is finished first."""


RANGE_ELEMENTS = 1 << 20
"""Most elements of a state that are asked for at once: 12 MiB."""
SHADOW_ELEMENTS = 1 << 21
"""Most elements that are asked for at once for a shadow: 4 MiB of weights in bf16."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What a donor tells of a state of a stage. `digest` covers weights, moments and `optimizer_age`."""

    state_id: StateId
    step: int
    optimizer_age: int
    lr_factor: float
    generation: int
    digest: str


@dataclass(frozen=True, slots=True)
class StateRange:
    """Elements of a stage as of one state, little-endian f32. Of the state: weights, exp_avg, exp_avg_sq one after another.
    Of a gradient: the reduced one whose update led to that state."""

    facts: StateFacts
    data: bytes | bytearray | memoryview


class NotHeldError(PeerError):
    """The donor lives, but does not hold what was asked for: not yet, or not any more."""


class BusyError(PeerError):
    """The donor lives, but serves as many requests as it may already, this node's others perhaps among them."""


class Donor(Protocol):
    """Another replica of a stage, as long as it is asked for state. Calls may overlap; answers come one after another. Both
    raise `NotHeldError`, `BusyError`, and `PeerError` where it brings nothing in time."""

    async def state_range(self, stage: int, first: int, count: int) -> StateRange:
        """At most `RANGE_ELEMENTS` elements of whatever state the donor holds when it reads them."""

    async def gradient_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """At most `RANGE_ELEMENTS` elements of the reduced gradient whose update led to `state_id`."""


class Neighbour(Donor, Protocol):
    """A node that has a part in a rebuild: it gives its weights, or mixes them with those of others. Errors as of `Donor`."""

    async def weights_range(self, stage: int, state_id: StateId, first: int, count: int) -> bytes | bytearray | memoryview:
        """Little-endian f32 weights as of exactly `state_id`."""

    async def state_of(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """As `state_range`, of exactly `state_id`."""

    async def shadow_range(self, stage: int, first: int, count: int, num_words: int) -> StateRange:
        """At most `SHADOW_ELEMENTS` elements of whatever state the node holds when it reads them, as a shadow has them
        (`node.halves`): so many words of 4 bytes."""

    async def mixed_range(self, stage: int, state_id: StateId, first: int, count: int, num_words: int) -> StateRange:
        """At most `RANGE_ELEMENTS` elements of a lost stage, mixed there as the decided rebuild to `state_id` says, or kept
        there as its shadow: its weights, or its whole state, in so many words of 4 bytes."""


class Donors(Protocol):
    """Other replicas of a stage."""

    def visit(self, donor: Contact) -> AbstractAsyncContextManager[Donor]:
        """One connection, open inside the block. Entering raises `PeerError` where the donor is not there."""


class Neighbours(Protocol):
    """Other nodes, as `Donors` and for a rebuild."""

    def visit(self, donor: Contact) -> AbstractAsyncContextManager[Neighbour]:
        """See `Donors`."""


class StateStore(Protocol):
    """Files of this node under its state directory; writes are complete or absent."""

    def read(self, name: str) -> bytes | None:
        """Contents, or None where there is no such file."""

    def write(self, name: str, data: bytes) -> None:
        """Replace the file atomically."""


class EventSink(Protocol):
    """events.jsonl."""

    def note(self, type_: str, fields: dict[str, Any]) -> None:
        """Append one line with `t` and `wall`; written with write(2) before returning. A full disk is said once."""

    def close(self) -> None:
        """Flush and close."""


class PayloadPool(Protocol):
    """Handles of payloads in this node's memory, reference counted."""

    def put(self, payload: Payload) -> int:
        """A new handle with one hold."""

    def get(self, handle: int) -> Payload:
        """The payload; the handle must be live."""

    def hold(self, handle: int) -> None:
        """One more hold."""

    def release(self, handle: int) -> None:
        """One hold less; the last one frees the bytes."""

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes ever held at once."""


BlobReader = Callable[[str, int, int], Awaitable[bytes | None]]
"""(digest, offset, size) -> bytes of a manifest, tokenizer or token shard that this node has, or None."""
