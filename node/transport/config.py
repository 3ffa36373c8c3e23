"""Settings of a transport, and what its streams and its library say besides the protocol's messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from node.ports import BlobReader, StateRange, UnusableError
from node.transport.checks import FaultCode
from protocol.ids import PeerId, StateId
from protocol.messages import PayloadHeader, PipeHeader
from protocol.version import PROTOCOL_VERSION

Section = Literal["weights", "exp_avg", "exp_avg_sq", "state", "gradient", "mixed", "shadow"]
Kind = Literal["heartbeat", "control", "forward", "backward", "evaluate", "reduce", "blob", "fetch", "observe"]
Direction = Literal["in", "out"]
Lane = Literal["light", "bulk"]


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """Who this node is and what it puts up with. Sizes in bytes, times in seconds."""

    run_id: str
    peer: PeerId
    incarnation: int
    listen: str = "127.0.0.1:0"
    """HOST:PORT; port 0 = any free one."""
    announce: str = ""
    """HOST:PORT told to peers, where it differs from the bound one."""
    protocol_version: int = PROTOCOL_VERSION
    chunk_bytes: int = 1 << 20
    max_payload_bytes: int = 1 << 30
    max_assembly_bytes: int = 4 << 30
    """Payloads half received, over all peers."""
    max_queued_messages: int = 1024
    """Per peer."""
    max_queued_payloads: int = 256
    """Per peer, the one on its way included."""
    max_peers: int = 4096
    max_serves: int = 8
    """Blobs and ranges served at once; the next one is told to come back."""
    dial_s: float = 5.0
    progress_s: float = 15.0
    """A stream that takes (or, within a payload, brings) no bytes for so long is closed."""
    backoff_first_s: float = 0.1
    backoff_last_s: float = 2.0
    close_s: float = 1.5


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a stream: who dials whom. `to` is the peer that the dialer believes to be there."""

    protocol_version: int
    run_id: str
    peer: PeerId
    incarnation: int
    address: str
    to: PeerId


@dataclass(frozen=True, slots=True)
class Welcome:
    """The Hello was accepted by this incarnation."""

    peer: PeerId
    incarnation: int


@dataclass(frozen=True, slots=True)
class Closing:
    """The listener ends the stream, and why."""

    code: FaultCode
    sentence: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """So many payloads of this stream, the first ones, are whole at the listener."""

    num_payloads: int


Answer = Welcome | Closing | Receipt
"""What the listener writes."""


@dataclass(frozen=True, slots=True)
class PayloadHead:
    """Announces a payload: what it is and how many bytes follow in chunks."""

    header: PayloadHeader
    codec: Literal["f32", "bf16"]
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class HeldStage:
    """A stage that a node holds, as last committed. `num_elements`: length of each of its flat vectors."""

    stage: int
    state_id: StateId
    step: int
    num_elements: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """A node's answer to 'who are you'."""

    run_id: str
    peer: PeerId
    incarnation: int
    protocol_version: int
    stages: tuple[HeldStage, ...]


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """At most `size` bytes from `offset` of the file with this digest."""

    digest: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Elements first .. first + count of a stage's flat vectors, as of `state_id`. `state`: all three behind one another, ''
    for whatever state is held. `gradient`: the reduced one whose update led to `state_id`."""

    stage: int
    state_id: StateId
    section: Section
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class DialBackRequest:
    """Asks a peer to dial the caller at its own address, as it is in its lease; '' = nothing is dialled."""

    address: str


@dataclass(frozen=True, slots=True)
class DialBackAnswer:
    """`dialled`: the peer tried; else it could or would not. `sentence`: why the caller was not reached."""

    dialled: bool
    reached: bool
    sentence: str
    seen_host: str
    """IP address that the call came from, '' where the peer does not know."""


@dataclass(frozen=True, slots=True)
class ObserveRequest:
    """Asks what a node tells people. `run_digest`: of the manifest; `after`: last serial of its chronicle that is known."""

    run_digest: str
    metrics: bool
    after: int
    claims_after: int = 0
    roots_after: int = 0
    """Steps up to which the node's claims, and the roots of commits that it knows, are known already."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a node tells people: the JSON object of /status, Prometheus text (b'' unless asked for), a JSON list of events."""

    status: bytes
    metrics: bytes
    chronicle: bytes
    proofs: bytes = b""
    """JSON: {"claims": texts, "roots": [[step, root]]}, of a few steps at once."""


RangeReader = Callable[[FetchRequest], Awaitable[memoryview | None]]
"""Little-endian f32 bytes of what was asked for; None where this node does not hold that state (any more)."""


StateReader = Callable[[FetchRequest], Awaitable[StateRange | None]]
"""The same for the sections `state` and `gradient`."""


async def _no_blob(_digest: str, _offset: int, _size: int) -> bytes | None:
    return None


async def _no_range(_request: FetchRequest) -> None:
    return None


async def _no_dial_back(_caller: PeerId, _address: str, seen_host: str) -> DialBackAnswer:
    return DialBackAnswer(False, False, "this node dials nobody", seen_host)


def _nothing_to_see(_request: ObserveRequest) -> Observation | None:
    return None


@dataclass(frozen=True, slots=True)
class Library:
    """What a node serves to others."""

    blobs: BlobReader = _no_blob
    ranges: RangeReader = _no_range
    held: Callable[[], tuple[HeldStage, ...]] = tuple
    states: StateReader = _no_range
    dial_back: Callable[[PeerId, str, str], Awaitable[DialBackAnswer]] = _no_dial_back
    """(proven caller, address that it asks for, host that its call came from) -> what came of it; takes seconds."""
    observe: Callable[[ObserveRequest], Observation | None] = _nothing_to_see
    """None for one who does not know the run's digest."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Who wants to know. None of these may block or raise."""

    on_bytes: Callable[[Kind, Direction, int], None] = lambda _kind, _direction, _bytes: None
    """Bytes of frames, without HTTP/2's own."""
    on_refused: Callable[[PeerId, str], None] = lambda _peer, _sentence: None
    """A peer says that this node has no place in the run (version, run, old incarnation); told once per sentence."""
    on_sending: Callable[[int], None] = lambda _change: None
    """+1 when a payload begins to go out, -1 when it has gone or will not; of all streams, waiting for its turn included."""
    pace: Callable[[int], Awaitable[None]] | None = None
    """Awaited after each received chunk of so many bytes: caps the rate at which payloads are taken in."""
    pace_out: Callable[[int], Awaitable[None]] | None = None
    """Awaited before each chunk of so many bytes is sent, of payloads and of what the library serves."""


def kind_of(header: PayloadHeader) -> Kind:
    """Label of a payload's bytes."""
    return header.kind if isinstance(header, PipeHeader) else "reduce"


def split_address(address: str, where: str) -> tuple[str, int]:
    """Host and port of 'HOST:PORT' or '[V6]:PORT'. Raises `UnusableError` that names `where`."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise UnusableError(2, f"{where} {address!r} is not HOST:PORT; example: 0.0.0.0:31337")
    return host.removeprefix("[").removesuffix("]"), int(port)
