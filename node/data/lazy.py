"""Token shards of a node that may never need them: opened at the first use, brought from peers where no path has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable

from node.data.files import BlobFiles
from node.data.remote import SourceError, is_url
from node.data.store import Tokens, TokenStore, open_token_store
from node.ports import PeerError
from protocol.manifest import Manifest, TokenShard
from protocol.messages import Contact

GetBlob = Callable[[Contact, str, int], Awaitable[bytes]]
"""(peer, digest, most bytes) -> the verified file with this digest. Raises `PeerError`."""


class LazyTokens:
    """A `TokenSource`. Raises `UnusableError` at the first use where the data are not usable.

    While shards are expected from peers (`expect`, then `fetch`), a use waits for them: it is made on the computation's thread.
    """

    def __init__(self, manifest: Manifest, blobs: BlobFiles) -> None:
        self._manifest, self._blobs = manifest, blobs
        self._store: TokenStore | None = None
        self._here = threading.Event()
        self._here.set()
        self._is_complete = False

    def open(self) -> TokenStore:
        """Find and check all shards now."""
        if self._store is None:
            self._here.wait(self._manifest.timing.first_microbatch_s)
            self._store = open_token_store(self._manifest, self._blobs)
        return self._store

    def expect(self) -> None:
        """A `fetch` follows: the first use may come before it has begun. Once a fetch found all nothing is expected any more: a
        node that is given stage 0 again fetches nothing, and its computation would wait for it in vain."""
        if not self._is_complete:
            self._here.clear()

    def expect_no_more(self) -> None:
        """Nobody brings shards now: a use fails where one is missing."""
        self._here.set()

    async def fetch(self, peers: Iterable[Contact], get: GetBlob) -> list[str]:
        """Bring what no local path has from these peers. Returns a sentence for each shard that is still missing; only without
        any does a use that waits go on."""
        self.expect()
        failures = await bring_shards(self._manifest, self._blobs, peers, get)
        if not failures:
            self._is_complete = True
            self.expect_no_more()
        return failures

    def microbatch(self, step: int, microbatch: int) -> Tokens:
        """See `TokenStore`."""
        return self.open().microbatch(step, microbatch)

    def validation(self, microbatch: int) -> Tokens:
        """See `TokenStore`."""
        return self.open().validation(microbatch)


async def bring_shards(manifest: Manifest, blobs: BlobFiles, peers: Iterable[Contact], get: GetBlob) -> list[str]:
    """Fetch shards that no local path has from any of these peers, checked by digest; the first one asked differs from shard
    to shard. Returns a sentence for each shard that nobody gave and no URL names."""
    failures, donors = [], list(peers)
    for shard in await asyncio.to_thread(blobs.missing, manifest):
        start = int(shard.digest[:8], 16) % max(1, len(donors))
        reason = await _bring(shard, blobs, donors[start:] + donors[:start], get)
        if reason and not any(is_url(source) for source in shard.sources):
            failures.append(reason)
    return failures


async def _bring(shard: TokenShard, blobs: BlobFiles, donors: Iterable[Contact], get: GetBlob) -> str:
    """From the first donor that gives it; '' or what the last one said."""
    reason = f"nobody is known who has token shard {shard.digest[:16]}"
    for donor in donors:
        try:
            data = await get(donor, shard.digest, shard.num_bytes)
            with blobs.writer(shard) as out:
                out.write(data)
                out.commit()
        except (PeerError, SourceError) as error:
            reason = f"{donor.address} does not give token shard {shard.digest[:16]}: {error}"
            continue
        return ""
    return reason
