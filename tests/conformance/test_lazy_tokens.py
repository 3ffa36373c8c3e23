"""Token shards that come from peers while the computation already asks for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import blake3
import numpy as np
import pytest

from node.data.files import BlobFiles
from node.data.lazy import GetBlob, LazyTokens
from node.ports import PeerError, UnusableError
from protocol.manifest import Manifest
from protocol.messages import Contact
from tests.tools.core import a_manifest

DATA = (np.arange(2000) % 16).astype("<u2").tobytes()


@pytest.fixture
def manifest() -> Manifest:
    digest = blake3.blake3(DATA).hexdigest()
    return a_manifest(data={"train": [{"digest": digest, "num_bytes": len(DATA), "num_tokens": 2000}]})


def serving(gate: threading.Event) -> GetBlob:
    """A peer at `good` that sends its shard when the gate opens; one at `bad` that has none."""

    async def get(peer: Contact, digest: str, max_bytes: int) -> bytes:
        if peer.address == "bad":
            raise PeerError("", "no such file")
        await asyncio.to_thread(gate.wait)
        return DATA[:max_bytes]

    return get


async def test_a_use_waits_for_what_is_on_its_way(manifest: Manifest, tmp_path: Path) -> None:
    gate = threading.Event()
    tokens = LazyTokens(manifest, BlobFiles(tmp_path))
    async with asyncio.TaskGroup() as group:
        coming = group.create_task(tokens.fetch([Contact("a", "bad"), Contact("b", "good")], serving(gate)))
        await asyncio.sleep(0)
        used = group.create_task(asyncio.to_thread(tokens.microbatch, 1, 0))
        gate.set()
    assert used.result().shape == (manifest.batch.microbatch_samples, manifest.batch.context_tokens + 1)
    assert [text.split()[0] for text in coming.result()] == ["bad"]


async def test_a_use_before_the_fetch_has_begun_waits_too(manifest: Manifest, tmp_path: Path) -> None:
    """As when the first microbatch comes while the directory is still asked who is there."""
    gate = threading.Event()
    gate.set()
    tokens = LazyTokens(manifest, BlobFiles(tmp_path))
    tokens.expect()
    async with asyncio.TaskGroup() as group:
        used = group.create_task(asyncio.to_thread(tokens.microbatch, 1, 0))
        done, _ = await asyncio.wait({used}, timeout=0.2)
        assert not done, "it did not wait"
        await tokens.fetch([Contact("b", "good")], serving(gate))
    assert len(used.result()) == manifest.batch.microbatch_samples


def test_nobody_has_it(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="is missing"):
        LazyTokens(manifest, BlobFiles(tmp_path)).microbatch(1, 0)
