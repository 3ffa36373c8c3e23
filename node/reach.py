"""At which address of this machine others reach it, where it listens on all of them."""

from __future__ import annotations

import ipaddress
import socket

from protocol.addresses import parse_host_port, parse_multiaddress

SOMEWHERE = "192.0.2.1"
"""A documentation address: asking for the way there sends nothing."""
LOOPBACK = "127.0.0.1"


def announced(bound: str, towards: tuple[str, ...]) -> str:
    """HOST:PORT to announce for a socket bound to `bound`: itself, unless it is bound to all interfaces; then the address of
    the interface on the way to the first of the multiaddresses `towards` (else to the outside; else loopback)."""
    host, port = parse_host_port(bound)
    if not ipaddress.ip_address(host).is_unspecified:
        return bound
    targets = [parse_multiaddress(text).host for text in towards] or [SOMEWHERE]
    mine = next(filter(None, map(_source_address, targets)), LOOPBACK)
    return f"[{mine}]:{port}" if ":" in mine else f"{mine}:{port}"


def _source_address(target: str) -> str | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return None
