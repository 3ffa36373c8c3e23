"""Does this node's own device still answer?

A node whose heartbeats flow while its computations do not end holds everybody up, and it alone knows for certain. It gives the
attempt up, so that the others need not wait; if nothing ends over several attempts, it goes, as one that was killed would: its
stage is then for another replica, or for the recovery ladder.
"""

from __future__ import annotations

import math

DEADLINE_FACTOR = 4.0
DEADLINE_HEARTBEATS = 6.0
"""A machine that is busy with other things is not hung."""
ATTEMPTS = 3
"""In which not one computation ended."""
FORGET = 0.99
"""Of the longest computation, kept with each later one."""


class Pulse:
    """Fed by the workbench. `first_s`: patience before any computation was measured."""

    def __init__(self, heartbeat_s: float, first_s: float) -> None:
        self._least_s, self._first_s = DEADLINE_HEARTBEATS * heartbeat_s, first_s
        self._longest_s = 0.0
        self._since: float | None = None
        self._applies_since = math.inf
        self._attempts = 0

    @property
    def limit_s(self) -> float:
        """A computation that takes longer, with none ending meanwhile, counts as hung."""
        return max(self._least_s, DEADLINE_FACTOR * self._longest_s) if self._longest_s else self._first_s

    @property
    def is_gone(self) -> bool:
        """Nothing has ended for so many attempts that nothing more is expected."""
        return self._attempts >= ATTEMPTS

    def opened(self) -> None:
        """A new attempt begins: what it asks for is measured from now on."""
        self._since = None

    def ended(self, seconds: float) -> None:
        """A computation, of whatever attempt, is done."""
        self._longest_s = max(seconds, FORGET * self._longest_s)
        self._since, self._attempts = None, 0

    def hangs(self, computing: bool, now: float) -> bool:
        """Told with every tick whether the open attempt waits for the device. True once per attempt, when it counts as hung."""
        if not computing:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > self.limit_s:
            self._since = math.inf
            self._attempts += 1
            return True
        return False

    def applies(self, applying: bool, now: float) -> None:
        """Told with every tick whether an update is being applied. No attempt is opened meanwhile, and none is given up: what
        does not end within `first_s` never will."""
        if not applying:
            self._applies_since = now
        elif now - self._applies_since > self._first_s:
            self._attempts = ATTEMPTS
