"""What a node serves to any peer of the run: who it is, files by digest, elements of its stages' state, a call back."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote
from weakref import WeakValueDictionary

import grpc
from blake3 import blake3

from node.ports import RANGE_ELEMENTS, SHADOW_ELEMENTS, PeerError, StateRange
from node.transport import swarm_pb2, swarm_pb2_grpc
from node.transport.channel import Context, within
from node.transport.checks import FaultCode, WireError
from node.transport.config import BlobRequest, Description, DialBackRequest, FetchRequest, Kind, Library, ObserveRequest
from node.transport.stream import Surroundings
from node.transport.turnstile import Turnstile
from node.transport.wire import from_pb, to_pb

PIECE_BYTES = 1 << 20
ELEMENT_BYTES = 4
MAX_PART_BYTES = 2 << 20
"""Of each part of what an observer is told."""
_STATUS: dict[FaultCode, grpc.StatusCode] = {
    "value": grpc.StatusCode.NOT_FOUND,
    "stale": grpc.StatusCode.NOT_FOUND,
    "peer": grpc.StatusCode.FAILED_PRECONDITION,
    "ticket": grpc.StatusCode.PERMISSION_DENIED,
}


def host_of_call(peer: str) -> str:
    """The IP address in what gRPC calls a caller (`ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5`), '' where there is none."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].removeprefix("[").removesuffix("]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host) if kind in ("ipv4", "ipv6") else None
    except ValueError:
        return ""
    if address is None:
        return ""
    return str((address.ipv4_mapped if address.version == 6 else None) or address)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Turns:
    """Answers go to a connection one after another, in full: side by side they would all arrive at the same time, and the link
    idle until the next requests come. One state is read ahead, and no more: what waits for long becomes old."""

    read: asyncio.Lock = field(default_factory=asyncio.Lock)
    send: asyncio.Lock = field(default_factory=asyncio.Lock)


