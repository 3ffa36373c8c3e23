"""The runtime's part of policy `checkpoint`: stages are saved beside training, looked for, and read back.

A save begins with a copy of the stage's state (12 bytes per parameter, until the save ends), which the executor makes before it
can apply the next update; all else happens in a thread. While a stage is still being saved its next save is left out: so there
is one copy of it at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from node.checkpoints.form import Saved as File
from node.checkpoints.places import PlaceError
from node.checkpoints.store import CheckpointStore, DamagedError, GivenUpError
from node.ports import RANGE_ELEMENTS, Clock, PeerError, StageExecutor
from protocol.commands import Restore, Save, Survey
from protocol.events import Event, Learned, RestoreFailed, Saved, SavedState, Surveyed
from protocol.manifest import Manifest

BUSY = "the save before it has not ended"
log = logging.getLogger(__name__)


class InThread(Protocol):
    """`asyncio.to_thread`, or what calls at once where time is virtual."""

    def __call__(self, what: Callable[..., Any], /, *args: Any) -> Coroutine[Any, Any, Any]:
        """The result of `what(*args)`."""


@dataclass(slots=True)
class Savings:
    """Of one node. Commands come in, `tell` hears how they ended; `seated` is told a stage's number of elements when its seat
    is there. Call `close` at the end: what is being saved is given up then."""

    manifest: Manifest
    executor: StageExecutor
    store: CheckpointStore | None
    clock: Clock
    tell: Callable[[Event], None]
    seated: Callable[[int, int], None]
    in_thread: InThread = asyncio.to_thread
    _busy: set[int] = field(default_factory=set)
    _closed: bool = False

    def close(self) -> None:
        """Nothing is wanted any more."""
        self._closed = True

    def _open(self) -> CheckpointStore:
        assert self.store, "only policy checkpoint saves, and it has a store"
        return self.store

    def _size(self, stage: int) -> int:
        return sum(math.prod(shape) for _, shape in self.executor.parameters(stage))

    # ---- save ----

    async def save(self, command: Save) -> None:
        """Outcome: Saved. Must be started before anything else is asked of the stage."""
        stage, began = command.stage, self.clock.monotonic()
        if stage in self._busy:
            self.tell(Saved(stage, command.step, 0, 0.0, BUSY))
            return
        self._busy.add(stage)
        try:
            size, trouble = await self._saved(command)
        finally:
            self._busy.discard(stage)
        self.tell(Saved(stage, command.step, size, self.clock.monotonic() - began, trouble))

    async def _saved(self, c: Save) -> tuple[int, str]:
        num_elements = self._size(c.stage)
        age, state = await self.executor.export_state(c.stage, 0, num_elements)
        assert age == c.optimizer_age, f"stage {c.stage} has age {age}: {c}"
        run_id, parameters = self.manifest.run_id, self.executor.parameters(c.stage)
        file = File(run_id, c.stage, c.step, c.state_id, c.record, c.digest, age, c.lr_factor, num_elements)
        try:
            size = await self.in_thread(self._open().save, file, parameters, state, lambda: not self._closed)
            await self.in_thread(self._open().prune, c.stage, self.manifest.num_stages, frozenset(c.lineage).__contains__)
        except PlaceError as error:
            return 0, str(error)
        except GivenUpError:
            return 0, "this node goes"
        return size, ""

    # ---- look, and read back ----

    async def survey(self, command: Survey) -> None:
        """Outcome: Surveyed."""
        try:
            files = await self.in_thread(self._open().survey)
        except PlaceError as error:
            self.tell(Surveyed(command.number, (), str(error)))
            return
        self.tell(Surveyed(command.number, tuple(SavedState(file.stage, file.state_id) for file in files)))

    async def restore(self, command: Restore) -> None:
        """Outcome: Learned or RestoreFailed. Where the store cannot be read now it is tried again with each heartbeat."""
        try:
            await (self._read_back(command) if command.step else self._begin_anew(command))
        except (DamagedError, PeerError) as error:
            log.warning("stage %d cannot be restored: %s", command.stage, error)
            self.tell(RestoreFailed(command.stage, command.source, str(error)))

    async def _begin_anew(self, c: Restore) -> None:
        info = await self.executor.create(c.stage)
        self.seated(c.stage, info.num_elements)
        self.tell(Learned(c.stage, c.state_id, c.step, info.digest, 0, 1.0, c.generation, (), 0, 0.0))

    async def _read_back(self, c: Restore) -> None:
        began, num_elements = self.clock.monotonic(), self._size(c.stage)
        file, data = await self._load(c)
        if file.num_elements != num_elements:
            raise DamagedError(f"stage {c.stage} has {num_elements} elements, {file.num_elements} were saved")
        info = await self.executor.blank(c.stage)
        self.seated(c.stage, info.num_elements)
        state, size = memoryview(data), 4 * num_elements
        for first in range(0, num_elements, RANGE_ELEMENTS):
            end = min(num_elements, first + RANGE_ELEMENTS)
            weights, *moments = (state[at + 4 * first : at + 4 * end] for at in (0, size, 2 * size))
            await self.executor.adopt_range(c.stage, first, weights, *moments)
        info = await self.executor.adopted(c.stage, file.optimizer_age)
        if info.digest != file.digest:
            raise DamagedError(f"stage {c.stage} has digest {info.digest[:8]}, {file.digest[:8]} was saved")
        seconds = self.clock.monotonic() - began
        facts = (c.step, info.digest, file.optimizer_age, file.lr_factor, c.generation)
        self.tell(Learned(c.stage, c.state_id, *facts, (), len(data), seconds))

    async def _load(self, c: Restore) -> tuple[File, bytearray]:
        while True:
            try:
                found: tuple[File, bytearray] = await self.in_thread(self._open().load, c.stage, c.source)
            except PlaceError as error:
                log.warning("stage %d waits to be restored: %s", c.stage, error)
                await self.clock.sleep(self.manifest.timing.heartbeat_s)
            else:
                return found
