"""What the coordinator makes of what replicas say of their pace: how a step's work is dealt, and whether one that becomes slow
in the middle of it should be relieved of its rest. How that is done: `protocol.detours`."""

from __future__ import annotations

from protocol.assignment import Plan, make_plan
from protocol.chain import Chain
from protocol.ids import Member, members_of
from protocol.ledger import Ledger
from protocol.manifest import Manifest
from protocol.messages import ReduceReady
from protocol.records import Seating
from protocol.speeds import MOST_S, Speeds

WORTH = 1.5
"""It is relieved if its rest takes so many times as long as the whole step takes the others, and a lapse: to do work again
costs time, and a machine that was busy for a moment is none that became slow."""


class Stragglers:
    """See the module."""

    def __init__(self, manifest: Manifest, chain: Chain, speeds: Speeds) -> None:
        self._chain, self._speeds, self._lapse_s = chain, speeds, manifest.timing.lapse_s
        self._stages, self._swapped = range(manifest.num_stages), manifest.swapped
        self._num_microbatches = manifest.batch.num_microbatches

    def plan(self, now: float) -> Plan:
        """Who computes what in an attempt that is opened now."""
        active = [self._chain.active(stage) for stage in self._stages]
        counts = [self._speeds.deal(row, self._num_microbatches, now) for row in active]
        return make_plan(self._num_microbatches, [[s.member.peer for s in row] for row in active], self._swapped, counts)

    def enter(self, ledger: Ledger, member: Member, message: ReduceReady) -> str | None:
        """What a replica says of its pace; later attempts are dealt by it. None if it may be ready with all that it owns; else
        why it should be relieved of the rest, '' if it should not."""
        stage, seconds = message.stage, min(message.seconds_per_microbatch, MOST_S)
        seating = ledger.seated(stage, member)
        if seating is None or seating.role != "active" or not seconds > 0 or (stage, member) in ledger.ready:
            return None
        owned, done = set(ledger.owned(stage, member.peer)), set(members_of(message.microbatches))
        if done <= owned:
            self._speeds.measured(stage, member, seconds)
        if not done < owned:
            return None
        left_s, others_s = len(owned - done) * seconds, self._others_s(stage, member)
        if left_s <= WORTH * (others_s + self._lapse_s):
            return ""
        return (
            f"{member.peer[-8:]} needs {left_s:.0f} s for its rest of stage {stage}, the others {others_s:.0f} s for all of it"
        )

    def _others_s(self, stage: int, member: Member) -> float:
        """How long the slowest stage computes in a step without the member; forever where nobody else is there."""
        rows = [list(self._chain.active(s)) for s in self._stages]
        rows[stage] = [s for s in rows[stage] if s.member != member]
        return max(self._makespan_s(row) for row in rows)

    def _makespan_s(self, row: list[Seating]) -> float:
        return self._speeds.makespan_s(row, self._num_microbatches) if row else MOST_S * self._num_microbatches
