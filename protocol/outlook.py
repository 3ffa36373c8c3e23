"""How the run stands, as far as this node was told, and what it says of that to people."""

from __future__ import annotations

from protocol.commands import Say
from protocol.ids import Ballot
from protocol.messages import Order, Phase, Standing


class Outlook:
    """`phase` and `sentence` are what `/status` shows; `validation` is (step, mean loss in nats per token) of the last
    evaluation, step -1 for none."""

    def __init__(self, phase: Phase) -> None:
        self.phase: Phase = phase
        self.sentence = ""
        self.validation: tuple[int, float] = (-1, 0.0)
        self._last: Standing | None = None
        self._is_leaderless = False

    def say(self, sentence: str) -> list[Say]:
        """Something else than before?"""
        if sentence == self.sentence:
            return []
        self.sentence = sentence
        return [Say(sentence)]

    @property
    def order(self) -> Order | None:
        """The newest one that the coordinator is known to know."""
        return self._last.order if self._last else None

    def serial(self, ballot: Ballot) -> int:
        """Of the newest standing that was told under this ballot; 0 = none."""
        return self._last.serial if self._last and self._last.ballot == ballot else 0

    def told(self, standing: Standing, holds_seat: bool) -> list[Say]:
        """The coordinator says how the run stands. What comes late, after a newer one, is dropped."""
        if standing.serial < self.serial(standing.ballot):
            return []
        self._last, self.phase = standing, standing.phase
        if standing.validation_step >= 0:
            self.validation = (standing.validation_step, standing.validation_loss)
        return self.say(standing.sentence + ("" if holds_seat else " (without a seat here)"))

    def goes_on(self) -> list[Say]:
        """A step is open here: what was said besides is over, and what the coordinator last told holds."""
        return self.say(self._last.sentence) if self._last and not self._is_leaderless else []

    def leaderless(self) -> None:
        """No coordinator is heard."""
        self.phase, self._is_leaderless = "waiting", True

    def led(self) -> list[Say]:
        """The coordinator is heard: what it last told holds again."""
        if not self._is_leaderless:
            return []
        self._is_leaderless, last = False, self._last
        self.phase = last.phase if last else "waiting"
        return self.say(last.sentence if last else "waiting: the coordinator is back")

    def leads(self) -> None:
        """This node coordinates from now on, and will tell itself."""
        self._is_leaderless = False

    def begin_anew(self) -> None:
        """Another lineage is joined: nothing that was told holds there."""
        self._is_leaderless, self._last, self.phase = False, None, "waiting"
