"""What a running node gives to others: the manifest and data by digest, ranges of its stages, weights for a dump."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

from node.data.files import BlobFiles
from node.holdings import Holdings
from node.http import Weights
from node.mixing import Mixer
from node.ports import StageExecutor, StateRange, UnusableError
from node.shadows import shadow_form
from node.transport.config import FetchRequest, HeldStage, Library
from protocol.events import Event
from protocol.manifest import Manifest
from protocol.node_state import NodeState
from protocol.schedule import later_lr_factor
from protocol.seat import Seat

TRIES = 5


class Shelf:
    """Reads of this node's state and files; empty until it is filled. A read of a stage is of one state_id, or it fails."""

    def __init__(self, blobs: BlobFiles) -> None:
        self._blobs = blobs
        self._manifest: Manifest | None = None
        self._state: NodeState | None = None
        self._executor: StageExecutor | None = None
        self._holdings: Holdings | None = None
        self._mixer: Mixer | None = None

    def fill(self, state: NodeState, executor: StageExecutor, mixer: Mixer | None = None) -> None:
        """From now on there is something to read."""
        self._mixer = mixer
        self._manifest, self._state, self._executor = state.config.manifest, state, executor
        self._holdings = Holdings(self._seats, executor, partial(later_lr_factor, self._manifest.recovery))

    def observe(self, event: Event) -> None:
        """Hear what happens at this node, before it is decided about."""
        if self._holdings:
            self._holdings.observe(event)

    def library(self) -> Library:
        """For the transport."""
        return Library(self.read_blob, self.read_range, self.held, self.read_state)

    def _seats(self) -> dict[int, Seat]:
        return self._state.bench.seats if self._state else {}

    def held(self) -> tuple[HeldStage, ...]:
        """Stages whose state can be fetched now."""
        facts = [seat.state for _, seat in sorted(self._seats().items()) if seat.state.digest]
        return tuple(HeldStage(f.stage, f.state_id, f.step, self._num_elements(f.stage), f.digest) for f in facts)

    def _num_elements(self, stage: int) -> int:
        assert self._holdings, "a node with a seat has holdings"
        return self._holdings.num_elements(stage)

    async def read_blob(self, digest: str, offset: int, size: int) -> bytes | None:
        """Bytes of the manifest, the tokenizer or a token shard; None where it is not here."""
        if self._manifest and digest == self._manifest.digest:
            return self._manifest.canonical()[offset : offset + size]
        path = self._blobs.blob_path(digest)
        return None if path is None else await asyncio.to_thread(_read, path, offset, size)

    async def read_range(self, request: FetchRequest) -> memoryview | None:
        """Elements of a stage as of `state_id`; None where the node holds another state (any more)."""
        if self._holdings is None:
            return None
        r = request
        return await self._holdings.vector_range(r.stage, r.state_id, r.section, r.first, r.count)

    async def read_state(self, request: FetchRequest) -> StateRange | None:
        """A range of a whole state or of a kept gradient, while training goes on; None where it is not held."""
        if self._holdings is None:
            return None
        stage, first, count = request.stage, request.first, request.count
        if request.section == "gradient":
            return await self._holdings.gradient_range(stage, request.state_id, first, count)
        if request.section == "mixed":
            return await self._mixer.mixed_range(stage, request.state_id, first, count) if self._mixer else None
        if request.section == "shadow":
            return await self._shadow(stage, first, count)
        found = await self._holdings.state_range(stage, first, count)
        return found if found and request.state_id in ("", found.facts.state_id) else None

    async def _shadow(self, stage: int, first: int, count: int) -> StateRange | None:
        """For who keeps a shadow of a stage of this node."""
        assert self._holdings and self._manifest, "somebody reads of a running node"
        rules = self._manifest.recovery
        if not self._manifest.keeps_shadows:
            return None
        found = await self._holdings.shadow_range(stage, first, count, rules.shadow_moments)
        return StateRange(found.facts, shadow_form(found, rules)) if found else None

    def _settled_seat(self, stage: int) -> Seat | None:
        seat = self._seats().get(stage)
        return seat if seat and seat.state.digest and seat.settled else None

    async def dump(self, stage: int) -> Weights:
        """The stage's weights as last committed. `UnusableError(2)` where this node does not hold the stage."""
        if self._executor is None or self._manifest is None or stage not in self._seats():
            held = ", ".join(map(str, sorted(self._seats()))) or "none"
            raise UnusableError(2, f"this node does not hold stage {stage} (it holds: {held}); ask the node that does")
        count = self._num_elements(stage)
        for _ in range(TRIES):
            seat = self._settled_seat(stage)
            if seat is not None:
                state_id, step = seat.state.state_id, seat.state.step
                data = await self.read_range(FetchRequest(stage, state_id, "weights", 0, count))
                if data is not None:
                    facts = {"state_id": state_id, "step": str(step), "stage": str(stage), "run_id": self._manifest.run_id}
                    return Weights(self._executor.parameters(stage), data, facts)
            await asyncio.sleep(0.1)
        raise UnusableError(3, f"stage {stage} changes faster than it can be read; pause the run or try again")


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), size, offset)
