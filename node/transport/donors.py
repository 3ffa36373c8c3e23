"""`node.ports.Donors` over gRPC: ranges of a stage's state from its other replicas, over one connection each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from grpc import aio

from node.ports import Neighbour, PeerError, StateFacts, StateRange
from node.transport.channel import Security
from node.transport.checks import check
from node.transport.config import FetchRequest
from node.transport.fetch import Asking, OnBytes, answers, opened, read_elements
from node.transport.wire import from_pb, to_pb
from protocol.ids import StateId
from protocol.messages import Contact

PROGRESS_S = 10.0
"""A donor that brings no bytes for so long is given up."""
SECTIONS = 3
"""Weights and two moments make a state."""


class GrpcDonors:
    """See `Neighbours`. `on_bytes`: as `Hooks.on_bytes`."""

    def __init__(
        self, security: Security, on_bytes: OnBytes = lambda _kind, _way, _bytes: None, progress_s: float = PROGRESS_S
    ) -> None:
        self._security, self._on_bytes, self._progress_s = security, on_bytes, progress_s

    @asynccontextmanager
    async def visit(self, donor: Contact) -> AsyncIterator[Neighbour]:
        """See `Donors`."""
        asking = Asking(self._progress_s, self._progress_s, on_bytes=self._on_bytes, security=self._security, peer=donor.peer)
        async with AsyncExitStack() as stack:
            with answers(donor.address, asking):
                stub = await stack.enter_async_context(opened(donor.address, asking))
            yield _GrpcDonor(stub, donor.address, asking)


@dataclass(slots=True)
class _Patience:
    """Of all requests over one connection: their answers come one after another, so any byte is a sign of life for all."""

    seconds: float
    _waits: set[asyncio.Timeout] = field(default_factory=set)

    @contextmanager
    def wait(self) -> Iterator[asyncio.Timeout]:
        """The block's timeout, put off whenever something comes."""
        timeout = asyncio.timeout(self.seconds)
        self._waits.add(timeout)
        try:
            yield timeout
        finally:
            self._waits.discard(timeout)

    def heard(self) -> None:
        """Something came."""
        until = asyncio.get_running_loop().time() + self.seconds
        for timeout in self._waits:
            if not timeout.expired():
                timeout.reschedule(until)


class _GrpcDonor:
    def __init__(self, stub: Any, address: str, asking: Asking) -> None:
        self._stub, self._address, self._asking = stub, address, asking
        self._patience = _Patience(asking.progress_s)

    async def state_range(self, stage: int, first: int, count: int) -> StateRange:
        """See `Donor`."""
        return await self._fetch(FetchRequest(stage, "", "state", first, count), SECTIONS * count)

    async def state_of(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """See `Neighbour`."""
        return await self._exactly(FetchRequest(stage, state_id, "state", first, count), SECTIONS * count)

    async def gradient_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """See `Donor`."""
        return await self._exactly(FetchRequest(stage, state_id, "gradient", first, count), count)

    async def weights_range(self, stage: int, state_id: StateId, first: int, count: int) -> bytearray:
        """See `Neighbour`."""
        data, _ = await self._elements(FetchRequest(stage, state_id, "weights", first, count), count)
        return data

    async def shadow_range(self, stage: int, first: int, count: int, num_words: int) -> StateRange:
        """See `Neighbour`."""
        return await self._fetch(FetchRequest(stage, "", "shadow", first, count), num_words)

    async def mixed_range(self, stage: int, state_id: StateId, first: int, count: int, num_words: int) -> StateRange:
        """See `Neighbour`."""
        return await self._exactly(FetchRequest(stage, state_id, "mixed", first, count), num_words)

    async def _exactly(self, asked: FetchRequest, num_elements: int) -> StateRange:
        found = await self._fetch(asked, num_elements)
        if found.facts.state_id != asked.state_id:
            raise PeerError(self._asking.peer, f"{self._address} sent a {asked.section} that nobody asked for")
        return found

    async def _fetch(self, asked: FetchRequest, num_elements: int) -> StateRange:
        data, facts = await self._elements(asked, num_elements)
        with answers(self._address, self._asking):
            return StateRange(from_pb(StateFacts, facts), data)

    async def _elements(self, asked: FetchRequest, num_elements: int) -> tuple[bytearray, Any]:
        check(asked)
        with answers(self._address, self._asking):
            async with aclosing(self._pieces(asked)) as chunks:
                return await read_elements(chunks, asked, num_elements, self._address, self._asking)

    async def _pieces(self, asked: FetchRequest) -> AsyncGenerator[Any, None]:
        """As `node.transport.fetch.pieces`, with the patience of the whole connection."""
        call = self._stub.Fetch(to_pb(asked))
        try:
            while (chunk := await self._next(call)) is not aio.EOF:
                self._patience.heard()
                yield chunk
        finally:
            call.cancel()

    async def _next(self, call: Any) -> Any:
        with self._patience.wait() as timeout:
            async with timeout:
                return await call.read()
