"""gRPC's settings, and its errors as sentences. How connections are protected: `Security`, TLS in `node.transport.tls`."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import grpc
from grpc import aio

from node.ports import BusyError, NotHeldError, PeerError, UninvitedError, UnusableError
from node.transport.config import split_address
from node.transport.frames import MAX_FRAME_BYTES
from protocol.ids import PeerId

T = TypeVar("T")
Context = aio.ServicerContext[Any, Any]

_BOTH = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS = (
    *_BOTH,
    ("grpc.use_local_subchannel_pool", 1),  # else both streams to a peer would share one TCP connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.dns_enable_srv_queries", 0),
)
SERVER_OPTIONS = (
    *_BOTH,
    ("grpc.server_handshake_timeout_ms", 10_000),  # else two minutes for everybody who connects and says nothing
    ("grpc.so_reuseport", 0),  # else two nodes bind one port and each gets half of the streams
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


class Security(Protocol):
    """How connections are protected, and who is at their other end."""

    def bind(self, server: aio.Server, address: str) -> int:
        """Let the server listen; returns the port. Raises `RuntimeError` if it cannot."""

    async def channel(self, address: str, peer: PeerId) -> aio.Channel:
        """A channel to this peer's server, which connects when first used. Raises `PeerError` where it is not there."""

    async def caller(self, context: Context) -> PeerId | None:
        """Who is proven to be calling, and may; None where nothing is proven and the Hello is believed.

        Raises `WireError` for anybody else."""

    def proven(self, context: Context) -> PeerId | None:
        """Who is proven to be calling, whether or not it has a lease; None where nothing is proven. Raises `WireError`."""


class Plaintext:
    """No protection at all: for tests of what is above it."""

    def bind(self, server: aio.Server, address: str) -> int:
        """See `Security`."""
        return server.add_insecure_port(address)

    async def channel(self, address: str, peer: PeerId) -> aio.Channel:
        """See `Security`."""
        return aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    async def caller(self, context: Context) -> PeerId | None:
        """See `Security`."""
        return None

    def proven(self, context: Context) -> PeerId | None:
        """See `Security`."""
        return None


def bind(server: aio.Server, security: Security, listen: str) -> int:
    """Port on which the server will listen. Raises `UnusableError` with reason and remedy."""
    host, port = split_address(listen, "--listen")
    reason = _obstacle(host, port)  # first, because gRPC says it failed, but not why, and writes to stderr
    if reason is None:
        try:
            return security.bind(server, listen)
        except RuntimeError:
            reason = _obstacle(host, port) or "the system refused it"
    raise UnusableError(2, f"cannot listen on {listen}: {reason}; choose another --listen HOST:PORT")


def _obstacle(host: str, port: int) -> str | None:
    """What the system has against listening there."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC: what only lingers is no obstacle
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "the port is in use"
        return (error.strerror or str(error)).lower()
    return None


FAULTS: dict[grpc.StatusCode, type[PeerError]] = {
    grpc.StatusCode.PERMISSION_DENIED: UninvitedError,
    grpc.StatusCode.NOT_FOUND: NotHeldError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: BusyError,
}


@contextmanager
def peer_faults(peer: PeerId, what: str) -> Iterator[None]:
    """Turns gRPC's failures inside the block into `PeerError`."""
    try:
        yield
    except aio.AioRpcError as error:
        fault = FAULTS.get(error.code(), PeerError)
        raise fault(peer, f"{what}: {sentence_of(error.code(), error.details())}") from None
    except asyncio.InvalidStateError:
        raise PeerError(peer, f"{what}: the stream is closed") from None
    except TimeoutError:
        raise PeerError(peer, f"{what}: no answer in time") from None


def sentence_of(code: grpc.StatusCode, details: str | None) -> str:
    """A status for people: our own sentences as they are, gRPC's with its code."""
    text = (details or "").strip().splitlines()[0][:500] if (details or "").strip() else ""
    if code in REFUSALS:
        return text or code.name
    return f"{code.name.lower().replace('_', ' ')}{': ' if text else ''}{text}"


REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)
"""Codes with which our own server says what it does not accept."""


async def within(seconds: float, action: Awaitable[T]) -> T:
    """`action`, or `TimeoutError`."""
    async with asyncio.timeout(seconds):
        return await action
