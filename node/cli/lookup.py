"""Finding the nodes of a run from outside: a short visit to its directory, then a question to each over HTTP."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from node import http_client
from node.ports import Lease, UnusableError
from protocol.invite import Invite, parse

ENTER_TIMEOUT_S = 20.0
ASK_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Found:
    """One node. `status` is None where it does not answer; `lease` is what it claims, {} where nobody asked for it."""

    http: str
    status: dict[str, Any] | None
    lease: dict[str, Any] = field(default_factory=dict)


def find_nodes(token: str) -> list[Found]:
    """All nodes that the invite's run has in its directory. Raises `UnusableError(3)` if it cannot be entered."""
    leases = asyncio.run(_leases(parse(token)))
    if not leases:
        raise UnusableError(3, "nobody claims to be in the run now; ask its organiser")
    return _ask_all(leases)


async def _leases(invite: Invite) -> list[Lease]:
    from node.directory import DirectoryConfig, HivemindDirectory
    from node.identity import load_or_create

    with tempfile.TemporaryDirectory(prefix="regrow-look-") as folder:
        config = DirectoryConfig(
            run_digest=invite.manifest_digest,
            identity=load_or_create(Path(folder)),
            runtime_dir=Path(folder),
            quiet=True,  # a visitor asks; nobody has to reach it
            initial_peers=invite.addresses,
            bootstrap_timeout_s=ENTER_TIMEOUT_S,
        )
        async with asyncio.TaskGroup() as tasks:
            directory = await HivemindDirectory.start(config, tasks)
            try:
                return [lease for lease in await directory.leases() if not lease.leaving]
            finally:
                await directory.close()


def _ask_all(leases: Sequence[Lease]) -> list[Found]:
    with ThreadPoolExecutor(ASK_AT_ONCE) as pool:
        return list(pool.map(_ask, leases))


def _ask(lease: Lease) -> Found:
    claim = asdict(lease)
    try:
        return Found(lease.http, http_client.status(lease.http) if lease.http else None, claim)
    except UnusableError:
        return Found(lease.http, None, claim)
