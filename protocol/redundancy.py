"""Policy redundant: the forward passes that are computed twice (Bamboo).

Whoever sends an activation on runs the next stage's forward pass on it as well, at its passive replica of that stage. The
result is thrown away: the gradients that a lost replica had accumulated in the open step are gone with it, so that the attempt
is void whatever else was kept, and begins again at the promoted replica. The pass costs the time that it costs in Bamboo, and
is no part of any sum. (Bamboo keeps the result on the host, and makes up for those gradients within the step.) A sum in which
such a replica takes part waits until its passes are done, so none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.attempt import Incoming
from protocol.commands import Command, Compute, Work
from protocol.events import ComputeDone
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.messages import StartReduce
from protocol.seat import Seat
from protocol.sizes import next_stage


class Redundancy:
    """`seats`: those of the node, by stage."""

    def __init__(self, manifest: Manifest, me: PeerId, seats: Mapping[int, Seat]) -> None:
        self._manifest, self._me, self._seats = manifest, me, seats
        self._waiting: dict[int, StartReduce] = {}
        """By stage."""

    def passed(self, event: ComputeDone) -> list[Command]:
        """A pass of the open attempt has ended, and what it made is not released yet: what is to be run on it here."""
        work, seat = event.work, self._seats[event.work.stage]
        if not (self._manifest.redundant and work.op in ("embed", "forward") and event.handle and seat.attempt):
            return []
        stage = next_stage(self._manifest, work.stage)
        copy, incoming = self._seats.get(stage), seat.attempt.computing.get((work.op, work.microbatch))
        if incoming is None or copy is None or copy.attempt is None or copy.state.role != "passive":
            return []
        copy.attempt.computing["redundant", work.microbatch] = Incoming(incoming.header, 0, self._me)
        return [Compute(Work("redundant", stage, work.step, work.attempt, work.microbatch), event.handle, self._me)]

    def ended(self, event: ComputeDone, now: float) -> StartReduce | None:
        """One of the open attempt is done. Its time counts where the microbatch's does: by that replicas get their share of the
        work. Returns the sum that has waited for the last one."""
        work = event.work
        self._seats[work.stage].computed(event, now)
        before = self._seats.get((work.stage - 1) % self._manifest.num_stages)
        if before and before.attempt:
            before.attempt.busy_s += event.seconds
        return None if self._is_busy(work.stage) else self._waiting.pop(work.stage, None)

    def holds(self, message: StartReduce) -> bool:
        """Must this sum of the open attempt wait here?"""
        if self._is_busy(message.stage):
            self._waiting[message.stage] = message
            return True
        return False

    def _is_busy(self, stage: int) -> bool:
        attempt = self._seats[stage].attempt
        return attempt is not None and any(op == "redundant" for op, _ in attempt.computing)
