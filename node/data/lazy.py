"""Token shards of a node that may never need them: opened at the first use, brought from peers where no path has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable

from node.data.files import BlobFiles
from node.data.remote import SourceError
from node.data.store import Tokens, TokenStore, open_token_store
from node.ports import PeerError
from protocol.manifest import Manifest
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

    def open(self) -> TokenStore:
        """Find and check all shards now."""
        if self._store is None:
            self._here.wait(self._manifest.timing.first_microbatch_s)
            self._store = open_token_store(self._manifest, self._blobs)
        return self._store

    def expect(self) -> None:
        """A `fetch` follows: the first use may come before it has begun."""
        self._here.clear()

    async def fetch(self, peers: Iterable[Contact], get: GetBlob) -> list[str]:
        """Bring what no local path has from these peers. Returns a sentence for each failure."""
        self.expect()
        try:
            return await bring_shards(self._manifest, self._blobs, peers, get)
        finally:
            self._here.set()

    def microbatch(self, step: int, microbatch: int) -> Tokens:
        """See `TokenStore`."""
        return self.open().microbatch(step, microbatch)

    def validation(self, microbatch: int) -> Tokens:
        """See `TokenStore`."""
        return self.open().validation(microbatch)


async def bring_shards(manifest: Manifest, blobs: BlobFiles, peers: Iterable[Contact], get: GetBlob) -> list[str]:
    """Fetch shards that no local path has from any of these peers, checked by digest.

    Returns a sentence for each failure; what is missing in the end is told when the store is opened.
    """
    failures, donors = [], list(peers)
    for shard in await asyncio.to_thread(blobs.missing, manifest):
        for donor in donors:
            try:
                data = await get(donor, shard.digest, shard.num_bytes)
                with blobs.writer(shard) as out:
                    out.write(data)
                    out.commit()
            except (PeerError, SourceError) as error:
                failures.append(f"{donor.address} does not give token shard {shard.digest[:16]}: {error}")
                continue
            break
    return failures
