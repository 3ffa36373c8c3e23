"""Tiny runs for tests: token shards of random ids and manifests that train in milliseconds a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blake3
import numpy as np
import yaml

VOCAB = 64


def write_shard(path: Path, num_tokens: int = 20_000, vocab: int = VOCAB, seed: int = 0) -> dict[str, Any]:
    """A shard of uint16 ids with some structure to learn; returns its entry in a manifest."""
    rng = np.random.default_rng(seed)
    ids = (np.arange(num_tokens) * 7 + rng.integers(0, 3, num_tokens)) % vocab
    data = ids.astype("<u2").tobytes()
    path.write_bytes(data)
    return {
        "digest": blake3.blake3(data).hexdigest(),
        "num_bytes": len(data),
        "num_tokens": num_tokens,
        "sources": [str(path)],
    }


def tiny(folder: Path, **changes: Any) -> dict[str, Any]:
    """A manifest as a mapping, data written into `folder`. `changes`: dotted keys with `__` for the dot."""
    manifest: dict[str, Any] = {
        "name": "test",
        "model": {
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32,
        },
        "num_block_stages": 2,
        "data": {
            "dtype": "uint16",
            "train": [write_shard(folder / "train.bin")],
            "validation": [write_shard(folder / "validation.bin", 4000, seed=1)],
        },
        "batch": {"microbatch_samples": 2, "global_samples": 8, "context_tokens": 32},
        "optimizer": {"learning_rate": 3e-3},
        "max_steps": 10,
        "recovery": {"policy": "checkfree", "embedding_copies": 2},
        "timing": {"heartbeat_s": 1.0, "linger_s": 1.0},
        "evaluation": {"every_steps": 5, "num_microbatches": 2},
        "local": True,
    }
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = manifest
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return manifest


def write_manifest(folder: Path, **changes: Any) -> Path:
    """`tiny` as RUN.yaml in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(tiny(folder, **changes)))
    return path
