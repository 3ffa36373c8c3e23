"""A node that was told to go: it leaves in order while others hold its stages, and at once where nothing would be gained."""

from __future__ import annotations

from protocol.chain import Chain
from protocol.ids import Member
from protocol.messages import Goodbye, Leave

DRAIN_S = 6.0
"""Longest wait for the boundary of a step: after that the node says goodbye, and the step is run again without it. Well below
the time in which a process must be gone, so that there is some left for closing."""


class Departure:
    """Idle until `begin`. The owner asks `due` with each tick."""

    def __init__(self, me: Member, chain: Chain, leave_notice_s: float) -> None:
        self.reason = ""
        self._me, self._chain = me, chain
        self._patience_s = min(DRAIN_S, leave_notice_s)
        self._deadline: float | None = None

    @property
    def is_on(self) -> bool:
        """Has this node been told to go?"""
        return self._deadline is not None

    def begin(self, reason: str, now: float) -> str:
        """Told to go. The sentence for people, '' if there is nothing to wait for: no seat, or nobody else to hold it."""
        self.reason = reason
        if self._is_of_no_use() or self._patience_s <= 0:
            return ""
        self._deadline = now + self._patience_s
        return f"leaving after this step, within {self._patience_s:.0f} s; once more (Ctrl-C) quits at once"

    def _is_of_no_use(self) -> bool:
        """Waiting, for want of a seat or of somebody else to hold it."""
        mine = [s.stage for s in self._chain.seatings if s.member == self._me]
        return not mine or any(all(s.member == self._me for s in self._chain.seated(stage)) for stage in mine)

    def leave(self) -> Leave:
        """What the coordinator is asked."""
        return Leave(self._me, self.reason)

    def goodbye(self) -> Goodbye:
        """What everybody near is told at the end."""
        return Goodbye(self._me, self.reason)

    def is_due(self, is_settled: bool, now: float) -> bool:
        """Is it time to go? `is_settled`: whoever has to know that this node is off the roster knows it. Where the others that
        held its stages have gone before it, nothing is waited for any more."""
        if self._deadline is None:
            return False
        off = self._chain.member_of(self._me.peer) != self._me
        return now >= self._deadline or (is_settled if off else self._is_of_no_use())
