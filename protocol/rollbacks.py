"""Policy `checkpoint` at the coordinator: which step everybody goes back to, once somebody takes each lost stage.

The store itself says what is saved: the coordinator looks (`Survey`) each time before it decides, so whoever has just taken
over knows as much as the one before. It goes back to the newest step of its chain of which all stages are there; what somebody
could not read back counts as not there. Where nothing is saved yet all begin anew from the seed; where the store cannot be
looked at, that is said, and everybody waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.chain import Chain, choose_voters
from protocol.commands import Survey
from protocol.events import SavedState, Surveyed
from protocol.ids import Ballot, Member
from protocol.records import Point, Rollback, Seating
from protocol.restoring import Unrestored
from protocol.rollback import points_of

LOOK_AGAIN_HEARTBEATS = 10.0
"""After a look without an answer; after one that says that the store cannot be looked at, a heartbeat each."""
SURVEYS_PER_TERM = 1 << 20


@dataclass(frozen=True, slots=True)
class GoingBack:
    """The record, or what is to be found out first; and the sentence that says why."""

    sentence: str
    record: Rollback | None = None
    survey: Survey | None = None


class Rollbacks:
    """Of one coordinator."""

    def __init__(self, me: Member, chain: Chain, ballot: Ballot, heartbeat_s: float) -> None:
        self._me, self._chain, self._ballot, self._beat_s = me, chain, ballot, heartbeat_s
        self._number = ballot.term * SURVEYS_PER_TERM
        self._asked_at: float | None = None
        self._answer: Surveyed | None = None
        self._damaged: set[SavedState] = set()

    def rest(self) -> None:
        """Nothing is lost: what is known of the store grows old."""
        self._asked_at = self._answer = None

    def on_surveyed(self, event: Surveyed) -> None:
        """What there is; an answer to an earlier question, or to another coordinator, is of no use."""
        if event.number == self._number and self._asked_at is not None:
            self._answer = event

    def on_unrestored(self, message: Unrestored) -> None:
        """Somebody could not read back what it was to."""
        self._damaged.add(SavedState(message.stage, message.state_id))

    def is_in_vain(self) -> bool:
        """Is something of what everybody is going back to not to be had?"""
        rollback = self._chain.rollback
        states = enumerate(rollback.states) if rollback and rollback.to_step else ()
        return any(SavedState(stage, state_id) in self._damaged for stage, state_id in states)

    def decide(self, takers: Mapping[int, Member], now: float) -> GoingBack:
        """Everybody goes back, these members to stages that nobody holds."""
        named = f"stage {', '.join(map(str, takers))} is lost" if takers else "what was saved cannot be read back"
        answer = self._answer
        if answer is None or answer.trouble:
            why = f": {answer.trouble}" if answer else ""
            return GoingBack(f"waiting: {named}; looking what is saved{why}", survey=self._look(now))
        point = self._newest(answer)
        what = f"step {point.step}, which is saved" if point.step else "the beginning: nothing is saved"
        return GoingBack(f"{named}: everybody goes back to {what}", self._record(point, takers))

    def _look(self, now: float) -> Survey | None:
        patience = LOOK_AGAIN_HEARTBEATS if self._answer is None else 1.0
        if self._asked_at is not None and now - self._asked_at < patience * self._beat_s:
            return None
        self._number += 1
        self._asked_at, self._answer = now, None
        return Survey(self._number)

    def _newest(self, answer: Surveyed) -> Point:
        whole = set(answer.found) - self._damaged
        return next(p for p in points_of(self._chain) if not p.step or whole.issuperset(map(SavedState, *_columns(p))))

    def _record(self, point: Point, takers: Mapping[int, Member]) -> Rollback:
        chain = self._chain
        joins = tuple(Seating(stage, member, "active", chain.generations[stage]) for stage, member in takers.items())
        gone = {(s.stage, s.member) for s in joins}
        stay = [s for s in chain.seatings if (s.stage, s.member) not in gone]
        voters = choose_voters([*stay, *joins], self._me)
        states = (chain.epoch + 1, point.step, point.states)
        return Rollback(chain.head, chain.step, *states, joins, voters, self._ballot)


def _columns(point: Point) -> tuple[range, tuple[str, ...]]:
    return range(len(point.states)), point.states
