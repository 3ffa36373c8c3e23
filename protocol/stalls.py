"""What keeps the open attempt from coming to an end at this node: found in time, told once, and told again until the attempt is
voided."""

from __future__ import annotations

from collections.abc import Collection

from protocol.events import CommandFailed
from protocol.ids import ATTEMPTS_PER_TERM, PeerId
from protocol.manifest import TimingSection
from protocol.messages import OpenStep, Stalled
from protocol.pulse import Pulse
from protocol.seat import Seat, SeatPhase

DEADLINE_FACTOR = 4.0
"""Of a microbatch, times the slowest; at least a heartbeat more than a lapse, which says more of what is wrong."""


class Stalls:
    """Fed by the workbench; returns what the coordinator is to be told."""

    def __init__(self, timing: TimingSection) -> None:
        self._timing = timing
        self._pulse = Pulse(timing.heartbeat_s, timing.first_microbatch_s)
        self._told: tuple[float, Stalled] | None = None

    def opened(self) -> None:
        """A new attempt begins."""
        self.clear()
        self._pulse.opened()

    def clear(self) -> None:
        """What was told is of no more concern: the work is another."""
        self._told = None

    def amended(self, step: OpenStep) -> None:
        """So it is after an amendment; but a sum that came to nothing stalls the attempt until it begins anew."""
        about = self._told[1] if self._told else None
        numbers = [work.sum_number for work in step.seats if about and work.stage == about.summing]
        if about is None or numbers != [about.sum_number]:
            self.clear()

    def ended(self, seconds: float) -> None:
        """A computation, of whatever attempt, is done."""
        self._pulse.ended(seconds)

    @property
    def defect(self) -> str:
        """Why this node is of no use any more; '' as long as it is."""
        return "its device does not answer: no computation ends any more" if self._pulse.is_gone else ""

    def enter(self, step: OpenStep, microbatch: int, peer: PeerId, reason: str, now: float) -> Stalled | None:
        """The open attempt cannot be finished here; None if that was told already."""
        return self._tell(Stalled(step.ballot, step.step, step.attempt, microbatch, peer, reason), now)

    def failed(self, step: OpenStep, event: CommandFailed, now: float) -> Stalled | None:
        """The same, as a command has failed."""
        where = step.ballot, step.step, step.attempt, event.microbatch
        summing = event.stage if event.is_sum else -1
        return self._tell(Stalled(*where, event.peer, event.reason, event.unsent, summing, event.sum_number), now)

    def _tell(self, stalled: Stalled, now: float) -> Stalled | None:
        if self._told is not None:
            return None
        self._told = now, stalled
        return stalled

    def again(self, now: float) -> Stalled | None:
        """What was told a lapse ago, and is told again now."""
        if self._told is None or now - self._told[0] < self._timing.lapse_s:
            return None
        self._told = now, self._told[1]
        return self._told[1]

    def look(self, seats: Collection[Seat], step: OpenStep | None, now: float) -> Stalled | None:
        """What does not come to an end in time stalls the attempt: a computation here, or at stage 0 a microbatch on its way
        through the pipe, whose deadline doubles with each attempt."""
        computing = next((key for seat in seats if seat.attempt for key in seat.attempt.computing), None)
        applying = SeatPhase.APPLYING in [seat.phase for seat in seats]
        hangs = self._pulse.tick(computing is not None, applying, now)
        if hangs and computing and step:
            op, microbatch = computing
            reason = f"{op} of microbatch {microbatch} has not ended after {self._pulse.limit_s:.0f} s"
            return self.enter(step, microbatch, "", reason, now)
        embedding = next((seat for seat in seats if seat.state.stage == 0), None)
        oldest = embedding.oldest_in_flight() if embedding else None
        if embedding is None or oldest is None or step is None:
            return None
        waited = now - oldest[1]
        if waited <= self._patience_s(embedding.latency_s, step.attempt):
            return None
        return self.enter(step, oldest[0], "", f"microbatch {oldest[0]} is not back after {waited:.1f} s", now)

    def _patience_s(self, latency_s: float, attempt: int) -> float:
        """With a microbatch on its way; `latency_s`: of the slowest one of late, 0 before any was measured."""
        timing = self._timing
        measured = max(timing.lapse_s + timing.heartbeat_s, DEADLINE_FACTOR * latency_s)
        doubled = measured * 2.0 ** min((attempt - 1) % ATTEMPTS_PER_TERM, 10)
        deadline = doubled if latency_s else timing.first_microbatch_s
        return max(measured, min(deadline, timing.first_microbatch_s))
