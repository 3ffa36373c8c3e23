"""Asking a node's library, from anywhere: also without a running node of one's own.

All errors are `PeerError` whose reason names the address; what arrives is verified here before it is returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from blake3 import blake3
from grpc import aio

from node.ports import Lease, PeerError
from node.transport import swarm_pb2, swarm_pb2_grpc
from node.transport.channel import Plaintext, Security, peer_faults, within
from node.transport.checks import WireError, check
from node.transport.config import (
    BlobRequest,
    Description,
    DialBackAnswer,
    DialBackRequest,
    Direction,
    FetchRequest,
    Kind,
    Section,
)
from node.transport.library import ELEMENT_BYTES
from node.transport.wire import from_pb, to_pb
from protocol.ids import PeerId
from protocol.messages import Contact

Digest = Literal["blake3", "sha256"]
Progress = Callable[[int, int], None]
"""(bytes so far, bytes at most)"""
OnBytes = Callable[[Kind, Direction, int], None]
MAX_MANIFEST_BYTES = 1 << 20
DIAL_BACK_S = 6.0
"""How long a peer may take to find out that it reaches nobody; more than node.dial_back.DIAL_S."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How to ask, and whom. Times in seconds."""

    first_s: float = 10.0
    """For the connection and the first answer."""
    progress_s: float = 30.0
    """Between two pieces."""
    on_progress: Progress = lambda _done, _total: None
    on_bytes: OnBytes = lambda _kind, _direction, _bytes: None
    """As `Hooks.on_bytes`."""
    security: Security = field(default_factory=Plaintext)
    peer: PeerId = ""
    """Who must answer; '' only where nothing is proven anyway."""


async def describe(address: str, asking: Asking = Asking()) -> Description:
    """Who is there and what it holds."""
    async with _library(address, asking) as stub:
        pb = await within(asking.first_s, stub.Describe(swarm_pb2.DescribeRequest()))
        return from_pb(Description, pb)


async def dial_back(address: str, own: str, asking: Asking = Asking()) -> DialBackAnswer:
    """Whether the node there reaches this one at `own`, and from where it sees this call coming ('': only that)."""
    async with _library(address, asking) as stub:
        pb = await within(asking.first_s + DIAL_BACK_S, stub.DialBack(to_pb(DialBackRequest(own))))
        return from_pb(DialBackAnswer, pb)


async def fetch_manifest(address: str, digest: str, asking: Asking = Asking()) -> bytes:
    """The canonical manifest whose sha256 is `digest`."""
    return await fetch_blob(address, digest, MAX_MANIFEST_BYTES, "sha256", asking)


async def fetch_blob(address: str, digest: str, max_bytes: int, verify: Digest = "blake3", asking: Asking = Asking()) -> bytes:
    """A file of at most `max_bytes` by its digest, in memory."""
    out = bytearray()
    await _copy_blob(address, BlobRequest(digest, 0, max_bytes), out.extend, verify, asking)
    return bytes(out)


