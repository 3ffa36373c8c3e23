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
from protocol.manifest import DataSection, Manifest
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
    assert coming.result() == [], "what one donor lacks another has"


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


async def test_what_was_found_once_is_not_waited_for_again(manifest: Manifest, tmp_path: Path) -> None:
    """As at a copy of stage 0 that was given up, is made again, and computes only then."""
    gate = threading.Event()
    gate.set()
    tokens = LazyTokens(manifest, BlobFiles(tmp_path))
    tokens.expect()
    assert await tokens.fetch([Contact("b", "good")], serving(gate)) == []
    tokens.expect()
    async with asyncio.timeout(10):
        used = await asyncio.to_thread(tokens.microbatch, 1, 0)
    assert len(used) == manifest.batch.microbatch_samples


async def test_a_use_waits_until_somebody_has_it(manifest: Manifest, tmp_path: Path) -> None:
    gate = threading.Event()
    gate.set()
    tokens = LazyTokens(manifest, BlobFiles(tmp_path))
    tokens.expect()
    async with asyncio.TaskGroup() as group:
        used = group.create_task(asyncio.to_thread(tokens.microbatch, 1, 0))
        assert ["nobody is known" in text for text in await tokens.fetch([], serving(gate))] == [True]
        [text] = await tokens.fetch([Contact("a", "bad")], serving(gate))
        assert text.startswith("bad does not give token shard ")
        assert not used.done()
        assert await tokens.fetch([Contact("a", "bad"), Contact("b", "good")], serving(gate)) == []
    assert len(used.result()) == manifest.batch.microbatch_samples


async def test_a_shard_that_a_url_names_is_not_waited_for(manifest: Manifest, tmp_path: Path) -> None:
    data = manifest.data.model_dump()
    data["train"][0]["sources"] = ["https://example.org/shard"]
    named = manifest.model_copy(update={"data": DataSection.model_validate(data)})
    assert await LazyTokens(named, BlobFiles(tmp_path)).fetch([], serving(threading.Event())) == []


def test_the_first_donor_differs_from_shard_to_shard(tmp_path: Path) -> None:
    parts = [(np.arange(1000 + i) % 16).astype("<u2").tobytes() for i in range(12)]
    digests = {blake3.blake3(part).hexdigest(): part for part in parts}
    train = [{"digest": d, "num_bytes": len(p), "num_tokens": len(p) // 2} for d, p in digests.items()]
    asked: list[str] = []

    async def get(peer: Contact, digest: str, _: int) -> bytes:
        asked.append(peer.peer)
        return digests[digest]

    tokens = LazyTokens(a_manifest(data={"train": train}), BlobFiles(tmp_path))
    assert asyncio.run(tokens.fetch([Contact(name, name) for name in "abc"], get)) == []
    assert set(asked) == set("abc")
    assert len(asked) == 12


def test_nobody_has_it(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="is missing"):
        LazyTokens(manifest, BlobFiles(tmp_path)).microbatch(1, 0)
