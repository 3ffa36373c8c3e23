"""Mutual TLS: each side proves its identity key, and with it its peer id (see `node.certificates`).

gRPC for Python has no callback in which a certificate could be judged. So:

* The dialer first lets the address show its certificate in a handshake of its own (`_shown`), compares the hash of its key with
  the peer id that it wants, and gives exactly that certificate to gRPC as the only one to trust. Peer ids are hashes of keys:
  nobody need be asked which key is a peer's, and whoever stands between gets no further than the comparison.
* The listener requires a client certificate and lets gRPC accept any key that is proven; whose it is, and whether that peer has
  a lease, is asked before each call is served (`caller`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import grpc
from grpc import aio

from node.certificates import SERVER_NAME, Papers, peer_of_pem, pinned, stamp
from node.ports import PeerError, UnusableError
from node.transport.channel import CHANNEL_OPTIONS, Context
from node.transport.checks import WireError
from node.transport.config import split_address
from protocol.ids import PeerId

PIN_S = 30.0
"""How long a certificate seen at an address is used again: many ranges are fetched, each over a connection of its own."""
MAX_PINS = 1024
HANDSHAKE_S = 5.0
_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME))

Admits = Callable[[PeerId], Awaitable[bool]]
"""Whether a proven peer may call here."""
FlawOf = Callable[[PeerId], str]
"""What is wrong with the lease of one that may not; '' where it has none."""


class Tls:
    """See `Security`."""

    def __init__(self, papers: Papers, admits: Admits, flaw_of: FlawOf = lambda _: "") -> None:
        self._papers = papers
        self._admits = admits
        self._flaw_of = flaw_of
        self._pins: dict[tuple[PeerId, str], tuple[float, bytes]] = {}

    def bind(self, server: aio.Server, address: str) -> int:
        """See `Security`."""
        papers = self._papers
        credentials = grpc.ssl_server_credentials([(papers.key, papers.server)], stamp(), require_client_auth=True)
        return server.add_secure_port(address, credentials)

    async def channel(self, address: str, peer: PeerId) -> aio.Channel:
        """See `Security`."""
        assert peer, "with TLS one dials a peer, not an address"
        root = await self._pin(address, peer)
        credentials = grpc.ssl_channel_credentials(root, self._papers.key, self._papers.client)
        return aio.secure_channel(address, credentials, options=_OPTIONS)

    async def caller(self, context: Context) -> PeerId | None:
        """See `Security`."""
        peer = self.proven(context)
        if not await self._admits(peer):
            if flaw := self._flaw_of(peer):
                raise WireError("ticket", flaw)
            raise WireError("peer", f"peer {peer[-8:]} has no lease in this run's directory, or none that is seen here yet")
        return peer

    def proven(self, context: Context) -> PeerId:
        """See `Security`."""
        shown = [*context.auth_context().get("x509_pem_cert", ()), b""]
        try:
            return peer_of_pem(shown[0])
        except ValueError as error:
            raise WireError("peer", f"this connection is that of no peer: {error}") from None

    async def _pin(self, address: str, peer: PeerId) -> bytes:
        """The certificate (PEM) of this peer at this address. Raises `PeerError`."""
        now = asyncio.get_running_loop().time()
        seen_at, pem = self._pins.pop((peer, address), (float("-inf"), b""))
        if now - seen_at > PIN_S:
            seen_at, pem = now, await _proven(address, peer)
        self._pins[peer, address] = seen_at, pem
        if len(self._pins) > MAX_PINS:
            del self._pins[next(iter(self._pins))]
        return pem


async def _proven(address: str, peer: PeerId) -> bytes:
    """What `address` shows, if it is the certificate of `peer`."""
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            der = await _shown(address)
        pem = pinned(der, peer)
    except TimeoutError:
        raise PeerError(peer, f"cannot reach {address}: no answer within {HANDSHAKE_S:g} s") from None
    except ssl.SSLError as error:
        raise PeerError(peer, f"{address} does not speak our protocol: no TLS ({error.reason or error})") from None
    except OSError as error:
        raise PeerError(peer, f"cannot reach {address}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise PeerError(peer, f"{address} is no node of ours: it shows {error}") from None
    if pem is None:
        raise PeerError(peer, f"{address} is another peer, not {peer[-8:]}")
    return pem


async def _shown(address: str) -> bytes:
    """The certificate (DER) whose key is proven at an address, whoever's it is."""
    try:
        host, port = split_address(address, "address")
    except UnusableError as error:
        raise ValueError(str(error)) from None
    _, writer = await asyncio.open_connection(host, port, ssl=_anybody())
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(der, bytes), "a TLS server shows a certificate"
        return der
    finally:
        writer.transport.abort()


def _anybody() -> ssl.SSLContext:
    """Accepts every certificate: it is judged after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    return context
