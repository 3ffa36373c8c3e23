"""What a simulated node owns: payloads, seats and one compute thread. Hashes stand for tensors.

A gradient is the multiset of what was accumulated into it: so a microbatch that is missing, doubled or computed on other
weights changes the digest of the sum, and a digest that differs spreads to everything that follows from it.
"""

from __future__ import annotations

import heapq
import zlib
from dataclasses import dataclass, field

from protocol.commands import Apply, Compute, Work
from protocol.ids import StateId, hash_of

Key = tuple[int, int]
"""(step, attempt)."""
Contribution = tuple[int, str, str]
"""(microbatch, op, digest of the weights that it was computed with)."""
PRIORITY = {"apply": 0, "backward": 1, "embed_backward": 1, "head": 2, "embed": 3, "forward": 3, "redundant": 3}
COST = {"embed": 0.2, "forward": 1.0, "head": 1.5, "backward": 2.0, "embed_backward": 0.2, "apply": 1.0, "redundant": 1.0}
"""Relative durations."""
PRODUCES = frozenset({"embed", "forward", "head", "backward"})


class BrokenError(AssertionError):
    """Something happened that must never happen."""


def require(holds: bool, what: str) -> None:
    """Raise `BrokenError(what)` unless it holds. What is checked at every event writes no sentence before it is needed."""
    if not holds:
        raise BrokenError(what)


class Pool:
    """Payload handles. `owned` counts what NodeState was given and has yet to release; the driver's own holds come on top."""

    def __init__(self) -> None:
        self.owned: dict[int, int] = {}
        self._holds: dict[int, int] = {}
        self._next = 1

    def give(self, handle: int = 0) -> int:
        """NodeState gets a new handle (or the given live one once more) and owes a Release for it."""
        if not handle:
            handle, self._next = self._next, self._next + 1
        self.owned[handle] = self.owned.get(handle, 0) + 1
        return handle

    def hold(self, handle: int) -> None:
        """The driver needs the payload for a while; NodeState must own it now."""
        if handle not in self.owned:
            raise BrokenError(f"payload {handle} is used after its Release, or was never given")
        self._holds[handle] = self._holds.get(handle, 0) + 1

    def let_go(self, handle: int) -> None:
        """The driver is done with it."""
        self._holds[handle] -= 1
        if not self._holds[handle]:
            del self._holds[handle]

    def release(self, handle: int) -> None:
        """NodeState's Release."""
        if handle not in self.owned:
            raise BrokenError(f"payload {handle} is released once too often")
        self.owned[handle] -= 1
        if not self.owned[handle]:
            del self.owned[handle]


@dataclass(slots=True)
class SimSeat:
    """One stage as the executor knows it."""

    stage: int
    state_id: StateId
    digest: str
    age: int = 0
    lr_factor: float = 1.0
    generation: int = 0
    retained: set[tuple[Key, int]] = field(default_factory=set)
    gradients: dict[Key, list[Contribution]] = field(default_factory=dict)
    sums: dict[Key, str] = field(default_factory=dict)
    discarded: Key = (0, 0)
    num_passed_twice: int = 0

    def discard(self, key: Key) -> None:
        """Forget everything of this attempt and of earlier ones."""
        self.discarded = max(self.discarded, key)
        self.retained = {r for r in self.retained if r[0] > key}
        self.gradients = {k: v for k, v in self.gradients.items() if k > key}
        self.sums = {k: v for k, v in self.sums.items() if k > key}

    def compute(self, work: Work) -> None:
        """What the work leaves behind in the seat."""
        if work.evaluate:
            return
        key = (work.step, work.attempt)
        self.num_passed_twice += work.op == "redundant"
        if work.op == "forward":
            self.retained.add((key, work.microbatch))
        elif work.op == "backward":
            if (key, work.microbatch) not in self.retained:
                raise BrokenError(f"backward without a forward: stage {self.stage}, microbatch {work.microbatch} of {key}")
            self.retained.discard((key, work.microbatch))
        if work.op in ("head", "backward", "embed_backward") and work.accumulate:
            self.gradients.setdefault(key, []).append((work.microbatch, work.op, self.digest))

    def forget_sum(self, key: Key) -> None:
        """The sum of this attempt begins anew."""
        self.sums.pop(key, None)

    def apply(self, command: Apply) -> None:
        """One update from the reduced sum of the attempt."""
        key = (command.step, command.attempt)
        require(key in self.sums, f"stage {self.stage} applies {key} and does not hold its sum")
        self.digest = hash_of([self.digest, self.sums[key], command.gradient_scale, command.learning_rate])
        self.state_id = command.state_id
        self.age += 1
        self.discard(key)


def sum_digest(stage: int, step: int, contributions: list[Contribution]) -> str:
    """Digest of a reduced gradient, whoever contributed what."""
    return hash_of([stage, step, sorted(contributions)])


def whole_gradient(stage: int, num_microbatches: int, weights: str) -> list[Contribution]:
    """What a step's gradient must consist of: each microbatch exactly once, computed on these weights."""
    ops = ("backward",) if stage else ("head", "embed_backward")
    return [(m, op, weights) for m in range(num_microbatches) for op in ops]


def norm_of(digest: str) -> float:
    """Squared norm of the gradient with this digest: in (0, 4]."""
    return (int(digest[:8], 16) + 1) / 2**30


def loss_of(step: int, microbatch: int, tokens: int) -> float:
    """Sum of the token losses of a microbatch: falling with the step, else without meaning."""
    return tokens * (10.0 / (1.0 + step) + zlib.crc32(b"%d/%d" % (step, microbatch)) / 2**32)


class Thread:
    """The queue in front of a node's one compute thread: backward before head before forward, low microbatches first."""

    def __init__(self) -> None:
        self.busy = False
        self.hung = False
        """The device does not answer: nothing that runs or waits ever ends."""
        self._queue: list[tuple[int, int, int, Compute | Apply, SimSeat | None]] = []
        self._sequence = 0

    def put(self, job: Compute | Apply, seat: SimSeat | None) -> None:
        """Queue a job for a seat: another one in its place is not touched by it."""
        op, microbatch = (job.work.op, job.work.microbatch) if isinstance(job, Compute) else ("apply", 0)
        self._sequence += 1
        heapq.heappush(self._queue, (PRIORITY[op], microbatch, self._sequence, job, seat))

    def next(self) -> tuple[Compute | Apply, SimSeat | None] | None:
        """The job to start now and its seat, if the thread is free and there is one."""
        if self.busy or not self._queue:
            return None
        self.busy = True
        return heapq.heappop(self._queue)[3:]
