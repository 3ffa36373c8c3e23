"""Settings of a node's directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from node.directory.daemon import BAD_USE
from node.identity import Identity
from node.leases import MAX_STAGES
from node.ports import Lease, UnusableError
from protocol.addresses import Multiaddress, check_announce, parse_multiaddress


@dataclass(frozen=True, slots=True)
class DirectoryConfig:
    """What a node needs to take part. Addresses are multiaddresses over TCP."""

    run_digest: str
    """Digest of the manifest: each run has its own records."""
    identity: Identity
    runtime_dir: Path
    """Where p2pd's control socket lies (the state directory)."""
    listen: str = "/ip4/127.0.0.1/tcp/0"
    announce: tuple[str, ...] = ()
    """How others reach this node, where that is not where it listens."""
    initial_peers: tuple[str, ...] = ()
    """Peers that are in already, with /p2p/PEER; empty for the first one."""
    announce_host: str = ""
    """Where others reach the port that this node listens on; '' = `announce`, else at its interfaces."""
    known_peers: tuple[str, ...] = ()
    """Peers of an earlier life, newest first: tried too, but entering does not depend on them."""
    quiet: bool = False
    """Not to be dialled, and announced nowhere, until `announce` is called."""
    num_stages: int = MAX_STAGES
    """Stages of the run incl. the embedding stage; the default works before the manifest is known, and is slower."""
    start_timeout_s: float = 90.0
    bootstrap_timeout_s: float = 90.0
    call_timeout_s: float = 10.0
    on_daemon_death: Callable[[str], None] | None = None
    """Told when p2pd dies by itself; it is restarted all the same."""
    on_leases: Callable[[list[Lease]], list[Lease]] = lambda leases: leases
    """Judges the leases that each call of `leases` found; what it returns is returned."""
    ticket: str = ""
    """Shown in every lease that is published."""
    wall: Callable[[], float] = time.time


def checked_listen(text: str) -> Multiaddress:
    """An IP address and port of this machine. Raises `UnusableError(2)`."""
    try:
        address = parse_multiaddress(text)
    except ValueError as error:
        raise UnusableError(BAD_USE, f"the directory cannot listen: {error}") from None
    if address.peer or address.kind not in ("ip4", "ip6"):
        raise UnusableError(BAD_USE, f"the directory cannot listen on {text!r}: give an IP address and a port")
    return address


def checked_announce(text: str) -> Multiaddress:
    """Where others can dial. Raises `UnusableError(2)`."""
    try:
        check_announce(text)
        address = parse_multiaddress(text)
    except ValueError as error:
        raise UnusableError(BAD_USE, str(error)) from None
    return replace(address, peer="")
