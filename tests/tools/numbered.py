"""Training text whose documents carry their number, and which of them a run has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import blake3
import numpy as np

from protocol.manifest import Manifest
from protocol.sampling import train_samples

VOCAB = 64
DIGITS = 2
"""Token ids in front of a document that say its number, to the base `VOCAB`."""


def write_documents(path: Path, num_documents: int, context_tokens: int, seed: int = 0) -> dict[str, Any]:
    """A shard of uint16 ids, one document to a training window; returns its entry in a manifest. After its number a document
    is a walk of steps of 7, 8 or 9 through the ids, which can be learned."""
    assert num_documents <= VOCAB**DIGITS, "the number has room in front"
    rng = np.random.default_rng(seed)
    walks = np.cumsum(rng.integers(7, 10, (num_documents, context_tokens)), axis=1) + rng.integers(0, VOCAB, (num_documents, 1))
    ids = walks % VOCAB
    for digit in range(DIGITS):
        ids[:, digit] = np.arange(num_documents) // VOCAB**digit % VOCAB
    flat = np.append(ids.ravel(), 0).astype("<u2")
    data = flat.tobytes()
    path.write_bytes(data)
    return {
        "digest": blake3.blake3(data).hexdigest(),
        "num_bytes": len(data),
        "num_tokens": len(flat),
        "sources": [str(path)],
    }


def documents_of(path: Path, manifest: Manifest, counted: Collection[tuple[int, int]]) -> dict[int, Counter[int]]:
    """By epoch: how often each document was trained on, as its text says, by these (step, microbatch)."""
    ids = np.fromfile(path, dtype="<u2")
    seen: dict[int, Counter[int]] = {}
    for step, microbatch in counted:
        for sample in train_samples(manifest, step, microbatch):
            head = ids[sample.first_token : sample.first_token + DIGITS]
            number = sum(int(each) * VOCAB**digit for digit, each in enumerate(head))
            seen.setdefault(sample.epoch, Counter())[number] += 1
    return seen