async def fetch_blob_to(
    path: Path, address: str, digest: str, max_bytes: int, verify: Digest = "blake3", asking: Asking = Asking()
) -> None:
    """A file by its digest, on disk; `path` is complete or absent (a `.part` beside it while it comes)."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            await _copy_blob(address, BlobRequest(digest, 0, max_bytes), file.write, verify, asking)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


async def _copy_blob(address: str, asked: BlobRequest, sink: Callable[[bytes], object], verify: Digest, asking: Asking) -> None:
    hasher, done = (blake3() if verify == "blake3" else hashlib.sha256()), 0
    async with aclosing(_chunks(address, "Blob", asked, asking)) as chunks:
        async for chunk in chunks:
            if chunk.offset != done or done + len(chunk.data) > asked.size:
                raise PeerError(asking.peer, f"{address} sent bytes that nobody asked for")
            hasher.update(chunk.data)
            sink(chunk.data)
            done += len(chunk.data)
            asking.on_bytes("blob", "in", len(chunk.data))
            asking.on_progress(done, asked.size)
    if hasher.hexdigest() != asked.digest:
        raise PeerError(asking.peer, f"what {address} sent ({done} bytes) is not {asked.digest}")


async def fetch_range(
    address: str, stage: int, state_id: str, section: Section, first: int, count: int, asking: Asking = Asking()
) -> bytearray:
    """Elements first .. first + count of the flat vector, little-endian f32, of exactly this state."""
    asked = FetchRequest(stage, state_id, section, first, count)
    check(asked)
    async with aclosing(_chunks(address, "Fetch", asked, asking)) as chunks:
        return (await read_elements(chunks, asked, count, address, asking))[0]


async def read_elements(
    chunks: AsyncIterator[Any], asked: FetchRequest, count: int, address: str, asking: Asking
) -> tuple[bytearray, Any]:
    """`count` elements that answer `asked`, checked piece by piece, and the facts (protobuf) in the first piece."""
    out, total, facts = bytearray(), count * ELEMENT_BYTES, None
    async for chunk in chunks:
        if chunk.first != asked.first + len(out) // ELEMENT_BYTES or len(out) + len(chunk.data) > total:
            raise PeerError(asking.peer, f"{address} sent elements that nobody asked for")
        if len(chunk.data) % ELEMENT_BYTES or blake3(chunk.data).digest() != chunk.checksum:
            raise PeerError(asking.peer, f"{address} sent elements whose checksum is wrong")
        facts = chunk.facts if facts is None else facts
        out += chunk.data
        asking.on_bytes("fetch", "in", len(chunk.data))
        asking.on_progress(len(out), total)
    if len(out) != total:
        raise PeerError(asking.peer, f"{address} sent {len(out)} of {total} bytes of stage {asked.stage}")
    return out, facts


@dataclass(frozen=True, slots=True)
class Asker:
    """A node that asks others: it proves itself, and only the peer that it wants can answer."""

    security: Security
    on_bytes: OnBytes = lambda _kind, _direction, _bytes: None

    async def manifest(self, peer: Contact, digest: str) -> bytes:
        """See `fetch_manifest`."""
        return await fetch_manifest(peer.address, digest, self._asking(peer.peer))

    async def blob(self, peer: Contact, digest: str, max_bytes: int, on_progress: Progress | None = None) -> bytes:
        """See `fetch_blob`."""
        asking = self._asking(peer.peer)
        if on_progress is not None:
            asking = replace(asking, on_progress=on_progress)
        return await fetch_blob(peer.address, digest, max_bytes, asking=asking)

    async def is_there(self, lease: Lease, not_in: int = -1) -> bool:
        """Whether the lease's peer answers at the lease's address, in another incarnation than `not_in`."""
        try:
            described = await describe(lease.address, self._asking(lease.peer))
        except PeerError:
            return False
        return described.peer == lease.peer and described.incarnation != not_in

    async def prove(self, peer: Contact) -> None:
        """Returns if this very peer answers at this address; else raises `PeerError`."""
        described = await describe(peer.address, self._asking(peer.peer))
        if described.peer != peer.peer:
            raise PeerError(peer.peer, f"{peer.address} answers as another peer")

    async def dial_back(self, peer: Contact, own: str) -> DialBackAnswer:
        """See `dial_back`."""
        return await dial_back(peer.address, own, self._asking(peer.peer))

    async def describe(self, peer: Contact) -> Description:
        """See `describe`."""
        return await describe(peer.address, self._asking(peer.peer))

    def _asking(self, peer: PeerId) -> Asking:
        return Asking(security=self.security, peer=peer, on_bytes=self.on_bytes)


@asynccontextmanager
async def _library(address: str, asking: Asking) -> AsyncIterator[Any]:
    with answers(address, asking):
        async with opened(address, asking) as stub:
            yield stub


@asynccontextmanager
async def opened(address: str, asking: Asking) -> AsyncIterator[Any]:
    """The library at an address, over one connection."""
    channel = await within(asking.first_s, asking.security.channel(address, asking.peer))
    try:
        yield swarm_pb2_grpc.LibraryStub(channel)
    finally:
        await channel.close()


@contextmanager
def answers(address: str, asking: Asking) -> Iterator[None]:
    """All that may go wrong inside the block, as `PeerError`."""
    try:
        with peer_faults(asking.peer, f"cannot get an answer from {address}"):
            yield
    except WireError as error:
        raise PeerError(asking.peer, f"{address} answered badly: {error}") from None


async def _chunks(address: str, method: str, asked: Any, asking: Asking) -> AsyncGenerator[Any, None]:
    async with _library(address, asking) as stub, aclosing(pieces(stub, method, asked, asking)) as found:
        async for chunk in found:
            yield chunk


async def pieces(stub: Any, method: str, asked: Any, asking: Asking) -> AsyncGenerator[Any, None]:
    """What answers a request, piece by piece; closing it ends the call."""
    call = getattr(stub, method)(to_pb(asked))
    try:
        patience = asking.first_s
        while (chunk := await within(patience, call.read())) is not aio.EOF:
            patience = asking.progress_s
            yield chunk
    finally:
        call.cancel()
