"""Saved stages for tests; as a program (DIRECTORY STEP) it saves one stage after another until it is killed, or (--full
DIRECTORY) a small one and one that a small disk has no room for."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from blake3 import blake3

from node.checkpoints.form import Saved
from node.checkpoints.places import DirectoryPlace, PlaceError
from node.checkpoints.store import CheckpointStore
from protocol.ids import hash_of

PARAMETERS = [("layers.0.weight", (5, 7)), ("layers.0.bias", (7,)), ("norm.weight", (1,))]
NUM_ELEMENTS = 43
LARGE = [("layers.0.weight", (1 << 18,))]


def a_stage(stage: int, step: int, record: str = "", num_elements: int = NUM_ELEMENTS) -> tuple[Saved, bytearray]:
    """What a stage of run `run` might be after the step, and its state."""
    data = bytearray(random.Random(f"{stage} {step} {record}").randbytes(12 * num_elements))
    digest = blake3(data).update(step.to_bytes(8, "little")).hexdigest()
    record = record or hash_of(step)
    return Saved("run", stage, step, hash_of([stage, record]), record, digest, step, 1.1, num_elements), data


def _save_on(directory: Path, step: int) -> None:
    store = CheckpointStore(DirectoryPlace(directory), "run", chunk_bytes=1 << 16)
    while True:
        saved, data = a_stage(0, step, num_elements=1 << 18)
        store.save(saved, LARGE, memoryview(data))
        store.prune(0, 1, lambda _: True)
        print(step, flush=True)
        step += 1


def _save_too_much(directory: Path) -> None:
    """Prints why the second one is not saved, and what is left."""
    store = CheckpointStore(DirectoryPlace(directory), "run")
    for step, num_elements in ((1, 1 << 16), (2, 1 << 18)):
        saved, data = a_stage(0, step, num_elements=num_elements)
        try:
            store.save(saved, [("w", (num_elements,))], memoryview(data))
        except PlaceError as error:
            print(error)
    [whole] = store.survey()
    store.load(0, whole.state_id)
    print("\n".join(sorted(os.listdir(directory))))


if __name__ == "__main__" and sys.argv[1] == "--full":
    _save_too_much(Path(sys.argv[2]))
elif __name__ == "__main__":
    _save_on(Path(sys.argv[1]), int(sys.argv[2]))
