"""A world of nodes with TLS, each named by the peer id of a key of its own, and strangers' ways to call them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

import grpc
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

from node.certificates import SERVER_NAME, Papers, papers_of
from node.clock import SystemClock
from node.dial_back import DialBack
from node.guests import Guests
from node.identity import peer_id_of
from node.payloads import HandlePool
from node.ports import Lease
from node.transport import swarm_pb2 as pb
from node.transport import swarm_pb2_grpc
from node.transport.channel import CHANNEL_OPTIONS
from node.transport.config import (
    BlobRequest,
    Closing,
    DialBackAnswer,
    FetchRequest,
    HeldStage,
    Hello,
    Hooks,
    Lane,
    Library,
    TransportConfig,
)
from node.transport.fetch import Asker
from node.transport.frames import decode_answer, encode_hello
from node.transport.grpc_transport import GrpcTransport
from node.transport.stream import METHODS
from node.transport.tls import Tls
from node.transport.wire import to_pb
from protocol.messages import Contact
from protocol.version import PROTOCOL_VERSION
from tests.conformance.transport_worlds import GrpcWorld, Node, until, within

FILE = b"what a node serves"
DIGEST = blake3(FILE).hexdigest()
RPCS = ("Light", "Bulk", "Describe", "Blob", "Fetch", "DialBack")
_LANES: dict[str, Lane] = {"Light": "light", "Bulk": "bulk"}


@cache
def key(number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def peer(number: int) -> str:
    """Name of the node that has this key."""
    return peer_id_of(key(number).public_key())


def papers(number: int) -> Papers:
    return papers_of(key(number))


async def _blob(digest: str, offset: int, size: int) -> bytes | None:
    return FILE[offset : offset + size] if digest == DIGEST else None


async def _range(asked: FetchRequest) -> memoryview | None:
    return memoryview(bytes(4 * asked.count))


LIBRARY = Library(_blob, _range, lambda: (HeldStage(3, "s1", 7, 100),))


class TlsWorld(GrpcWorld):
    """`leases` stands for the directory; `start` gives each node a lease in it, unless it is named in `unleased`."""

    def __init__(self, group: asyncio.TaskGroup, seed: int) -> None:
        super().__init__(group, seed)
        self.leases: dict[str, Lease] = {}
        self.unleased: set[str] = set()
        self.back: dict[str, DialBack] = {}
        self._number = {peer(number): number for number in range(5)}

    async def settle(self) -> None:
        """The last closer: tasks that gRPC made for a stranger's refused call end a little later than the call."""
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    async def _claims(self, peer: str, address: str) -> bool:
        return peer in self.leases and self.leases[peer].address == address

    async def read(self) -> list[Lease]:
        return list(self.leases.values())

    def security(self, name: str) -> Tls:
        guests = Guests(name, SystemClock())
        guests.open(self.read)
        return Tls(papers(self._number[name]), guests.admits)

    async def start(self, config: TransportConfig, pool: HandlePool, hooks: Hooks) -> GrpcTransport:
        security, me = self.security(config.peer), config.peer

        async def dial_back(caller: str, address: str, seen_host: str) -> DialBackAnswer:
            if me not in self.back:
                self.back[me] = DialBack(self._claims, Asker(security).prove, SystemClock())
                self.back[me].is_near = True
            return await self.back[me].answer(caller, address, seen_host)

        library = replace(LIBRARY, dial_back=dial_back)
        transport = await GrpcTransport.start(config, pool, self.group, self.rng, library, hooks, security)
        if config.peer not in self.unleased:
            self.publish(config.peer, transport.address)
        return transport

    def publish(self, name: str, address: str = "127.0.0.1:1") -> None:
        self.leases[name] = Lease(name, 1, "", address, "", (), 0, False, False, 1e12)

    def asker(self, number: int) -> Asker:
        """Asks with this key, without a node."""
        return Asker(self.security(peer(number)))


def contact(node: Node, name: str = "") -> Contact:
    return Contact(name or node.name, node.transport.address)


@dataclass
class Stranger:
    """Calls a node with any credentials; None: without TLS. `claims` is what it says in its Hello."""

    node: Node
    credentials: grpc.ChannelCredentials | None
    claims: str = field(default_factory=lambda: peer(3))

    async def call(self, rpc: str) -> str:
        """What comes of a call: 'served', or why not."""
        options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME))
        address = self.node.transport.address
        channel = (
            aio.secure_channel(address, self.credentials, options)
            if self.credentials
            else aio.insecure_channel(address, options)
        )
        async with channel:
            try:
                return await within(self._stream(channel, _LANES[rpc]) if rpc in _LANES else self._ask(channel, rpc))
            except aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"

    async def _stream(self, channel: aio.Channel, lane: Lane) -> str:
        call: Any = channel.stream_stream(METHODS[lane])()
        with contextlib.suppress(asyncio.InvalidStateError):  # it ended already; the read tells why
            await call.write(encode_hello(Hello(PROTOCOL_VERSION, "run-1", self.claims, 1, "", self.node.name)))
        try:
            answer = decode_answer(await call.read())
        finally:
            call.cancel()  # closing the channel alone does not always end it
        return answer.sentence if isinstance(answer, Closing) else "served"

    async def _ask(self, channel: aio.Channel, rpc: str) -> str:
        stub = swarm_pb2_grpc.LibraryStub(channel)
        if rpc == "Describe":
            await stub.Describe(pb.DescribeRequest())
            return "served"
        if rpc == "DialBack":
            await stub.DialBack(pb.DialBackRequest(address=""))
            return "served"
        asked = BlobRequest(DIGEST, 0, 100) if rpc == "Blob" else FetchRequest(3, "s1", "weights", 0, 10)
        chunk = await getattr(stub, rpc)(to_pb(asked)).read()
        assert chunk.data
        return "served"


def signed_by(signer: ec.EllipticCurvePrivateKey, public: Any) -> bytes:
    """A client certificate that looks like that of node 3 (PEM)."""
    like = x509.load_pem_x509_certificate(papers(3).client)
    builder = x509.CertificateBuilder().issuer_name(like.issuer).subject_name(like.subject).public_key(public).serial_number(7)
    builder = builder.not_valid_before(like.not_valid_before_utc).not_valid_after(like.not_valid_after_utc)
    for extension in like.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)


def garbage(rng: Random) -> bytes:
    """What somebody who is no node might say first: noise, HTTP, HTTP/2 without TLS, the beginning of a handshake."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 20_000))
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * rng.randrange(1, 50)
    if kind == 2:
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(500)
    size = rng.randrange(1, 16_000)
    record = b"\x16\x03\x01" + size.to_bytes(2) + b"\x01" + (size - 4 if size > 4 else 9).to_bytes(3) + rng.randbytes(size)
    return record if kind == 3 else record[: rng.randrange(1, len(record))]