class LibraryService(swarm_pb2_grpc.LibraryServicer):
    """The `Library` service. Reads piece by piece, so that a request costs one piece of memory, whatever its size."""

    def __init__(self, around: Surroundings, library: Library) -> None:
        self._around = around
        self._library = library
        self._num_serving = 0
        self._turns: WeakValueDictionary[str, _Turns] = WeakValueDictionary()
        self._turnstile = Turnstile()

    async def Describe(self, _request: Any, context: Context) -> Any:
        """Who this is and what it holds."""
        try:
            await self._around.security.caller(context)
        except WireError as fault:
            await self._refuse(fault, context)
        config = self._around.config
        return to_pb(Description(config.run_id, config.peer, config.incarnation, config.protocol_version, self._library.held()))

    async def Blob(self, request: Any, context: Context) -> None:
        """A file, piece by piece; ends early where the file does."""
        try:
            await self._around.security.caller(context)
            with self._slot():
                await self._blob(from_pb(BlobRequest, request), context)
        except WireError as fault:
            await self._refuse(fault, context)

    async def _blob(self, asked: BlobRequest, context: Context) -> None:
        offset, end = max(asked.offset, 0), asked.offset + asked.size
        while offset < end:
            size = min(self._piece_bytes, end - offset)
            try:
                data = await self._library.blobs(asked.digest, offset, size)
            except OSError as error:
                raise WireError("value", f"this node cannot read {asked.digest[:64]}: {error.strerror}") from None
            if data is None:
                raise WireError("value", f"this node does not have {asked.digest[:64]}")
            if not data:
                return
            assert len(data) <= size, f"asked the reader for {size} bytes and got {len(data)}"
            await self._write("blob", swarm_pb2.BlobChunk(offset=offset, data=data), context)
            offset += len(data)

    async def Fetch(self, request: Any, context: Context) -> None:
        """Elements of a flat vector, piece by piece, each with its checksum."""
        try:
            await self._around.security.caller(context)
            with self._slot():
                await self._fetch(from_pb(FetchRequest, request), context)
        except WireError as fault:
            await self._refuse(fault, context)

    async def _fetch(self, asked: FetchRequest, context: Context) -> None:
        if asked.section in ("state", "gradient", "mixed", "shadow"):
            await self._fetch_state(asked, context)
        else:
            await self._fetch_vector(asked, context)

    async def _fetch_state(self, asked: FetchRequest, context: Context) -> None:
        """A range that is read at once, so that all of it is of one state."""
        most = SHADOW_ELEMENTS if asked.section == "shadow" else RANGE_ELEMENTS
        if not 1 <= asked.count <= most:
            raise WireError("size", f"{asked.count} elements of a {asked.section}; 1 to {most} are given at once")
        turns = self._turns_of(context)
        async with turns.read if asked.section == "state" else nullcontext():
            found = await self._read_state(asked)
            await turns.send.acquire()
        try:
            await self._send(asked.first, memoryview(found.data).cast("B"), to_pb(found.facts), context)
        finally:
            turns.send.release()

    async def _read_state(self, asked: FetchRequest) -> StateRange:
        try:
            found = await self._library.states(asked)
        except PeerError as error:
            raise WireError("stale", f"this node cannot give it now: {error}") from None
        if found is None:
            what = f"the {asked.section} of stage {asked.stage} at {asked.state_id[:32] or 'any state'}"
            raise WireError("stale", f"this node does not hold {what}")
        return found

    def _turns_of(self, context: Context) -> _Turns:
        return self._turns.setdefault(context.peer(), _Turns())

    async def _send(self, first: int, data: memoryview, facts: Any, context: Context) -> None:
        for position in range(0, len(data), self._piece_bytes):
            raw = bytes(data[position : position + self._piece_bytes])
            at = first + position // ELEMENT_BYTES
            chunk = swarm_pb2.RangeChunk(first=at, data=raw, checksum=blake3(raw).digest(), facts=facts)
            await self._write("fetch", chunk, context)
            facts = None

    async def _fetch_vector(self, asked: FetchRequest, context: Context) -> None:
        first, end = max(asked.first, 0), asked.first + asked.count
        while first < end:
            count = min(self._piece_bytes // ELEMENT_BYTES, end - first)
            piece = FetchRequest(asked.stage, asked.state_id, asked.section, first, count)
            data = await self._library.ranges(piece)
            if data is None:
                raise WireError("stale", f"this node does not hold stage {asked.stage} at {asked.state_id[:32]}")
            assert data.nbytes == count * ELEMENT_BYTES, f"asked for {count} elements, got {data.nbytes} bytes"
            async with self._turns_of(context).send:
                await self._send(first, data, None, context)
            first += count

    @property
    def _piece_bytes(self) -> int:
        """Whole elements; not more than a stream's chunk, which is small where this node's upload is capped."""
        return min(PIECE_BYTES, self._around.config.chunk_bytes // ELEMENT_BYTES * ELEMENT_BYTES)

    async def DialBack(self, request: Any, context: Context) -> Any:
        """Whether this node reaches the caller. Only for a proven caller: it is dialled, and nobody else."""
        try:
            caller = await self._around.security.caller(context)
            if caller is None:
                raise WireError("peer", "who calls is not proven here, so nobody is dialled")
            asked = from_pb(DialBackRequest, request)
            return to_pb(await self._library.dial_back(caller, asked.address, host_of_call(context.peer())))
        except WireError as fault:
            await self._refuse(fault, context)

    async def Observe(self, request: Any, context: Context) -> Any:
        """What this node tells people. Who asks needs no lease and gets no other service: a key, and the run's digest."""
        try:
            caller = self._around.security.proven(context)
            asked = from_pb(ObserveRequest, request)
            if wait := self._turnstile.refusal(caller or context.peer(), asyncio.get_running_loop().time()):
                raise WireError("memory", wait)
            return await self._observation(asked)
        except WireError as fault:
            await self._refuse(fault, context)

    async def _observation(self, asked: ObserveRequest) -> Any:
        seen = self._library.observe(asked)
        if seen is None:
            raise WireError("peer", "this node is of another run, or has not begun yet: an observer names the run's digest")
        parts = (seen.status, seen.metrics, seen.chronicle, seen.proofs)
        sizes, hooks = [len(part) for part in parts], self._around.hooks
        if max(sizes) > MAX_PART_BYTES:
            raise WireError("size", f"what there is to tell has {max(sizes)} bytes; at most {MAX_PART_BYTES} are told")
        if hooks.pace_out is not None:
            await hooks.pace_out(sum(sizes))
        hooks.on_bytes("observe", "out", sum(sizes))
        status, metrics, chronicle, proofs = parts
        return swarm_pb2.Observation(status=status, metrics=metrics, chronicle=chronicle, proofs=proofs)

    async def _write(self, kind: Kind, chunk: Any, context: Context) -> None:
        hooks = self._around.hooks
        hooks.on_sending(1)
        try:
            if hooks.pace_out is not None:
                await hooks.pace_out(len(chunk.data))
            await within(self._around.config.progress_s, context.write(chunk))
        except TimeoutError:
            raise WireError("stalled", "nobody reads what was asked for") from None
        finally:
            hooks.on_sending(-1)
        hooks.on_bytes(kind, "out", len(chunk.data))

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self._num_serving >= self._around.config.max_serves:
            raise WireError("memory", f"busy: {self._num_serving} others are being served; try again or ask another peer")
        self._num_serving += 1
        try:
            yield
        finally:
            self._num_serving -= 1

    async def _refuse(self, fault: WireError, context: Context) -> None:
        self._around.arrivals.counts[f"refused_{fault.code}"] += 1
        await context.abort(_STATUS.get(fault.code, grpc.StatusCode.RESOURCE_EXHAUSTED), str(fault))
