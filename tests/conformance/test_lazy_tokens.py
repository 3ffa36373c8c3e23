"""Token shards that come from peers while the computation already asks for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest

from node.data.files import BlobFiles
from node.data.lazy import LazyTokens
from node.ports import PeerError, UnusableError
from node.transport import fetch
from protocol.manifest import Manifest
from tests.tools.core import a_manifest

DATA = (np.arange(2000) % 16).astype("<u2").tobytes()


@pytest.fixture
def manifest() -> Manifest:
    digest = blake3.blake3(DATA).hexdigest()
    return a_manifest(data={"train": [{"digest": digest, "num_bytes": len(DATA), "num_tokens": 2000}]})


def serving(monkeypatch: pytest.MonkeyPatch, gate: threading.Event) -> None:
    """A peer at `good` that sends its shard when the gate opens; one at `bad` that has none."""

    async def fetch_blob(address: str, digest: str, max_bytes: int, *_: Any) -> bytes:
        if address == "bad":
            raise PeerError("", "no such file")
        await asyncio.to_thread(gate.wait)
        return DATA[:max_bytes]

    monkeypatch.setattr(fetch, "fetch_blob", fetch_blob)


async def test_a_use_waits_for_what_is_on_its_way(manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    serving(monkeypatch, gate)
    tokens = LazyTokens(manifest, BlobFiles(tmp_path))
    async with asyncio.TaskGroup() as group:
        coming = group.create_task(tokens.fetch(["bad", "good"]))
        await asyncio.sleep(0)
        used = group.create_task(asyncio.to_thread(tokens.microbatch, 1, 0))
        gate.set()
    assert used.result().shape == (manifest.batch.microbatch_samples, manifest.batch.context_tokens + 1)
    assert [text.split()[0] for text in coming.result()] == ["bad"]


def test_nobody_has_it(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="is missing"):
        LazyTokens(manifest, BlobFiles(tmp_path)).microbatch(1, 0)
