"""Which chunk of a stage's shadow is as of which step, and which one is to be fetched next.

A shadow is kept chunk by chunk while the stage trains on, so its chunks are of different steps. What is restored of it may mix
chunks of at most `every` steps: each is fetched again well before it lags so far behind the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.records import Shadow

KEPT_IN_HAND = 4
"""A chunk is due a part of `every`, one in so many, before it may be too old: for a link that is slower for a while."""


def refresh_steps(every: int) -> int:
    """After so many steps a chunk is fetched again."""
    return max(1, every - -(-every // KEPT_IN_HAND))


def is_close_enough(oldest: int, newest: int, now: int, every: int) -> bool:
    """May a stage at step `now` be restored of chunks of these steps? At most `every` apart, and none older than twice that."""
    return 0 <= newest - oldest <= every and newest <= now and now - oldest <= 2 * every


@dataclass(slots=True)
class Chunk:
    """Elements first .. first + count of the stage. `step` None: it never came."""

    first: int
    count: int
    step: int | None = None
    age: int = 0
    """The optimizer's."""


@dataclass(slots=True)
class Ledger:
    """Of one generation of one stage. Changed by `settle` alone."""

    num_elements: int
    chunk_elements: int
    every: int
    generation: int
    lr_factor: float = 1.0
    """Of the newest chunk."""
    chunks: list[Chunk] = field(init=False)

    def __post_init__(self) -> None:
        firsts = range(0, self.num_elements, self.chunk_elements)
        self.chunks = [Chunk(first, min(self.chunk_elements, self.num_elements - first)) for first in firsts]

    def next(self, now: int) -> Chunk | None:
        """What to fetch at step `now`: what never came, else the oldest one that is due; None: nothing is."""
        missing = next((chunk for chunk in self.chunks if chunk.step is None), None)
        if missing:
            return missing
        oldest = min(self.chunks, key=_step_of)
        return oldest if now - _step_of(oldest) >= refresh_steps(self.every) else None

    def settle(self, chunk: Chunk, step: int, age: int, lr_factor: float) -> None:
        """The chunk has come, as of this step. Nothing becomes older by it."""
        if chunk.step is None or step >= chunk.step:
            if step >= self.newest:
                self.lr_factor = lr_factor
            chunk.step, chunk.age = step, age

    @property
    def is_whole(self) -> bool:
        """Has every chunk come?"""
        return all(chunk.step is not None for chunk in self.chunks)

    @property
    def oldest(self) -> int:
        """Step of the oldest chunk; -1 while one is missing."""
        return min(map(_step_of, self.chunks))

    @property
    def newest(self) -> int:
        """Step of the newest chunk; -1 without any."""
        return max(map(_step_of, self.chunks))

    @property
    def age(self) -> int:
        """Of the optimizer, as the chunk trusts its moments least that had fewest updates."""
        return min(chunk.age for chunk in self.chunks)

    def covering(self, first: int, count: int) -> Sequence[Chunk]:
        """The chunks that these elements lie in, in order."""
        return self.chunks[first // self.chunk_elements : -(-(first + count) // self.chunk_elements)]


def _step_of(chunk: Chunk) -> int:
    return -1 if chunk.step is None else chunk.step


def shadow_misfit(shadow: Shadow, step: int, every: int) -> str:
    """'' if a stage may be restored of it at this step, else what is wrong."""
    spread = f"chunks of steps {shadow.oldest} to {shadow.newest} at step {step}"
    if shadow.oldest < 0 or not is_close_enough(shadow.oldest, shadow.newest, step, every):
        return f"{spread} may be at most {every} steps apart, and {2 * every} old"
    if not shadow.digest or shadow.optimizer_age < 0 or not 0 < shadow.lr_factor <= MAX_LR_FACTOR:
        return f"{spread} say nothing of what is made of them"
    return ""


MAX_LR_FACTOR = 1e6
"""Each rebuild may have raised it tenfold at most; no run gets there."""
