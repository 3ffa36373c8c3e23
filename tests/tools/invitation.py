"""Invites to a node that does not run yet: its identity and the organiser's key are made first."""

from __future__ import annotations

import socket
from pathlib import Path

from node.compose import ORGANISER_FILE
from node.identity import load_or_create
from node.keys import OrganiserKey
from node.manifest_file import load
from protocol.addresses import multiaddress
from protocol.invite import Invite, mint
from protocol.manifest import from_mapping

STRANGER = "QmWk4D3inzEH9vrPWamP7Em63XkB36wmQEyRn9JJL2mHN2"
"""A peer id that no test node has."""


def invitation(manifest: Path, state_dir: Path, host: str, port: int, *before: str) -> str:
    """To the node that will start this manifest in this state directory, its DHT there. `before`: other addresses, first."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    peer, key = load_or_create(state_dir).peer, OrganiserKey.create(state_dir / ORGANISER_FILE)
    run = from_mapping(load(manifest).model_dump() | {"organiser": key.public})
    return mint(Invite((*before, multiaddress(host, port, peer)), run.digest, run.name, run.organiser))


def dead_address(host: str = "127.0.0.1") -> str:
    """Of a peer at a port where nobody listens."""
    return multiaddress(host, unused_port(host), STRANGER)


def unused_port(host: str = "127.0.0.1") -> int:
    """A TCP port where nobody listens now."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        port: int = server.getsockname()[1]
        return port
