"""When a node of a run that is over goes: it serves its peers for a while first, and longer where somebody is still behind."""

from __future__ import annotations

from protocol.messages import LOST_STATE, Standing


class Ending:
    """`at` is None while the run is not finished here. `step`: the last one of the run."""

    def __init__(self, linger_s: float, patience_s: float) -> None:
        self.at: float | None = None
        self.step = 0
        self.code = 0
        """Exit code."""
        self.sentence = ""
        """Why the run is over, where it is not finished."""
        self._linger_s, self._patience_s = linger_s, patience_s

    def told(self, standing: Standing, now: float) -> None:
        """The coordinator says how the run stands."""
        if standing.exit_code == LOST_STATE:
            self.give_up(standing.sentence, now)
        elif standing.phase == "finished":
            self.begin(standing.step, now)

    def begin(self, step: int, now: float) -> None:
        """The run is finished; a repeated word changes nothing."""
        if self.at is None:
            self.at, self.step = now + self._linger_s, step

    def give_up(self, sentence: str, now: float) -> None:
        """State is lost for good. Nothing is left to catch up with."""
        if self.at is None:
            self.code, self.sentence = LOST_STATE, sentence
            self.begin(0, now)

    def is_due(self, behind: bool, now: float) -> bool:
        """Is it time to go? Who is `behind` gets more time, but not for ever."""
        return self.at is not None and now >= self.at + (self._patience_s if behind else 0.0)
