"""Peers' streams in memory: `PeerTransport` without sockets, on whatever event loop runs, also on virtual time.

What a message may say, who is let in, what waits and what is dropped is the production code of `node/transport`; when
something arrives, twice, late or never, is decided by `node.sim.network`. A peer can be killed (its connections break),
lost (its machine is off: nothing breaks, nothing comes) and frozen (it takes nothing in until it thaws).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NoReturn

from node.payloads import encoded_bytes
from node.ports import MessageHandler, Payload, PayloadHandler, PayloadPool, PeerError, UnusableError
from node.sim.network import Network
from node.transport.arrivals import Arrivals
from node.transport.assembly import checked_bytes
from node.transport.checks import WireError, check
from node.transport.config import Hello, Hooks, Kind, PayloadHead, TransportConfig, kind_of, split_address
from node.transport.greeting import REFUSALS, AddressBook, admit
from node.transport.outbox import Backoff, Outbox
from protocol.ids import PeerId
from protocol.messages import Heartbeat, Message, PayloadHeader

LOOK_AGAIN_S = 0.05
_NO_HOOKS = Hooks()
Charge = Callable[[PayloadHeader, int], int]
"""Bytes of a payload here -> what the links carry for it, where the tensors are small and the clock is that of large ones."""
MESSAGE_BYTES = 64
"""What a message counts for where nothing is encoded."""


@dataclass(slots=True)
class _Link:
    """Messages to one peer that could not be handed to the network yet."""

    outbox: Outbox[Message]
    backoff: Backoff
    timer: asyncio.Handle | None = None
    reason: str = ""
    """Why the peer does not let this node in; '' where it does."""
    num_payloads: int = 0
    broken: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryNetwork:
    """All transports of one simulated world. With `encode`, messages pass through protobuf as on a real wire."""

    def __init__(self, links: Network, encode: bool = False, charge: Charge = lambda _, num_bytes: num_bytes) -> None:
        self.links = links
        self.encode = encode
        self.charge = charge
        self._at: dict[str, MemoryTransport] = {}
        self._lost: set[str] = set()
        self._last_port = 0

    def bind(self, listen: str, transport: MemoryTransport) -> str:
        """Let a transport be found at its address. Raises `UnusableError` where somebody is."""
        host, port = split_address(listen, "--listen")
        if not port:
            self._last_port += 1
            port = self._last_port
        address = f"{host}:{port}"
        if address in self._at:
            raise UnusableError(2, f"cannot listen on {address}: the port is in use; choose another --listen HOST:PORT")
        self._at[address] = transport
        self._lost.discard(address)
        return address

    def unbind(self, address: str, peer: PeerId, *, silent: bool = False) -> None:
        """Nobody is there any more; `silent`: nor is a machine that would say so."""
        self._at.pop(address, None)
        if silent:
            self._lost.add(address)
            return
        for other in self._at.values():
            other.break_stream(peer)

    def at(self, address: str) -> MemoryTransport | None:
        """Who listens there."""
        return self._at.get(address)

    def is_lost(self, address: str) -> bool:
        """Whether packets to this address just vanish."""
        return address in self._lost


class MemoryTransport:
    """The transport of one simulated node. It has no tasks, only timers; they do nothing once it is closed."""

    def __init__(
        self, network: MemoryNetwork, config: TransportConfig, pool: PayloadPool, rng: Random, hooks: Hooks = _NO_HOOKS
    ) -> None:
        """Listens at once. Raises `UnusableError` where the address is taken."""
        self._network = network
        self._config = config
        self._rng = rng
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._arrivals = Arrivals(pool, self._loop.time, config.max_peers)
        self._addresses = AddressBook(config.max_peers)
        self._links: dict[PeerId, _Link] = {}
        self._incarnations: dict[PeerId, int] = {}
        self._frozen = False
        self._held: list[Callable[[], None]] = []
        self._closed = False
        self.address = network.bind(config.listen, self)

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
            self._moved(peer)

    def connect(self, peer: PeerId) -> None:
        """See `PeerTransport`; here it takes no time."""

    def send(self, peer: PeerId, message: Message) -> None:
        """See `PeerTransport`."""
        if self._closed:
            return
        check(message)
        if peer == self._config.peer:
            self._arrivals.own_message(peer, self._config.incarnation, message)
        elif peer not in self._addresses:
            self._arrivals.counts["unaddressed"] += 1
        else:
            link = self._link(peer)
            before = link.outbox.dropped_messages, link.outbox.dropped_heartbeats
            link.outbox.put(message, isinstance(message, Heartbeat))
            self._arrivals.counts["dropped_messages"] += link.outbox.dropped_messages - before[0]
            self._arrivals.counts["dropped_heartbeats"] += link.outbox.dropped_heartbeats - before[1]
            if link.timer is None:
                link.timer = self._loop.call_soon(self._flush, peer)

    async def send_payload(self, peer: PeerId, header: PayloadHeader, handle: int) -> None:
        """See `PeerTransport`."""
        if self._closed:
            raise PeerError(peer, "this node is closing its streams")
        if peer == self._config.peer:
            self._arrivals.own_payload(peer, header, handle)
            return
        if peer not in self._addresses:
            raise PeerError(peer, "its address is not known")
        link, pool = self._link(peer), self._arrivals.pool
        if link.num_payloads >= self._config.max_queued_payloads:
            raise PeerError(peer, f"{link.num_payloads} payloads wait for it already")
        payload = pool.get(handle)
        assert payload.data.nbytes == encoded_bytes(payload.spec), f"{payload.data.nbytes} bytes are no {payload.spec}"
        pool.hold(handle)
        link.num_payloads += 1
        try:
            await self._transmit(peer, link, header, payload)
        finally:
            link.num_payloads -= 1
            pool.release(handle)

    def heard(self) -> dict[PeerId, float]:
        """See `PeerTransport`."""
        return self._arrivals.heard()

    def forget(self, peer: PeerId) -> None:
        """See `PeerTransport`."""
        self._addresses.forget(peer)
        self._arrivals.forget(peer)
        self._moved(peer)
        self._links.pop(peer, None)

    async def close(self) -> None:
        """See `PeerTransport`."""
        self.kill()

    # ---- for metrics, as `GrpcTransport`

    def queues(self) -> dict[str, int]:
        """Lengths now, over all peers."""
        return {
            "messages": sum(len(link.outbox) for link in self._links.values()),
            "payloads": sum(link.num_payloads for link in self._links.values()),
            "assembly_bytes": 0,
        }

    def counts(self) -> dict[str, int]:
        """What happened since the start."""
        return dict(self._arrivals.counts)

    # ---- what happens to nodes

    def kill(self, *, silent: bool = False) -> None:
        """The process is gone, and nobody says goodbye; `silent`: the machine is gone, so that others notice nothing."""
        if self._closed:
            return
        self._closed = True
        self._arrivals.close()
        self._network.unbind(self.address, self._config.peer, silent=silent)
        for peer in list(self._links):
            self._moved(peer)

    def freeze(self) -> None:
        """Take nothing in and send nothing until `thaw`."""
        self._frozen = True

    def thaw(self) -> None:
        """Go on; what was sent meanwhile arrives now, in order."""
        self._frozen = False
        held, self._held = self._held, []
        for arrive in held:
            arrive()

    @property
    def is_frozen(self) -> bool:
        """Whether it takes nothing in."""
        return self._frozen

    # ---- inside: sending

    def _link(self, peer: PeerId) -> _Link:
        if peer not in self._links:
            config = self._config
            backoff = Backoff(config.backoff_first_s, config.backoff_last_s, self._rng)
            self._links[peer] = _Link(Outbox(config.max_queued_messages), backoff)
        return self._links[peer]

    def _moved(self, peer: PeerId) -> None:
        """Streams to the peer break; what is queued goes to its new address at once."""
        link = self._links.get(peer)
        if link is None:
            return
        self.break_stream(peer)
        link.backoff.reset()
        if link.timer is not None:
            link.timer.cancel()
        link.timer = None if self._closed or peer not in self._addresses else self._loop.call_later(0, self._flush, peer)

    def _flush(self, peer: PeerId) -> None:
        """Hand everything queued for a peer to the network, or try again later."""
        link = self._links.get(peer)
        if link is None or self._closed:
            return
        link.timer = None
        target = self._reach(peer, link)
        if target is None or self._frozen:
            if len(link.outbox):
                link.timer = self._loop.call_later(link.backoff.after_failure(), self._flush, peer)
            return
        link.backoff.reset()
        while (message := link.outbox.pop()) is not None:
            kind: Kind = "heartbeat" if isinstance(message, Heartbeat) else "control"
            self._hooks.on_bytes(kind, "out", MESSAGE_BYTES)
            for when in self._network.links.control(self._config.peer, peer, self._loop.time()):
                self._loop.call_at(when, target.take_message, self._config, message)

    def _reach(self, peer: PeerId, link: _Link) -> MemoryTransport | None:
        """Who answers at the peer's address and lets this node in."""
        target = self._network.at(self._addresses[peer])
        if target is None:
            return None
        fault = target.greet(self._hello(peer))
        reason, link.reason = link.reason, str(fault or "")
        if fault is None:
            return target
        if fault.code in REFUSALS and link.reason != reason:
            self._hooks.on_refused(peer, link.reason)
        return None

    def _hello(self, peer: PeerId) -> Hello:
        config = self._config
        address = config.announce or self.address
        return Hello(config.protocol_version, config.run_id, config.peer, config.incarnation, address, peer)

    async def _transmit(self, peer: PeerId, link: _Link, header: PayloadHeader, payload: Payload) -> None:
        """Raises `PeerError` as soon as the sender would notice."""
        broken, address = link.broken, self._addresses[peer]
        while self._frozen:
            await self._until(self._loop.time() + LOOK_AGAIN_S, peer, broken)
        if self._network.is_lost(address):
            await self._stall(peer, broken)
        target = self._reach(peer, link)
        if target is None:
            raise PeerError(peer, link.reason or f"cannot reach {address}: connection refused")
        head = target.judge(header, payload)
        if isinstance(head, str):
            raise PeerError(peer, head)
        patience = self._loop.time() + self._config.progress_s
        while target.is_frozen:
            if self._loop.time() >= patience:
                raise PeerError(peer, f"took no bytes for {self._config.progress_s:g} s")
            await self._until(self._loop.time() + LOOK_AGAIN_S, peer, broken)
        num_bytes = self._network.charge(header, payload.data.nbytes)
        now, patience_s = self._loop.time(), self._config.progress_s
        sent = self._network.links.payload(self._config.peer, peer, now, num_bytes, patience_s)
        await self._until(sent.at, peer, broken)
        if sent.failed:
            raise PeerError(peer, f"took no bytes for {patience_s:g} s")
        if self._network.at(address) is not target:
            if self._network.is_lost(address):
                await self._stall(peer, broken)
            raise PeerError(peer, "the stream broke: connection reset")
        self._hooks.on_bytes(kind_of(header), "out", num_bytes)
        for when in sent.arrivals:
            copy = Payload(payload.spec, memoryview(bytearray(payload.data)))
            self._loop.call_at(when, target.take_payload, self._config, header, copy)

    async def _until(self, when: float, peer: PeerId, broken: asyncio.Event) -> None:
        try:
            async with asyncio.timeout_at(when):
                await broken.wait()
        except TimeoutError:
            return
        raise PeerError(peer, "the stream was closed")

    async def _stall(self, peer: PeerId, broken: asyncio.Event) -> NoReturn:
        await self._until(self._loop.time() + self._config.progress_s, peer, broken)
        raise PeerError(peer, f"took no bytes for {self._config.progress_s:g} s")

    # ---- inside: receiving, called by other transports

    def break_stream(self, peer: PeerId) -> None:
        """The connection to a peer is gone; sends in progress raise `PeerError`."""
        link = self._links.get(peer)
        if link is not None:
            link.broken.set()
            link.broken = asyncio.Event()

    def greet(self, hello: Hello) -> WireError | None:
        """Why the caller's streams are refused; None where they are welcome."""
        try:
            admit(self._config, hello)
            if hello.incarnation < self._incarnations.get(hello.peer, -1):
                raise WireError("stale", f"a newer incarnation of this peer is here already, {hello.incarnation} is older")
        except WireError as fault:
            self._arrivals.counts[f"refused_{fault.code}"] += 1
            return fault
        self._incarnations[hello.peer] = hello.incarnation
        if self._addresses.learn(hello.peer, hello.incarnation, hello.address):
            self._moved(hello.peer)
        return None

    def judge(self, header: PayloadHeader, payload: Payload) -> str | None:
        """Why a payload is refused."""
        spec = payload.spec
        head = PayloadHead(header, spec.codec, spec.shape, payload.data.nbytes)  # type: ignore[arg-type] # checked here
        try:
            check(head)
            checked_bytes(head, self._config.max_payload_bytes)
        except WireError as fault:
            self._arrivals.counts[f"refused_{fault.code}"] += 1
            return str(fault)
        return None

    def take_message(self, sender: TransportConfig, message: Message) -> None:
        """A message has come through the network."""
        if self._is_unfit(sender, partial(self.take_message, sender, message)):
            return
        self._arrivals.note(sender.peer)
        kind: Kind = "heartbeat" if isinstance(message, Heartbeat) else "control"
        self._hooks.on_bytes(kind, "in", MESSAGE_BYTES)
        self._arrivals.message(sender.peer, sender.incarnation, self._through_wire(message))

    def take_payload(self, sender: TransportConfig, header: PayloadHeader, payload: Payload) -> None:
        """A whole payload has come through the network."""
        if self._is_unfit(sender, partial(self.take_payload, sender, header, payload)):
            return
        self._arrivals.note(sender.peer)
        self._hooks.on_bytes(kind_of(header), "in", self._network.charge(header, payload.data.nbytes))
        self._arrivals.payload(sender.peer, header, payload)

    def _is_unfit(self, sender: TransportConfig, arrive: Callable[[], None]) -> bool:
        """Whether nothing can be taken in now; frozen, it keeps `arrive` for later, as far as its buffers go."""
        if self._closed or sender.incarnation < self._incarnations.get(sender.peer, -1):
            return True
        if self._frozen and len(self._held) < self._config.max_queued_messages:
            self._held.append(arrive)
        return self._frozen

    def _through_wire(self, message: Message) -> Message:
        if not self._network.encode:
            return message
        from node.transport.frames import decode_message, encode_message

        return decode_message(encode_message(message))
