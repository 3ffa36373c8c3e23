"""Token shards from peers, until they are here: donors differ from shard to shard, and those that are busy are asked again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from node.data.lazy import LazyTokens
from node.ports import Clock, Lease
from node.screen import Screen
from node.transport.fetch import Asker
from protocol.messages import Contact

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 30.0
log = logging.getLogger(__name__)

ReadLeases = Callable[[], Awaitable[list[Lease]]]


class ShardBringer:
    """One per node."""

    def __init__(self, tokens: LazyTokens, asker: Asker, clock: Clock, screen: Screen) -> None:
        self._tokens, self._asker, self._clock, self._screen = tokens, asker, clock, screen

    async def bring(self, leases: ReadLeases) -> None:
        """Call `expect` first. Returns when no shard is missing that only peers can give; until then each use waits."""
        try:
            await self._until_here(leases)
        finally:
            self._tokens.expect_no_more()

    async def _until_here(self, leases: ReadLeases) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            peers = [Contact(lease.peer, lease.address) for lease in await leases() if not lease.leaving]
            failures = await self._tokens.fetch(peers, self._get)
            if not failures:
                return
            for failure in failures:
                log.info("%s", failure)
            self._screen.say(f"waiting for token shards: {failures[-1]}")
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _get(self, peer: Contact, digest: str, max_bytes: int) -> bytes:
        what = f"token shard {digest[:8]}"
        try:
            return await self._asker.blob(peer, digest, max_bytes, lambda done, total: self._screen.transfer(what, done, total))
        finally:
            self._screen.transfer(what, max_bytes, max_bytes)
