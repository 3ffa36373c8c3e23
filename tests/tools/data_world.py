"""Shards of random ids in a folder, a cache beside it, and a manifest that names them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest

from node.data.files import BlobFiles
from node.data.store import TokenStore, open_token_store
from node.ports import UnusableError
from protocol.manifest import Manifest, TokenShard

VOCAB = 64
Ids = np.ndarray[Any, np.dtype[np.uint16]]


def random_ids(count: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, VOCAB - 1, count, dtype=np.uint16)


@dataclass
class World:
    """A folder with shards a (700 tokens), b (301) and v (100, held out), and a cache beside it."""

    root: Path
    parts: dict[str, Ids] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "data").mkdir()
        for seed, (name, count) in enumerate({"a": 700, "b": 301, "v": 100}.items()):
            self.parts[name] = random_ids(count, seed)
            self.parts[name].tofile(self.path(name))

    def path(self, name: str) -> Path:
        return self.root / "data" / f"{name}.tokens"

    def shard(self, name: str) -> TokenShard:
        data = self.parts[name].tobytes()
        return TokenShard(
            digest=blake3.blake3(data).hexdigest(),
            num_bytes=len(data),
            num_tokens=len(data) // 2,
            sources=(f"data/{name}.tokens",),
        )

    def manifest(self, **changed: Any) -> Manifest:
        data = {"train": [self.shard("a"), self.shard("b")], "validation": [self.shard("v")]}
        sections: dict[str, Any] = {
            "name": "test",
            "model": {
                "vocab_size": VOCAB,
                "hidden_size": 8,
                "intermediate_size": 16,
                "num_hidden_layers": 4,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "max_position_embeddings": 16,
            },
            "num_block_stages": 4,
            "data": data,
            "batch": {"microbatch_samples": 3, "global_samples": 12, "context_tokens": 16},
            "optimizer": {"learning_rate": 0.001},
            "max_steps": 10,
        }
        return Manifest.model_validate(sections | changed)

    def blobs(self) -> BlobFiles:
        return BlobFiles(self.root / "cache", (self.root,))

    def open(self, **changed: Any) -> TokenStore:
        return open_token_store(self.manifest(**changed), self.blobs())

    def refusal(self, **changed: Any) -> str:
        with pytest.raises(UnusableError) as caught:
            self.open(**changed)
        assert caught.value.code == 2
        assert "\n" not in str(caught.value)
        return str(caught.value)
