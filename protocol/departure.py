"""A node that was told to go: it leaves in order while others hold its stages, and at once where nothing would be gained."""

from __future__ import annotations

from collections.abc import Callable

from protocol.chain import Chain
from protocol.ids import Member
from protocol.messages import Leave
from protocol.records import is_weights_alone

DRAIN_S = 6.0
"""Longest wait for the boundary of a step: after that the node says goodbye, and the step is run again without it. Well below
the time in which a process must be gone, so that there is some left for closing."""


class Departure:
    """Idle until `begin`. The owner asks `is_due` with each tick. `hears`: does this node hear anybody else on the roster?"""

    def __init__(self, me: Member, chain: Chain, leave_notice_s: float, hears: Callable[[], bool] = lambda: True) -> None:
        self.reason = ""
        self._me, self._chain = me, chain
        self._notice_s, self._hears = leave_notice_s, hears
        self._asked_at: float | None = None
        self._alone_at = 0.0
        """When nobody else was last seen to hold what it holds."""

    @property
    def is_on(self) -> bool:
        """Has this node been told to go?"""
        return self._asked_at is not None

    def begin(self, reason: str, now: float) -> str:
        """Told to go. The sentence for people, '' if there is nothing to wait for: no seat, or nobody else to take it."""
        self.reason = reason
        if self._is_of_no_use() or self._patience_s() <= 0:
            return ""
        self._asked_at = now
        alone = ", ".join(map(str, self._alone()))
        what = f"after handing over stage {alone}" if alone else "after this step"
        return f"leaving {what}, within {self._patience_s():.0f} s; once more (Ctrl-C) quits at once"

    def seconds_left(self, now: float) -> float:
        """Until it goes at the latest."""
        if self._asked_at is None:
            return 0.0
        since = max(0.0, self._alone_at - self._asked_at)
        return max(0.0, self._asked_at + min(self._notice_s, since + self._patience_s()) - now)

    def _patience_s(self) -> float:
        """Longer where nobody else has what this node holds. Once somebody has, it waits for the boundary that it may go at."""
        return self._notice_s if self._alone() else min(DRAIN_S, self._notice_s)

    def _alone(self) -> list[int]:
        """Stages whose state nobody else has."""
        mine = [s.stage for s in self._chain.seats_of(self._me) if s.role != "learner"]
        return [stage for stage in mine if self._gives(stage) or all(s.member == self._me for s in self._chain.holders(stage))]

    def _gives(self, stage: int) -> bool:
        """Does somebody take the stage's weights from here?"""
        rebuild = self._chain.rebuilds.get(stage)
        return rebuild is not None and is_weights_alone(rebuild)

    def _is_of_no_use(self) -> bool:
        """Waiting, for want of a seat or of anybody else."""
        return self._chain.member_of(self._me.peer) != self._me or not self._hears()

    def leave(self) -> Leave:
        """What the coordinator is asked."""
        return Leave(self._me, self.reason)

    def is_due(self, is_settled: bool, now: float) -> bool:
        """Is it time to go? `is_settled`: whoever has to know that this node is off the roster knows it. Where the others that
        held its stages have gone before it, nothing is waited for any more."""
        if self._asked_at is None:
            return False
        if self._alone():
            self._alone_at = now
        off = self._chain.member_of(self._me.peer) != self._me
        return self.seconds_left(now) <= 0 or (is_settled if off else self._is_of_no_use())
