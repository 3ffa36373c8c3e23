"""What a node listens on and finds its peers by: sockets first (so that a port in use is told at once), then the directory.

Closing goes the other way round, each part within a bound. All streams are mutual TLS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from random import SystemRandom
from typing import TYPE_CHECKING

from node.certificates import papers_of
from node.config import NodeSettings
from node.desk import Desk
from node.dial_back import DialBack
from node.guests import Guests
from node.http import HttpServer
from node.identity import Identity, double_start_error, find_double
from node.limits import Limits
from node.newcomer import Newcomer
from node.own_ports import at_port
from node.past import Past
from node.ports import Clock, Lease, PayloadPool, UnusableError
from node.reach import joined
from node.reachable import Reachable
from node.signals import Signals
from node.state_store import DirectoryStore
from node.whereabouts import Whereabouts
from protocol.addresses import multiaddress, parse_host_port, parse_multiaddress
from protocol.ids import Member
from protocol.messages import Contact

if TYPE_CHECKING:
    from node.directory import HivemindDirectory
    from node.transport.channel import Security
    from node.transport.config import Library
    from node.transport.donors import GrpcDonors
    from node.transport.fetch import Asker
    from node.transport.grpc_transport import GrpcTransport

CANNOT_REACH = 3
CLOSE_S, PROBE_S = 4.0, 5.0
CHUNK_BYTES = 1 << 20
"""Of streams until the run says its own."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """What belongs to the state directory."""

    store: DirectoryStore
    identity: Identity
    member: Member


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of the run before its manifest is; the organiser knows more."""

    run_id: str
    digest: str
    past: Past
    ticket: str = ""
    initial_peers: tuple[str, ...] = ()
    is_local: bool = False
    founder: bool = False


@dataclass(frozen=True, slots=True)
class Network:
    """What is listened on, and what peers are found through and asked with."""

    http: HttpServer
    published: tuple[HttpServer, ...]
    """Of the status page alone: none or one."""
    transport: GrpcTransport
    directory: HivemindDirectory
    asker: Asker
    guests: Guests
    donors: GrpcDonors
    back: DialBack
    where: Whereabouts


