"""A seat's side of policy `checkpoint`: when its stage is saved, and what is said of that, and of what cannot be read back."""

from __future__ import annotations

from collections.abc import Callable

from protocol.chain import Chain
from protocol.commands import Command, Note, Save, Say
from protocol.events import RestoreFailed, Saved
from protocol.ids import Ballot, PeerId
from protocol.restoring import Unrestored
from protocol.seat import SeatState


class Saving:
    """Of one node. `emit` takes the commands that follow."""

    def __init__(self, me: PeerId, chain: Chain, emit: Callable[[Command], None]) -> None:
        self._me, self._chain, self._emit = me, chain, emit
        self._unrestored: dict[int, str] = {}
        """Stages whose saved state could not be read back, and why."""

    def save(self, state: SeatState) -> None:
        """A stage has just been updated. Of several replicas, which are equal to the bit, the first one saves."""
        points = self._chain.points
        point = next((p for p in points if p.step == state.step and p.states[state.stage] == state.state_id), None)
        first = self._chain.active(state.stage)[:1]
        if point and first and first[0].member.peer == self._me:
            facts = (state.step, state.state_id, point.record, state.digest, state.optimizer_age, state.lr_factor)
            self._emit(Save(state.stage, *facts, tuple(p.record for p in points)))

    def saved(self, event: Saved) -> None:
        """A stage is saved, or could not be: training goes on all the same."""
        facts = {"stage": event.stage, "step": event.step}
        if not event.trouble:
            self._emit(Note("saved", facts | {"bytes": event.num_bytes, "s": event.seconds}))
            return
        self._emit(Note("save_failed", facts | {"reason": event.trouble}))
        self._emit(Say(f"stage {event.stage} is not saved after step {event.step}: {event.trouble}; training goes on"))

    def roll_back(self) -> None:
        """Something else is to be read back from now on."""
        self._unrestored.clear()

    def not_restored(self, event: RestoreFailed) -> None:
        """What was saved cannot be read back: the coordinator hears of it until it has decided something else."""
        rollback = self._chain.rollback
        if rollback and rollback.states[event.stage] == event.source:
            self._unrestored[event.stage] = event.reason
            self._emit(Note("restore_failed", {"stage": event.stage, "source": event.source, "reason": event.reason}))
            self._emit(Say(f"what was saved of stage {event.stage} cannot be read back: {event.reason}"))

    def unrestored(self, stage: int, ballot: Ballot) -> Unrestored | None:
        """What the coordinator, which may be another one by now, should hear of a stage that is not restored."""
        rollback, reason = self._chain.rollback, self._unrestored.get(stage)
        return Unrestored(ballot, stage, rollback.states[stage], reason) if rollback and reason is not None else None
