"""How fast this node's device is at present, compared with how fast it has been: so that a replica which becomes slow in the
middle of a step says so then, and not when the step has waited for all of its work."""

from __future__ import annotations

TELL_FACTOR = 2.0
"""Slower by this factor than what was told last is told."""
FORGET = 1.01
"""With each computation the fastest one counts for so much longer: a device that stays slow is as fast as ever, some day."""
LEAST_S = 1e-9


class Pace:
    """Fed by the workbench with what its computations take. One that takes long says nothing yet, two in succession do."""

    def __init__(self) -> None:
        self._usual: dict[tuple[int, str], float] = {}
        """Seconds by (stage, what is computed): the fastest one."""
        self._slower: dict[int, tuple[float, float]] = {}
        """The last two of a stage in the open attempt: how many times as long as usual each took."""
        self._told: dict[int, float] = {}

    def opened(self) -> None:
        """A new attempt begins."""
        self._slower.clear()
        self._told.clear()

    def ended(self, stage: int, op: str, seconds: float) -> None:
        """A computation is done."""
        seconds = max(seconds, LEAST_S)
        usual = self._usual.get((stage, op), seconds)
        self._slower[stage] = self._slower.get(stage, (0.0, 0.0))[1], seconds / usual
        self._usual[stage, op] = min(seconds, FORGET * usual)

    def news(self, stage: int) -> float:
        """Seconds per microbatch of the stage, if they are much more than was to be expected, and than was told; else 0."""
        factor = min(self._slower.get(stage, (0.0, 0.0)))
        if factor < TELL_FACTOR * self._told.get(stage, 1.0):
            return 0.0
        self._told[stage] = factor
        return factor * sum(seconds for (at, _), seconds in self._usual.items() if at == stage)
