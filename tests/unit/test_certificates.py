"""A certificate is its key: the peer id comes from there, and anything that is no node's is told from it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from node.certificates import papers_of, peer_of_pem, pinned, stamp
from node.identity import peer_id_of


@cache
def key(number: int, bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def self_signed(signer: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    name, now = x509.Name([]), datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, signer.public_key(), 1)
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)


def test_both_certificates_are_the_identitys() -> None:
    papers, peer = papers_of(key(0)), peer_id_of(key(0).public_key())
    assert peer_of_pem(papers.server) == peer_of_pem(papers.client) == peer
    assert pinned(der(papers.server), peer) == papers.server


def test_the_server_certificate_is_the_same_at_every_start() -> None:
    assert papers_of(key(0)).server == papers_of(key(0)).server
    assert papers_of(key(0)).server != papers_of(key(1)).server


def test_the_stamp_is_the_same_everywhere_and_of_no_peer() -> None:
    issuer = x509.load_pem_x509_certificate(stamp())
    x509.load_pem_x509_certificate(papers_of(key(0)).client).verify_directly_issued_by(issuer)
    with pytest.raises(ValueError, match="not RSA"):
        peer_of_pem(stamp())


def test_another_peers_certificate_is_not_pinned() -> None:
    assert pinned(der(papers_of(key(1)).server), peer_id_of(key(0).public_key())) is None


@pytest.mark.parametrize("signer", [ec.generate_private_key(ec.SECP256R1()), key(2, 1024), key(3, 4160)])
def test_keys_that_are_no_nodes(signer: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    with pytest.raises(ValueError, match="not RSA of 2048 to 4096 bits"):
        peer_of_pem(self_signed(signer))


def test_mutilated_certificates_are_refused_and_nothing_else(seed: int) -> None:
    """A stranger's bytes give a peer, or a `ValueError`; no other exception, no warning."""
    rng, whole, peer = Random(seed), der(papers_of(key(0)).server), peer_id_of(key(0).public_key())
    outcomes = set()
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            outcomes.add(pinned(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]), peer) is not None)
        except ValueError:
            outcomes.add(None)
    assert {None, False} <= outcomes
    with pytest.raises(ValueError, match="5000 bytes"):
        pinned(bytes(5000), peer)
