"""What a node can give of its seats' state to learners, and of which state it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from node.ports import StageExecutor, StateFacts, StateRange
from protocol.events import Applied, Event, Learned, SeatCreated
from protocol.ids import StateId
from protocol.seat import Seat, SeatPhase, SeatState

READS = 2
"""Of weights alone: an update may come while they are read."""
REMEMBERED = 8
"""States of a stage, the last ones, whose age can be told."""


class Holdings:
    """Reads go on while the node trains: the executor tells the optimizer age of what it read, and the events of this node,
    each shown to `observe` before it is decided about, tell which state has that age."""

    def __init__(
        self, seats: Callable[[], Mapping[int, Seat]], executor: StageExecutor, later: Callable[[float], float]
    ) -> None:
        """`later`: lr_factor of a state -> that of the next one."""
        self._seats, self._executor, self._later = seats, executor, later
        self._facts: dict[int, dict[int, StateFacts]] = {}
        self._sizes: dict[int, int] = {}

    def observe(self, event: Event) -> None:
        """Take in what changes a state."""
        if not isinstance(event, SeatCreated | Learned | Applied) or event.stage not in self._seats():
            return
        seat = self._seats()[event.stage].state
        facts = self._facts.setdefault(event.stage, {})
        if not isinstance(event, Applied):
            facts.clear()
        told = self._facts_after(event, seat)
        facts[told.optimizer_age] = told
        if len(facts) > REMEMBERED:
            del facts[min(facts)]

    def num_elements(self, stage: int) -> int:
        """Length of each of the stage's flat vectors."""
        if stage not in self._sizes:
            self._sizes[stage] = sum(math.prod(shape) for _, shape in self._executor.parameters(stage))
        return self._sizes[stage]

    async def state_range(self, stage: int, first: int, count: int) -> StateRange | None:
        """A range of the state that is held at the moment of reading; None where there is none to give."""
        if not self._gives(stage, first, count):
            return None
        age, data = await self._executor.export_state(stage, first, count)
        facts = self._facts.get(stage, {}).get(age)
        return StateRange(facts, data) if facts and self._gives(stage, first, count) else None

    async def shadow_range(self, stage: int, first: int, count: int, with_moments: bool) -> StateRange | None:
        """As `state_range`; weights alone where the moments are not wanted."""
        if with_moments:
            return await self.state_range(stage, first, count)
        for _ in range(READS):
            seat = self._seats().get(stage)
            state_id = seat.state.state_id if seat else ""
            data = await self.vector_range(stage, state_id, "weights", first, count)
            facts = next((f for f in self._facts.get(stage, {}).values() if f.state_id == state_id), None)
            if data is not None and facts is not None:
                return StateRange(facts, data)
        return None

    async def gradient_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange | None:
        """A range of the reduced gradient whose update led to `state_id`; None where it is not kept."""
        known = self._facts.get(stage, {}).values()
        facts = next((facts for facts in known if facts.state_id == state_id), None)
        if facts is None or not self._gives(stage, first, count):
            return None
        data = await self._executor.export_gradient(stage, facts.optimizer_age, first, count)
        return None if data is None else StateRange(facts, data)

    async def vector_range(self, stage: int, state_id: StateId, section: str, first: int, count: int) -> memoryview | None:
        """Elements of one vector as of exactly `state_id`; None where this node holds another state (any more)."""
        if not self._is_at(stage, state_id) or not self._gives(stage, first, count):
            return None
        data = await self._executor.export(stage, section, first, count)
        return data if self._is_at(stage, state_id) else None

    def _is_at(self, stage: int, state_id: StateId) -> bool:
        seat = self._seats().get(stage)
        return seat is not None and seat.settled and seat.state.state_id == state_id

    def _gives(self, stage: int, first: int, count: int) -> bool:
        """A learner has nothing to give: what it holds may be of several states."""
        seat = self._seats().get(stage)
        if seat is None or not seat.state.digest or seat.phase is SeatPhase.LEARNING:
            return False
        return first >= 0 and count >= 1 and first + count <= self.num_elements(stage)

    def _facts_after(self, event: SeatCreated | Learned | Applied, seat: SeatState) -> StateFacts:
        if isinstance(event, Learned):
            e = event
            return StateFacts(e.state_id, e.step, e.optimizer_age, e.lr_factor, e.generation, e.digest)
        if isinstance(event, SeatCreated):
            return StateFacts(seat.state_id, seat.step, 0, seat.lr_factor, seat.generation, event.digest)
        lr_factor = self._later(seat.lr_factor)
        return StateFacts(event.state_id, event.step, event.optimizer_age, lr_factor, seat.generation, event.digest)
