"""Addresses as people and peers write them, checked for syntax only.

Two forms: HOST:PORT (gRPC and HTTP servers) and the multiaddress of a directory peer,
`/ip4/203.0.113.7/tcp/4000/p2p/PEER`. Errors are `ValueError` with one line that quotes the address.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from protocol.ids import PeerId

HostKind = Literal["ip4", "ip6", "dns", "dns4", "dns6"]
MAX_ADDRESS_CHARS = 400
MULTIADDRESS_FORM = "/ip4/HOST/tcp/PORT/p2p/PEER"
_KINDS: tuple[HostKind, ...] = ("ip4", "ip6", "dns", "dns4", "dns6")
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")
_PEER = re.compile(r"[1-9A-HJ-NP-Za-km-z]{44,64}")


@dataclass(frozen=True, slots=True)
class Multiaddress:
    """Where a directory peer listens. `peer` is '' where the address does not tell."""

    kind: HostKind
    host: str
    port: int
    peer: PeerId

    def __str__(self) -> str:
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        return f"/{self.kind}/{self.host}/tcp/{self.port}{suffix}"


def is_peer_id(text: str) -> bool:
    """Whether `text` looks like a libp2p peer id."""
    return _PEER.fullmatch(text) is not None


def parse_multiaddress(text: str) -> Multiaddress:
    """The parts of a multiaddress over TCP; blanks around it are ignored."""
    text = text.strip()
    if not text:
        raise ValueError("the address is empty")
    _check_length(text)
    parts = text.split("/")
    if len(parts) not in (5, 7) or parts[0] or parts[3] != "tcp" or parts[1] not in _KINDS:
        raise ValueError(f"address {text!r} is not of the form {MULTIADDRESS_FORM}")
    peer = ""
    if len(parts) == 7:
        if parts[5] not in ("p2p", "ipfs") or not is_peer_id(parts[6]):
            raise ValueError(f"address {text!r} does not end in /p2p/ and a peer id")
        peer = parts[6]
    kind = next(kind for kind in _KINDS if kind == parts[1])
    return Multiaddress(kind, _host(kind, parts[2], text), _port(parts[4], text), peer)


def parse_host_port(text: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`; an IPv6 host stands in brackets."""
    text = text.strip()
    _check_length(text)
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"address {text!r} is not of the form HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        return _host("ip6", host[1:-1], text), _port(port, text)
    if re.fullmatch(r"[0-9.]+", host):
        return _host("ip4", host, text), _port(port, text)
    return _host("dns", host, text), _port(port, text)


def multiaddress(host: str, port: int, peer: PeerId = "") -> str:
    """The multiaddress of a host (IP or DNS name) and TCP port."""
    try:
        kind: HostKind = "ip4" if ipaddress.ip_address(host).version == 4 else "ip6"
    except ValueError:
        kind = "dns"
    return str(Multiaddress(kind, host, port, peer))


def check_announce(address: str, *, loopback_ok: bool = True) -> None:
    """Raises `ValueError` naming --announce if others could not dial this address (either form)."""
    try:
        if address.strip().startswith("/"):
            parsed = parse_multiaddress(address)
            host, port = parsed.host, parsed.port
        else:
            host, port = parse_host_port(address)
    except ValueError as error:
        raise ValueError(f"--announce: {error}") from None
    if port == 0:
        raise ValueError(f"--announce {address}: port 0 cannot be dialled; name the port that others reach")
    if _is(host, "is_unspecified"):
        raise ValueError(f"--announce {address}: {host} cannot be dialled; name this machine's own address")
    if not loopback_ok and (host == "localhost" or _is(host, "is_loopback")):
        raise ValueError(f"--announce {address}: only this machine reaches {host}; name its public address")


def _is(host: str, property_: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host), property_))
    except ValueError:
        return False


def _check_length(text: str) -> None:
    if len(text) > MAX_ADDRESS_CHARS:
        raise ValueError(f"address {text[:40]!r}... has {len(text)} characters, at most {MAX_ADDRESS_CHARS}")


def _host(kind: HostKind, host: str, text: str) -> str:
    if kind.startswith("dns"):
        if not _DNS_NAME.fullmatch(host):
            raise ValueError(f"address {text!r}: {host!r} is not a host name")
        return host
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        raise ValueError(f"address {text!r}: {host!r} is not an IP address") from None
    if f"ip{version}" != kind:
        raise ValueError(f"address {text!r}: {host} is not an {kind} address")
    return host


def _port(port: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"address {text!r}: port {port[:12]!r} is not a number from 0 to 65535")
    return int(port)
