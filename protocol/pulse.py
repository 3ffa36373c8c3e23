"""Does this node's own device still answer?

A node whose heartbeats flow while its computations do not end holds everybody up, and it alone knows for certain. It gives the
attempt up, so that the others need not wait; if nothing ends over several attempts, it goes, as one that was killed would: its
stage is then for another replica, or for the recovery ladder.
"""

from __future__ import annotations

DEADLINE_FACTOR = 6.0
"""A device that is five times slower than it was is not hung."""
DEADLINE_HEARTBEATS = 6.0
"""A machine that is busy with other things is not hung."""
ATTEMPTS = 3
"""In which not one computation ended."""
FORGET = 0.99
"""Of the longest computation, kept with each later one."""


class Pulse:
    """Fed by the workbench. `first_s`: patience before any computation was measured. Only time in which the node itself was
    awake counts: of a tick that comes late, as after a sleep, no more than a heartbeat."""

    def __init__(self, heartbeat_s: float, first_s: float) -> None:
        self._heartbeat_s, self._first_s = heartbeat_s, first_s
        self._longest_s = 0.0
        self._ticked_at: float | None = None
        self._waited_s = self._applied_s = 0.0
        self._told = False
        self._attempts = 0

    @property
    def limit_s(self) -> float:
        """A computation that takes longer, with none ending meanwhile, counts as hung."""
        least_s = DEADLINE_HEARTBEATS * self._heartbeat_s
        return max(least_s, DEADLINE_FACTOR * self._longest_s) if self._longest_s else self._first_s

    @property
    def is_gone(self) -> bool:
        """Nothing has ended for so long that nothing more is expected."""
        return self._attempts >= ATTEMPTS or self._applied_s > self._first_s

    def opened(self) -> None:
        """A new attempt begins, and may hang as well. What was asked for before and never ended counts on: others may void each
        attempt sooner than this node would."""
        self._told = False

    def ended(self, seconds: float) -> None:
        """A computation, of whatever attempt, is done."""
        self._longest_s = max(seconds, FORGET * self._longest_s)
        self._waited_s, self._attempts = 0.0, 0

    def tick(self, computing: bool, applying: bool, now: float) -> bool:
        """Does the open attempt wait for the device, is an update being applied? True once per attempt, when it counts as
        hung. (While an update is applied no attempt is opened, and none is given up.)"""
        passed_s = 0.0 if self._ticked_at is None else min(now - self._ticked_at, self._heartbeat_s)
        self._ticked_at = now
        self._waited_s += passed_s if computing and not self._told else 0.0
        self._applied_s = self._applied_s + passed_s if applying else 0.0
        if not self._waited_s or self._told or self._waited_s <= self.limit_s:
            return False
        self._waited_s, self._told = 0.0, True
        self._attempts += 1
        return True
