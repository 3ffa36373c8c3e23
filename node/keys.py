"""The organiser's Ed25519 key: signs the manifest when a run is started, and orders and tickets while it runs.

Public keys and signatures travel as hex. Errors with the key file are `UnusableError(2)`, one line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from node.private_file import broken, create_private, read_private
from protocol.ids import PeerId
from protocol.messages import Order
from protocol.orders import Verify, signed_bytes
from protocol.tickets import Ticket, encode, proof_bytes

WHAT = "organiser's key"
_MANIFEST = b"regrow manifest\n"


@dataclass(frozen=True, slots=True)
class OrganiserKey:
    """`public` is what stands in the manifest and in invites."""

    path: Path
    public: str
    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def create(cls, path: Path) -> OrganiserKey:
        """A new key in a new file (PEM, mode 0600)."""
        key = Ed25519PrivateKey.generate()
        create_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), WHAT)
        return cls(path, _public_hex(key), key)

    @classmethod
    def load(cls, path: Path) -> OrganiserKey:
        """The key in the file."""
        data = read_private(path, WHAT)
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise broken(path, WHAT, "is truncated or no PEM key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise broken(path, WHAT, "holds another kind of key than Ed25519")
        return cls(path, _public_hex(key), key)

    def sign(self, data: bytes) -> str:
        """Signature of `data`, hex."""
        return self._key.sign(data).hex()


def verify(public: str, data: bytes, signature: str) -> bool:
    """Whether the owner of `public` signed `data`; False for anything malformed too."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), data)
    except (ValueError, InvalidSignature):
        return False
    return True


def sign_manifest(key: OrganiserKey, manifest: bytes) -> str:
    """Signature of a manifest's canonical bytes."""
    return key.sign(_MANIFEST + manifest)


def verify_manifest(public: str, manifest: bytes, signature: str) -> bool:
    """Whether the organiser signed these canonical bytes."""
    return verify(public, _MANIFEST + manifest, signature)


def sign_order(key: OrganiserKey, run_id: str, action: Literal["pause", "resume", "stop"], serial: int) -> Order:
    """A signed order; `serial` must exceed that of every earlier order of the run."""
    return Order(action, serial, key.sign(signed_bytes(run_id, action, serial)))


def order_verifier(public: str) -> Verify:
    """The callable that `protocol.orders.refusal` asks."""
    return lambda data, signature: verify(public, data, signature)


def sign_ticket(key: OrganiserKey, run_id: str, peer: PeerId, serial: int, expires: int) -> str:
    """A ticket for a peer, as text."""
    return encode("ticket", _signed(key, Ticket(run_id, peer, "", serial, expires)))


def sign_bearer_ticket(key: OrganiserKey, run_id: str, serial: int, expires: int) -> str:
    """A ticket for whoever has this text, which holds a new private key."""
    bearer = Ed25519PrivateKey.generate()
    ticket = _signed(key, Ticket(run_id, "", _public_hex(bearer), serial, expires))
    return encode("ticket", ticket, bearer.private_bytes_raw().hex())


def proof_of(secret: str, run_id: str, peer: PeerId) -> str:
    """The bearer's signature for the peer that shows the ticket; `secret` is 64 hex digits."""
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).sign(proof_bytes(run_id, peer)).hex()


def _signed(key: OrganiserKey, ticket: Ticket) -> Ticket:
    return replace(ticket, signature=key.sign(ticket.signed_bytes()))


def _public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()
