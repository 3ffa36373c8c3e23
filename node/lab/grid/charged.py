"""An executor that computes at once and takes the time that the large model would take, one computation after another."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from node.lab.grid.plan import Rig
from node.ports import ComputeResult, Payload, PeerError
from node.stage.executor import RANKS, TorchExecutor
from node.stage.tokens import TokenSource
from protocol.commands import Work
from protocol.manifest import Manifest

FORWARD = 1 / 3
"""Of the time of a layer; the way back takes the rest."""


def work_s(rig: Rig, work: Work) -> float:
    """What one microbatch takes. The embedding takes nothing; of stage 0 it is the head that is run twice."""
    samples = rig.large.samples / rig.num_microbatches
    if work.op in ("embed", "embed_backward"):
        return 0.0
    if work.op == "head":
        return rig.layer_s * rig.head_layers * samples * (FORWARD if work.evaluate else 1.0)
    share = FORWARD if work.op in ("forward", "redundant") else 1.0 - FORWARD
    return rig.layer_s * (rig.large.layers_per_stage if work.stage else rig.head_layers) * samples * share


@dataclass(slots=True)
class Turns:
    """One computation at a time, in the order of the real executor's queue: by rank, then microbatch, then arrival."""

    _busy: bool = False
    _num: int = 0
    _waiting: list[tuple[int, int, int, Work, asyncio.Future[None]]] = field(default_factory=list)

    @asynccontextmanager
    async def turn(self, work: Work) -> AsyncIterator[None]:
        """Wait for it. `PeerError` where the attempt is given up meanwhile."""
        if self._busy:
            future = asyncio.get_running_loop().create_future()
            self._num += 1
            heapq.heappush(self._waiting, (RANKS[work.op], work.microbatch, self._num, work, future))
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._next()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        self._busy = False
        while self._waiting:
            future = heapq.heappop(self._waiting)[-1]
            if not future.done():
                self._busy = True
                future.set_result(None)
                return

    def forget(self, stage: int, attempt: tuple[int, int]) -> None:
        """What waits of this attempt, or of older ones, is not done any more."""
        for _, _, _, work, future in self._waiting:
            if work.stage == stage and (work.step, work.attempt) <= attempt and not future.done():
                future.set_exception(PeerError("", "the attempt was given up"))


class ChargedExecutor(TorchExecutor):
    """See the module. Calls about a seat's state take no time: they are copies within a machine."""

    def __init__(self, manifest: Manifest, tokens: TokenSource, rig: Rig) -> None:
        super().__init__(manifest, tokens, inline=True)
        self._rig, self._turns = rig, Turns()

    async def compute(self, work: Work, payload: Payload | None) -> ComputeResult:
        """See `StageExecutor`."""
        seconds = work_s(self._rig, work)
        async with self._turns.turn(work):
            result = await super().compute(work, payload)
            await asyncio.sleep(seconds)
        return replace(result, seconds=seconds)

    async def discard(self, stage: int, step: int, attempt: int) -> None:
        """See `StageExecutor`."""
        self._turns.forget(stage, (step, attempt))
        await super().discard(stage, step, attempt)