@dataclass(frozen=True, slots=True)
class Opening:
    """What a network is opened with. `defaults`: settings that nobody set, whose ports may give way; `say`: to the user."""

    settings: NodeSettings
    defaults: frozenset[str]
    clock: Clock
    say: Callable[[str], None]
    pool: PayloadPool
    desk: Desk
    library: Library
    limits: Limits
    signals: Signals
    on_bytes: Callable[[str, str, int], None]
    on_refused: Callable[[str, str], None]
    """(peer, sentence): see `Hooks`."""

    async def open(self, home: Home, run: Run, group: asyncio.TaskGroup, stack: AsyncExitStack) -> Network:
        """All of it; `stack` closes it. Raises `UnusableError` where something cannot be had, or this identity runs already."""
        from node.transport.donors import GrpcDonors
        from node.transport.fetch import Asker
        from node.transport.tls import Tls

        await _refuse_own_invite(home, run)
        http = await self._open_http()
        stack.callback(http.close)
        published = await self._open_published(stack)
        guests = Guests(home.member.peer, self.clock)
        security = Tls(papers_of(home.identity.key), guests.admits, guests.flaw_of)
        asker = Asker(security, self.on_bytes)
        back = DialBack(guests.claims, asker.prove, self.clock)
        library = replace(self.library, dial_back=back.answer)
        transport = await self._open_transport(home, run.run_id, library, security, group)
        stack.push_async_callback(bounded, transport.close, "the streams")
        towards = run.initial_peers or run.past.peers()
        where = Whereabouts.guess(self.settings, transport.address, towards, is_local=run.is_local)
        if run.founder:
            where = where.in_run(run.is_local)
            where.for_founder(self.settings.dht_port)
        back.is_near = where.is_near
        directory = await self._open_directory(home, run, where, guests, group)
        stack.push_async_callback(bounded, directory.close, "the directory")
        guests.open(directory.leases)
        network = Network(
            http, published, transport, directory, asker, guests, GrpcDonors(security, self.on_bytes), back, where
        )
        await self._refuse_double(home, network)
        return network

    async def _open_http(self) -> HttpServer:
        host, port = parse_host_port(self.settings.metrics)

        async def open_at(port: int) -> HttpServer:
            return HttpServer.open(host, port, self.desk.sources())

        return await at_port(open_at, port, "--metrics", "metrics" in self.defaults, self.say)

    async def _open_published(self, stack: AsyncExitStack) -> tuple[HttpServer, ...]:
        if not self.settings.publish:
            return ()
        host, port = parse_host_port(self.settings.publish)
        server = HttpServer.publish(host, port, self.desk.page)
        stack.callback(server.close)
        self.say(f"the status page, safe to show to everybody, is at http://{server.address}/")
        return (server,)

    async def _open_transport(
        self, home: Home, run_id: str, library: Library, security: Security, group: asyncio.TaskGroup
    ) -> GrpcTransport:
        from node.transport.config import Hooks, TransportConfig
        from node.transport.grpc_transport import GrpcTransport

        host, port = parse_host_port(self.settings.listen)
        chunk_bytes = self.limits.chunk_bytes(CHUNK_BYTES)
        config = TransportConfig(run_id, home.member.peer, home.member.incarnation, chunk_bytes=chunk_bytes)
        sending, pace_out = self.desk.link.on_sending, self.limits.pace_out
        hooks = Hooks(on_bytes=self.on_bytes, on_refused=self.on_refused, on_sending=sending, pace_out=pace_out)

        async def open_at(port: int) -> GrpcTransport:
            at = replace(config, listen=joined(host, port))
            return await GrpcTransport.start(at, self.pool, group, SystemRandom(), library, hooks, security)

        return await at_port(open_at, port, "--listen", "listen" in self.defaults, self.say)

    async def _open_directory(
        self, home: Home, run: Run, where: Whereabouts, guests: Guests, group: asyncio.TaskGroup
    ) -> HivemindDirectory:
        await asyncio.to_thread(import_module, "node.directory")  # takes seconds, in which the screen goes on
        from node.directory import DirectoryConfig, HivemindDirectory

        settings = self.settings
        host, _ = parse_host_port(settings.listen)
        announce = where.dht(where.told)
        config = DirectoryConfig(
            run_digest=run.digest,
            identity=home.identity,
            runtime_dir=settings.state_dir,
            announce=(announce,) if announce.startswith("/") else (),
            announce_host="" if announce.startswith("/") else announce,
            quiet=not announce,
            initial_peers=run.initial_peers,
            known_peers=run.past.peers(),
            start_timeout_s=settings.bootstrap_timeout_s,
            bootstrap_timeout_s=settings.bootstrap_timeout_s,
            on_daemon_death=self.say,
            on_leases=guests.note,
            ticket=run.ticket,
        )
        self.say("entering the directory")
        self.signals.abrupt = False

        async def open_at(port: int) -> HivemindDirectory:
            return await HivemindDirectory.start(replace(config, listen=multiaddress(host, port)), group)

        return await at_port(open_at, settings.dht_port, "--dht-port", "dht_port" in self.defaults, self.say)

    async def _refuse_double(self, home: Home, network: Network) -> None:
        """The same identity must not run twice."""
        m = home.member
        own = Lease(m.peer, m.incarnation, "", network.where.address, "", (), 0, False, False, self.clock.wall() + 1.0)

        async def is_another(lease: Lease) -> bool:
            return bool(lease.address) and await network.asker.is_there(lease, not_in=m.incarnation)

        double = await find_double(await network.directory.leases(), own, is_another)
        if double:
            raise double_start_error(home.identity, double.address)


async def _refuse_own_invite(home: Home, run: Run) -> None:
    """An invite to this very peer leads nowhere: the directory does not dial itself, and another life of it is not us."""
    addresses = [parse_multiaddress(text) for text in run.initial_peers]
    if not addresses or run.past.peers() or any(address.peer != home.member.peer for address in addresses):
        return
    for address in addresses:
        where = joined(address.host, address.port)
        if await _somebody_listens(address.host, address.port):
            raise double_start_error(home.identity, where)
    raise UnusableError(
        CANNOT_REACH,
        "the invite leads to this very node, and no other is known: ask a running one for a fresh one (`regrow invite`)",
    )


async def _somebody_listens(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # a timeout is one
        return False
    writer.transport.abort()
    return True


async def settle(
    network: Network, newcomer: Newcomer, leases: list[Lease], is_local: bool, clock: Clock, say: Callable[[str], None]
) -> Network:
    """The manifest is known: where peers reach this node is found and proven, before it wishes for a stage."""
    where, directory = network.where.in_run(is_local), network.directory
    network.back.is_near = where.is_near
    ports = (parse_host_port(network.transport.address)[1], directory.port)
    reachable = Reachable(network.asker, newcomer.move, say, SystemRandom(), clock, *ports, where.is_near)
    address = await reachable.settle(where.told, [Contact(lease.peer, lease.address) for lease in leases])
    if directory.is_quiet:
        await directory.announce(where.dht(address))
    return replace(network, where=replace(where, address=address))


async def bounded(close: Callable[[], Awaitable[None]], what: str) -> None:
    """Close within a bound; what does not end in time ends with the process."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await close()
    except TimeoutError:
        log.warning("%s did not close within %.0f s", what, CLOSE_S)
