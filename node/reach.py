"""At which address of this machine others reach it, where it listens on all of them; and which addresses stay at home."""

from __future__ import annotations

import ipaddress
import socket

from protocol.addresses import parse_host_port, parse_multiaddress

SOMEWHERE = ("192.0.2.1", "2001:db8::1")
"""Documentation addresses: asking for the way there sends nothing."""


def announced(bound: str, towards: tuple[str, ...]) -> str:
    """HOST:PORT to announce for a socket bound to `bound`: itself, unless it is bound to all interfaces; then the address of
    the interface, of the same IP version, on the way to the first of the multiaddresses `towards` (else to the outside; else
    loopback)."""
    host, port = parse_host_port(bound)
    if not _is_unspecified(host):
        return bound
    loopback, family = ("::1", socket.AF_INET6) if ":" in host else ("127.0.0.1", socket.AF_INET)
    targets = [*(parse_multiaddress(text).host for text in towards), *SOMEWHERE]
    found = (_source_address(target, family) for target in targets)
    return joined(next(filter(None, found), loopback), port)


def is_private(host: str) -> bool:
    """Whether only some network of its own knows this host: loopback, RFC 1918, link-local, carriers' NAT, unique local IPv6,
    and what leads nowhere. Names are taken for public, but `localhost` and bare or `.local` ones."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        name = host.lower().rstrip(".")
        return "." not in name or name.endswith((".local", ".localhost", ".internal", ".lan"))
    mapped = address.ipv4_mapped if address.version == 6 else None
    return not (mapped or address).is_global


def is_mine(host: str) -> bool:
    """Whether this IP address is one of this machine's own."""
    return _source_address(host, socket.AF_INET6 if ":" in host else socket.AF_INET) == host


def joined(host: str, port: int) -> str:
    """HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """The host of HOST:PORT or of a multiaddress."""
    return parse_multiaddress(address).host if address.startswith("/") else parse_host_port(address)[0]


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _source_address(target: str, family: socket.AddressFamily) -> str | None:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None
