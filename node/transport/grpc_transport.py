"""`PeerTransport` over gRPC: one server, and two outgoing streams to each peer that this node speaks to."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from random import Random

from grpc import aio

from node.payloads import encoded_bytes
from node.ports import MessageHandler, PayloadHandler, PayloadPool, PeerError
from node.transport import swarm_pb2_grpc
from node.transport.arrivals import Arrivals
from node.transport.channel import SERVER_OPTIONS, Plaintext, Security, bind
from node.transport.config import Hooks, Library, PayloadHead, TransportConfig, kind_of, split_address
from node.transport.frames import MAX_CHUNK_BYTES, encode_head
from node.transport.greeting import AddressBook
from node.transport.inbound import Inbound
from node.transport.library import LibraryService
from node.transport.links import BulkLink, LightLink
from node.transport.stream import Surroundings
from protocol.ids import PeerId
from protocol.messages import Message, PayloadHeader

log = logging.getLogger(__name__)

_NO_LIBRARY, _NO_HOOKS, _PLAINTEXT = Library(), Hooks(), Plaintext()


class GrpcTransport:
    """Made by `start`. Its tasks belong to the group given there; gRPC's own handler tasks end with `close`."""

    def __init__(self, server: aio.Server, around: Surroundings, address: str) -> None:
        self.address = address
        """HOST:PORT where the server listens."""
        self._server = server
        self._around = around
        self._arrivals = around.arrivals
        self._config = around.config
        self._addresses = AddressBook(self._config.max_peers)
        self._light: dict[PeerId, LightLink] = {}
        self._bulk: dict[PeerId, BulkLink] = {}
        self._defect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._guard = around.spawn(self._raise_defects(), "transport guard")
        self._closed = False
        self._inbound = Inbound(around, self._learn, self._on_defect)

    @classmethod
    async def start(
        cls,
        config: TransportConfig,
        pool: PayloadPool,
        group: asyncio.TaskGroup,
        rng: Random,
        library: Library = _NO_LIBRARY,
        hooks: Hooks = _NO_HOOKS,
        security: Security = _PLAINTEXT,
    ) -> GrpcTransport:
        """A listening transport. Raises `UnusableError` where the address cannot be listened on."""
        server = aio.server(options=SERVER_OPTIONS)
        port = bind(server, security, config.listen)
        host = split_address(config.listen, "--listen")[0]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        announced = config.announce or ("" if host in ("0.0.0.0", "::") else address)
        arrivals = Arrivals(pool, asyncio.get_running_loop().time, config.max_peers)
        around = Surroundings(config, group, rng, hooks, security, arrivals, announced)
        transport = cls(server, around, address)
        server.add_generic_rpc_handlers((transport._inbound.handlers(),))
        swarm_pb2_grpc.add_LibraryServicer_to_server(LibraryService(around, library), server)
        await transport._start()
        return transport

    async def _start(self) -> None:
        """A start that is cancelled half-way would raise in a task of gRPC's: it is let end, and then undone."""
        starting = self._around.spawn(self._server.start(), "transport start")
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting
            await self.close()
            raise

    # ---- the port

    def on_message(self, handler: MessageHandler) -> None:
        """See `PeerTransport`."""
        self._arrivals.on_message(handler)

    def on_payload(self, handler: PayloadHandler) -> None:
        """See `PeerTransport`."""
        self._arrivals.on_payload(handler)

    def introduce(self, peer: PeerId, address: str) -> None:
        """See `PeerTransport`."""
        if peer != self._config.peer and self._addresses.introduce(peer, address):
            self._move(peer)

    def connect(self, peer: PeerId) -> None:
        """See `PeerTransport`."""
        if not self._closed and peer in self._addresses and peer != self._config.peer:
            link = self._bulk_link(peer)
            self._around.spawn(link.open_ahead(), f"transport opens the bulk stream to {peer[-8:]}")

    def send(self, peer: PeerId, message: Message) -> None:
        """See `PeerTransport`."""
        if self._closed:
            return
        if peer == self._config.peer:
            self._arrivals.own_message(peer, self._config.incarnation, message)
        elif peer not in self._addresses:
            self._arrivals.counts["unaddressed"] += 1
        else:
            self._light_link(peer).put(message)

    async def send_payload(self, peer: PeerId, header: PayloadHeader, handle: int) -> None:
        """See `PeerTransport`. A send that is cancelled breaks the stream; the receiver drops the payload."""
        if self._closed:
            raise PeerError(peer, "this node is closing its streams")
        if peer == self._config.peer:
            self._arrivals.own_payload(peer, header, handle)
            return
        if peer not in self._addresses:
            raise PeerError(peer, "its address is not known")
        payload = self._arrivals.pool.get(handle)
        spec, data = payload.spec, payload.data.cast("B")
        assert data.nbytes == encoded_bytes(spec), f"{data.nbytes} bytes are no {spec}"
        head = PayloadHead(header, spec.codec, spec.shape, data.nbytes)  # type: ignore[arg-type]
        self._arrivals.pool.hold(handle)
        try:
            await self._bulk_link(peer).send(kind_of(header), encode_head(head), data)
        finally:
            self._arrivals.pool.release(handle)

    def heard(self) -> dict[PeerId, float]:
        """See `PeerTransport`."""
        return self._arrivals.heard()

    def forget(self, peer: PeerId) -> None:
        """See `PeerTransport`."""
        self._addresses.forget(peer)
        self._arrivals.forget(peer)
        self._hang_up(peer, "the peer left")

    def announce(self, address: str) -> None:
        """From now on peers are told that they reach this node at HOST:PORT; '' = they are told nothing."""
        self._around.announced = address

    def tune(self, *, chunk_bytes: int, max_payload_bytes: int) -> None:
        """What a node that joins knows only once it has the manifest; holds for streams and payloads from now on."""
        assert 0 < chunk_bytes <= MAX_CHUNK_BYTES, f"chunks of {chunk_bytes} bytes"
        config = self._around.config
        self._around.config = replace(config, chunk_bytes=chunk_bytes, max_payload_bytes=max_payload_bytes)

    async def close(self) -> None:
        """See `PeerTransport`. Takes at most about `close_s`, whatever state the peers are in."""
        if self._closed:
            return
        self._closed = True
        self._arrivals.close()
        for peer in {*self._light, *self._bulk}:
            self._hang_up(peer, "this node is closing its streams")
        self._guard.cancel()
        try:
            async with asyncio.timeout(self._config.close_s):
                self._inbound.close()
                # A short grace, because gRPC makes a noise on everybody's stderr where there is none.
                await self._server.stop(self._config.close_s / 4)
                await self._around.tasks_done()
        except TimeoutError:
            log.warning("streams took more than %g s to close", self._config.close_s)
            self._around.cancel_tasks()

    # ---- for metrics

    def queues(self) -> dict[str, int]:
        """Lengths now, over all peers."""
        return {
            "messages": sum(len(link.outbox) for link in self._light.values()),
            "payloads": sum(link.num_waiting for link in self._bulk.values()),
            "assembly_bytes": self._inbound.budget.used,
        }

    def counts(self) -> dict[str, int]:
        """What happened since the start: dropped_..., refused_CODE, failed_dials, broken_streams, unaddressed."""
        return dict(self._arrivals.counts)

    # ---- inside

    def _light_link(self, peer: PeerId) -> LightLink:
        if peer not in self._light:
            self._light[peer] = LightLink(self._around, peer, self._addresses[peer])
        return self._light[peer]

    def _bulk_link(self, peer: PeerId) -> BulkLink:
        if peer not in self._bulk:
            self._bulk[peer] = BulkLink(self._around, peer, self._addresses[peer])
        return self._bulk[peer]

    def _hang_up(self, peer: PeerId, reason: str) -> None:
        for links in (self._light, self._bulk):
            if (link := links.pop(peer, None)) is not None:
                link.close(reason)

    def _move(self, peer: PeerId) -> None:
        for links in (self._light, self._bulk):
            if peer in links:
                links[peer].line.move(self._addresses[peer])

    def _learn(self, peer: PeerId, incarnation: int, address: str) -> None:
        if self._addresses.learn(peer, incarnation, address):
            self._move(peer)

    def _on_defect(self, defect: Exception) -> None:
        if not self._defect.done():
            self._defect.set_exception(defect)

    async def _raise_defects(self) -> None:
        """What a stream's handler raised ends the node, not only gRPC's call."""
        await self._defect
