"""The receiving side of both streams: greets, checks, puts together, hands over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc import aio

from node.transport.assembly import Assembly, Budget
from node.transport.channel import Context, within
from node.transport.checks import MAX_STRING_CHARS, FaultCode, WireError
from node.transport.config import Closing, Hello, Lane, Receipt, Welcome, kind_of
from node.transport.frames import Chunk, decode_bulk, decode_hello, decode_message, encode_answer
from node.transport.greeting import admit
from node.transport.names import Names
from node.transport.stream import Surroundings
from protocol.ids import PeerId
from protocol.messages import Heartbeat

log = logging.getLogger(__name__)

Learn = Callable[[PeerId, int, str], None]
"""(peer, incarnation, address): a peer told where its own server is."""
_STATUS: dict[FaultCode, grpc.StatusCode] = {
    "version": grpc.StatusCode.FAILED_PRECONDITION,
    "run": grpc.StatusCode.FAILED_PRECONDITION,
    "peer": grpc.StatusCode.FAILED_PRECONDITION,
    "ticket": grpc.StatusCode.PERMISSION_DENIED,
    "stale": grpc.StatusCode.FAILED_PRECONDITION,
    "memory": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "stalled": grpc.StatusCode.DEADLINE_EXCEEDED,
}


class _NodeClosesError(Exception):
    """This node ends a stream because it leaves."""


@dataclass(slots=True)
class _OpenStream:
    """A stream from a peer, and the handler task that gRPC made for it."""

    incarnation: int
    task: asyncio.Task[object] | None
    reason: Exception | None = None

    def end(self, reason: Exception) -> None:
        """Let the handler end with this reason; gRPC would tell the other side nothing of a cancelled one."""
        if self.reason is None and self.task is not None:
            self.reason = reason
            self.task.cancel()

    def raise_reason(self) -> None:
        """In a cancelled handler: raises why, if it was us who cancelled it."""
        if self.reason is not None and self.task is not None:
            self.task.uncancel()
            raise self.reason from None


class Inbound:
    """Handlers of the `Streams` service. A peer has at most one stream of each kind; a newer one replaces it.

    A fault of the other side ends its stream with a sentence and is counted as `refused_CODE`. Anything else that a
    handler raises is our defect and goes to `on_defect`.
    """

    def __init__(self, around: Surroundings, learn: Learn, on_defect: Callable[[Exception], None]) -> None:
        self.budget = Budget(around.config.max_assembly_bytes)
        self._around = around
        self._learn = learn
        self._on_defect = on_defect
        self._streams: dict[tuple[PeerId, Lane], _OpenStream] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `Server.add_generic_rpc_handlers`; frames stay bytes, so that sizes are checked before parsing."""
        return grpc.method_handlers_generic_handler(
            "regrow.v1.Streams",
            {
                "Light": grpc.stream_stream_rpc_method_handler(self._guarded("light", self._light)),
                "Bulk": grpc.stream_stream_rpc_method_handler(self._guarded("bulk", self._bulk)),
            },
        )

    def close(self) -> None:
        """End all streams from others."""
        for open_stream in self._streams.values():
            open_stream.end(_NodeClosesError())

    def _guarded(
        self, lane: Lane, body: Callable[[Hello, Context], Awaitable[None]]
    ) -> Callable[[object, Context], Awaitable[None]]:
        async def handler(_requests: object, context: Context) -> None:
            try:
                await self._until_fault(lane, body, context)
            except aio.AbortError:
                raise
            except aio.BaseError:
                return  # the other side is gone and hears nothing
            except Exception as defect:  # the edge to gRPC, which would only log it: a defect ends the node
                self._on_defect(defect)
                raise

        return handler

    async def _until_fault(self, lane: Lane, body: Callable[[Hello, Context], Awaitable[None]], context: Context) -> None:
        try:
            async with self._greeted(lane, context) as hello:
                await body(hello, context)
        except _NodeClosesError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is closing its streams")
        except WireError as fault:
            self._around.arrivals.counts[f"refused_{fault.code}"] += 1
            log.warning("closed a %s stream from %s: %s", lane, context.peer(), fault)
            # Ahead of the status, which gRPC replaces by one of its own where the other side is amid a write.
            await context.write(encode_answer(Closing(fault.code, str(fault)[:MAX_STRING_CHARS])))
            await context.abort(_STATUS.get(fault.code, grpc.StatusCode.INVALID_ARGUMENT), str(fault))

    @asynccontextmanager
    async def _greeted(self, lane: Lane, context: Context) -> AsyncIterator[Hello]:
        """Reads the Hello, answers it, and registers the stream while the block runs."""
        data = await _read(context, self._around.config.dial_s, "no Hello")
        if data is None:
            raise WireError("order", "a stream begins with a Hello")
        hello = decode_hello(data)
        await self._admit(hello, context)
        key, me = (hello.peer, lane), _OpenStream(hello.incarnation, asyncio.current_task())
        self._replace(key, me)
        try:
            await context.write(encode_answer(self._welcome()))
            self._heard(hello, len(data))
            yield hello
        except asyncio.CancelledError:
            me.raise_reason()
            raise
        finally:
            if self._streams.get(key) is me:
                del self._streams[key]

    async def _admit(self, hello: Hello, context: Context) -> None:
        """Raises `WireError` with a sentence for the person at the other end."""
        admit(self._around.config, hello)
        if await self._around.security.caller(context) not in (None, hello.peer):
            raise WireError("peer", f"this connection is not that of peer {hello.peer[-8:]}")

    def _replace(self, key: tuple[PeerId, Lane], me: _OpenStream) -> None:
        known = self._streams.get(key)
        if known is None and len(self._streams) >= 2 * self._around.config.max_peers:
            raise WireError("memory", f"{len(self._streams)} streams are open here already")
        if known is not None:
            if known.incarnation > me.incarnation:
                raise WireError(
                    "stale", f"incarnation {known.incarnation} of this peer is here already, {me.incarnation} is older"
                )
            known.end(WireError("stale", "a newer stream of this peer has taken the place of this one"))
        self._streams[key] = me

    def _welcome(self) -> Welcome:
        return Welcome(self._around.config.peer, self._around.config.incarnation)

    def _heard(self, hello: Hello, num_bytes: int) -> None:
        self._around.arrivals.note(hello.peer)
        self._around.hooks.on_bytes("control", "in", num_bytes)
        self._learn(hello.peer, hello.incarnation, hello.address)

    async def _light(self, hello: Hello, context: Context) -> None:
        arrivals, count, names = self._around.arrivals, self._around.hooks.on_bytes, Names()
        while (data := await _read(context, None)) is not None:
            arrivals.note(hello.peer)
            message = decode_message(data, names)
            count("heartbeat" if isinstance(message, Heartbeat) else "control", "in", len(data))
            arrivals.message(hello.peer, hello.incarnation, message)

    async def _bulk(self, hello: Hello, context: Context) -> None:
        assembly, num_payloads = Assembly(self.budget, self._around.config.max_payload_bytes), 0
        try:
            while True:
                patience = self._around.config.progress_s if assembly.head else None
                data = await _read(context, patience, "no chunk")
                if data is None:
                    return
                self._around.arrivals.note(hello.peer)
                if await self._take(assembly, hello.peer, data):
                    num_payloads += 1
                    await self._write(context, encode_answer(Receipt(num_payloads)))
        finally:
            assembly.drop()

    async def _write(self, context: Context, answer: bytes) -> None:
        """Raises `WireError` where the other side does not take it."""
        try:
            await within(self._around.config.progress_s, context.write(answer))
        except TimeoutError:
            raise WireError("stalled", f"no receipt was taken for {self._around.config.progress_s:g} s") from None

    async def _take(self, assembly: Assembly, peer: PeerId, data: bytes) -> bool:
        """One frame of a bulk stream. Whether a payload is whole with it."""
        hooks, part = self._around.hooks, decode_bulk(data)
        whole = None
        if isinstance(part, Chunk):
            whole = assembly.add(part.position, part.data)
        else:
            assembly.begin(part)
        head = whole[0] if whole else assembly.head
        assert head is not None, "a chunk was taken without a head"
        hooks.on_bytes(kind_of(head.header), "in", len(data))
        if whole:
            self._around.arrivals.payload(peer, head.header, whole[1])
        if hooks.pace is not None:
            await hooks.pace(len(data))
        return whole is not None


async def _read(context: Context, patience_s: float | None, missing: str = "") -> bytes | None:
    """The next frame; None where the other side has finished. Raises `WireError` when patience ends."""
    try:
        if patience_s is None:
            data = await context.read()
        else:
            data = await within(patience_s, context.read())
    except TimeoutError:
        raise WireError("stalled", f"{missing} came for {patience_s:g} s") from None
    return data if isinstance(data, bytes) else None
