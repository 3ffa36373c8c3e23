"""A node's desk: what its HTTP server and the hooks of its streams are answered with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from node import __version__
from node.contribution import Contribution
from node.facts import MachineWatch
from node.http import HttpSources, Weights
from node.keys import order_verifier
from node.link_use import LinkUse
from node.metrics import Metrics
from node.observed import Observed
from node.page.page import Page
from node.ports import Clock, Directory, UnusableError
from node.proofs import Proofs
from node.runtime import Runtime
from node.serving import Shelf
from node.transport.config import Observation, ObserveRequest
from node.transport.grpc_transport import GrpcTransport
from protocol.events import MessageReceived
from protocol.invite import MAX_ADDRESSES, Invite, mint
from protocol.messages import Order
from protocol.node_state import NodeState
from protocol.orders import refusal

FIELDS = {"action", "serial", "signature"}


class Desk:
    """Sockets are bound before there is anything to tell; `open` is called when the node is put together."""

    def __init__(self, clock: Clock, shelf: Shelf) -> None:
        self.metrics = Metrics(clock)
        self.metrics.facts.refresh = self._refresh
        self.link = LinkUse(clock)
        self.machine: MachineWatch | None = None
        """Set once the state directory is this node's."""
        self.upload_limit: float | None = None
        """Bytes per second."""
        self.clock_offset: Callable[[], float | None] = lambda: None
        """This machine's clock minus a peer's."""
        self._clock, self._shelf = clock, shelf
        self._state: NodeState | None = None
        self._runtime: Runtime | None = None
        self._directory: Directory | None = None
        self._transport: GrpcTransport | None = None
        self._published_at: float | None = None
        self.page = Page(clock, self.status)
        self.observed = Observed(clock, self.status, self.metrics, self.page.entries, self._shown)
        self.contribution: Contribution | None = None
        self.proofs: Proofs | None = None
        """Set once the run is known."""

    def sources(self) -> HttpSources:
        """For the HTTP server."""
        return HttpSources(self.status, self.metrics, self.invite, self._shelf_dump, self.obey, self.page)

    def open(self, state: NodeState, runtime: Runtime, directory: Directory, transport: GrpcTransport) -> None:
        """From now on there is something to tell."""
        self._state, self._runtime, self._directory, self._transport = state, runtime, directory, transport
        config = state.config
        self.metrics.peer, self.metrics.lapse_s = config.member.peer, config.manifest.timing.lapse_s
        self.page.open(state)
        self.metrics.identify(run_id=config.manifest.run_id, peer=config.member.peer, name=config.name)

    # ---- HTTP ----

    def status(self) -> dict[str, Any]:
        """The object of `/status`."""
        if self._state is None:
            return {"pid": os.getpid(), "phase": "starting", "sentence": "starting", "seats": [], "view": []}
        own = self.contribution.as_json() if self.contribution else None
        own = own | {"proven": self.proofs.sums()} if own and self.proofs else own
        shell = {"pid": os.getpid(), "version": __version__, "wall": self._clock.wall(), "contribution": own}
        return self._state.snapshot(self._clock.monotonic()) | shell

    def invite(self) -> str:
        """A fresh invite: this node first, then others that were there lately, so that it outlives this node."""
        if self._state is None or self._directory is None:
            raise UnusableError(3, "the node is still starting; try again in a moment")
        manifest = self._state.config.manifest
        own, others = self._directory.addresses(), self._directory.remembered()
        addresses = list(dict.fromkeys([*own[:1], *others, *own[1:]]))
        return mint(Invite(tuple(addresses[:MAX_ADDRESSES]), manifest.digest, manifest.name, manifest.organiser))

    async def _shelf_dump(self, stage: int) -> Weights:
        return await self._shelf.dump(stage)

    def obey(self, body: bytes) -> str:
        """A signed order, as JSON, into the swarm. Raises `ValueError` where it is not to be obeyed."""
        if self._state is None or self._runtime is None:
            raise ValueError("the node is still starting; try again in a moment")
        told = json.loads(body)
        if not isinstance(told, dict) or set(told) != FIELDS or type(told["serial"]) is not int:
            raise ValueError(f"an order has exactly the fields {', '.join(sorted(FIELDS))}")
        order = Order(str(told["action"]), told["serial"], str(told["signature"]))  # type: ignore[arg-type]
        wrong = self._refusal(order, self._state.orders.serial)
        if wrong:
            raise ValueError(wrong)
        if self._state.orders.stopped and order.action != "stop":
            raise ValueError(f"order {order.action} comes too late: the organiser has stopped the run")
        member = self._state.config.member
        self._runtime.dispatch(MessageReceived(member.peer, member.incarnation, order))
        return f"order {order.action} passed on to the coordinator"

    # ---- streams and runtime ----

    def _shown(self, claims_after: int, roots_after: int) -> dict[str, Any]:
        if not self.proofs:
            return {}
        return {"claims": self.proofs.claims(claims_after), "roots": self.proofs.roots(roots_after)}

    def observe(self, asked: ObserveRequest) -> Observation | None:
        """For an observer; None for one who does not know this run, or before there is anything to tell."""
        if self._state is None or asked.run_digest != self._state.config.manifest.digest:
            return None
        return self.observed.show(asked)

    def verify(self, order: Order) -> bool:
        """Is it the organiser's?"""
        return self._refusal(order, 0) == ""

    def _refusal(self, order: Order, last_serial: int) -> str:
        assert self._state, "orders are looked at by a node that is put together"
        manifest = self._state.config.manifest
        return refusal(order, manifest.run_id, last_serial, order_verifier(manifest.organiser))

    @property
    def is_seated(self) -> bool:
        """Does this node hold a stage?"""
        return self._state is not None and bool(self._state.bench.seats)

    def on_bytes(self, kind: str, direction: str, num_bytes: int) -> None:
        """Hook of the transport."""
        way = "received" if direction == "in" else "sent"
        self.metrics.wire(kind, way, num_bytes)
        self.link.on_bytes(way, num_bytes)
        self.page.on_bytes(direction, num_bytes)

    def on_published(self, at: float) -> None:
        """The directory took the lease at `at`."""
        self._published_at = at

    def measure(self) -> None:
        """Bring the gauges and the page up to date; called with each tick."""
        self.page.tick()
        if self._published_at is not None:
            self.metrics.lease_age(self._clock.monotonic() - self._published_at)
        for queue, length in (self._transport.queues() if self._transport else {}).items():
            self.metrics.queue(queue, length)

    def _refresh(self) -> None:
        """What is read only when somebody scrapes."""
        facts = self.metrics.facts
        facts.tell("regrow_sending_seconds", self.link.sending_s)
        for direction, peak in self.link.peaks.items():
            facts.tell("regrow_link_peak_bytes_per_second", peak, direction)
        facts.tell("regrow_upload_limit_bytes_per_second", self.upload_limit)
        facts.tell("regrow_clock_offset_seconds", self.clock_offset())
        for event, count in (self._transport.counts() if self._transport else {}).items():
            facts.tell("regrow_stream_events", count, event)
        if self.machine:
            self.machine.tell(facts)
