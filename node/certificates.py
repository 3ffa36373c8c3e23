"""X.509 certificates of a node, made in memory from its identity key: who completes a handshake with one proves that peer id.

Both certificates hold the identity's own public key, whose hash is the peer id; no name in them is believed.

* The *server certificate* is signed by the key itself and the same bytes at every start, so that a dialer can pin it.
* The *client certificate* is signed by the *stamp*, an issuer whose private key is public on purpose: it is derived from a
  constant, and anybody can sign with it. gRPC's server takes client certificates only of an issuer that it knows; the stamp is
  that issuer and proves nothing. What counts is the key that the handshake proves, and that is judged by us (`peer_of`).
  A dialer never trusts the stamp: else everybody could pose as any server.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID

from node.identity import KEY_BITS, peer_id_of
from protocol.ids import PeerId

SERVER_NAME = "node.regrow"
"""What every server certificate is called, and asked for as: who it is, its key says."""
STAMP_NAME = "regrow stamp (proves nothing)"
MAX_KEY_BITS = 4096
MAX_CERTIFICATE_BYTES = 4096
_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""Always valid: how long a peer is welcome, its lease says."""


@dataclass(frozen=True, slots=True)
class Papers:
    """What a node shows in handshakes, all PEM. `key` is the private key."""

    key: bytes
    server: bytes
    client: bytes


def papers_of(key: rsa.RSAPrivateKey) -> Papers:
    """The node's certificates; the same at every call but for the client certificate's signature."""
    public, name = key.public_key(), _name(peer_id_of(key.public_key()))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server = _certificate(public, name, name, key)
    return Papers(pem, server, _certificate(public, name, _name(STAMP_NAME), _stamp_key()))


@cache
def stamp() -> bytes:
    """The issuer of all client certificates, PEM."""
    name = _name(STAMP_NAME)
    return _certificate(_stamp_key().public_key(), name, name, _stamp_key(), is_issuer=True)


def peer_of(certificate: x509.Certificate) -> PeerId:
    """The peer whose key is in the certificate. Raises `ValueError` where that key can be no node's."""
    with _strangers_data():
        key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or not KEY_BITS <= key.key_size <= MAX_KEY_BITS:
        raise ValueError(f"a certificate whose key is not RSA of {KEY_BITS} to {MAX_KEY_BITS} bits")
    return peer_id_of(key)


def peer_of_pem(pem: bytes) -> PeerId:
    """The same for the certificate that gRPC says was proven. Raises `ValueError`."""
    with _strangers_data():
        certificate = x509.load_pem_x509_certificate(pem)
    return peer_of(certificate)


def pinned(der: bytes, peer: PeerId) -> bytes | None:
    """The certificate as PEM if its key is that of `peer`, else None. Raises `ValueError` for anything that is none of ours."""
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise ValueError(f"a certificate of {len(der)} bytes")
    with _strangers_data():
        certificate = x509.load_der_x509_certificate(der)
    return certificate.public_bytes(Encoding.PEM) if peer_of(certificate) == peer else None


@contextmanager
def _strangers_data() -> Iterator[None]:
    """Whatever the library has against what it parses is a `ValueError`, its warnings included."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CryptographyDeprecationWarning)
        try:
            yield
        except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion, CryptographyDeprecationWarning):
            raise ValueError("no certificate of ours") from None


@cache
def _stamp_key() -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(hashlib.sha256(STAMP_NAME.encode()).digest()), ec.SECP256R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
    subject: x509.Name,
    issuer: x509.Name,
    signer: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    is_issuer: bool = False,
) -> bytes:
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key).serial_number(1)
    builder = builder.not_valid_before(_BEGIN).not_valid_after(_END)
    builder = builder.add_extension(x509.BasicConstraints(ca=is_issuer, path_length=0 if is_issuer else None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)
