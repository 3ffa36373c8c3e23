"""Faults as data: what breaks, where, and at which point of the protocol.

    Faults().crash(stage=2, at_step=6, phase="backward").duplicate(0.02).reorder(0.05)

A fault strikes the holder of a stage (or the coordinator) just before it carries out a command of the named phase: so a
coordinator can die between two of its Decides. `assert_fired` at the end of a run finds the fault that never struck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from node.sim.network import Cut, Weather
from protocol.commands import Apply, Command, Compute, Note, Reduce, SendMessage
from protocol.ids import PeerId
from protocol.messages import Decide, OpenStep, Propose, StartReduce
from protocol.records import Commit

Kind = Literal["crash", "freeze", "restart"]
Phase = Literal[
    "forward", "head", "backward", "accumulated", "reduce", "reduced", "apply", "open", "start", "propose", "decide"
]
SEAT_PHASES: tuple[Phase, ...] = ("forward", "backward", "accumulated", "reduce", "reduced", "apply")
COORDINATOR_PHASES: tuple[Phase, ...] = ("open", "start", "propose", "decide")
COORDINATOR = -1
"""As a `stage`: whoever does what only the coordinator does."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One node fails once."""

    kind: Kind
    stage: int
    at_step: int
    phase: Phase
    replica: int = 0
    """Which of the stage's active replicas, in roster order."""
    skip: int = 0
    """So many commands that match are let pass first."""
    for_s: float = 0.0
    """freeze: until it thaws (0 = never); restart: until it is back."""
    loud: bool = True
    """crash: others' streams to it break at once; otherwise they hang, as when a machine loses its power."""
    forgetful: bool = False
    """freeze: what was sent to it meanwhile is lost."""

    def __str__(self) -> str:
        whom = "the coordinator" if self.stage == COORDINATOR else f"replica {self.replica} of stage {self.stage}"
        how_long = f" for {self.for_s:.2f} s" if self.for_s else ""
        return f"{self.kind} of {whom}{how_long} at step {self.at_step} before '{self.phase}' (+{self.skip})"


@dataclass(slots=True)
class Faults:
    """Builder and bookkeeping of one run's faults."""

    strikes: list[Strike] = field(default_factory=list)
    weather: Weather = field(default_factory=Weather)
    fired: Counter[str] = field(default_factory=Counter)
    _passed: Counter[Strike] = field(default_factory=Counter)
    _armed: list[Strike] = field(default_factory=list)

    def crash(self, *, stage: int, at_step: int, phase: Phase, **more: object) -> Faults:
        """The process is gone for good."""
        return self.add(Strike("crash", stage, at_step, phase, **more))  # type: ignore[arg-type]

    def freeze(self, *, stage: int, at_step: int, phase: Phase, for_s: float, **more: object) -> Faults:
        """The process stands still, then goes on as if nothing had been."""
        return self.add(Strike("freeze", stage, at_step, phase, for_s=for_s, **more))  # type: ignore[arg-type]

    def restart(self, *, stage: int, at_step: int, phase: Phase, for_s: float, **more: object) -> Faults:
        """The process is gone and comes back as the next incarnation, knowing nothing."""
        return self.add(Strike("restart", stage, at_step, phase, for_s=for_s, **more))  # type: ignore[arg-type]

    def add(self, strike: Strike) -> Faults:
        """One more strike."""
        self.strikes.append(strike)
        self._armed.append(strike)
        return self

    def duplicate(self, probability: float) -> Faults:
        """Messages and payloads arrive twice with this probability."""
        self.weather.duplicate = probability
        return self

    def reorder(self, probability: float) -> Faults:
        """Messages and payloads are overtaken with this probability."""
        self.weather.reorder = probability
        return self

    def cut(self, link: tuple[PeerId, PeerId], during: tuple[float, float]) -> Faults:
        """Nothing passes between two peers for a time."""
        return self.part(link[:1], link[1:], during)

    def part(self, one: Collection[PeerId], other: Collection[PeerId], during: tuple[float, float]) -> Faults:
        """Nothing passes between the two sides for a time."""
        self.weather.cuts.append(Cut(frozenset(one), frozenset(other), *during))
        return self

    @property
    def armed(self) -> bool:
        """Whether a strike is still to come."""
        return bool(self._armed)

    def spring(self) -> Strike | None:
        """The strike that is still to come, if there is one; it counts as fired."""
        strike = self._armed.pop() if self._armed else None
        if strike:
            self.fired[strike.kind] += 1
        return strike

    def disarm(self) -> None:
        """What has not come until now does not come any more."""
        self._armed.clear()

    def strike(self, command: Command, rank_at: Callable[[int], int]) -> Strike | None:
        """The strike that hits the node which is about to carry out `command`. `rank_at(stage)` is the node's place among the
        active replicas of the stage, -1 if it is none."""
        point = _phase_of(command)
        if point is None:
            return None
        phase, stage, step = point
        for strike in self._armed:
            if strike.phase != phase or step < strike.at_step:
                continue
            if strike.stage != COORDINATOR and (
                rank_at(strike.stage) != strike.replica or stage not in (strike.stage, COORDINATOR)
            ):
                continue
            self._passed[strike] += 1
            if self._passed[strike] > strike.skip:
                self._armed.remove(strike)
                self.fired[strike.kind] += 1
                return strike
        return None

    def assert_fired(self) -> None:
        """Each strike struck, and weather that was asked for was had."""
        assert not self._armed, f"never fired: {'; '.join(map(str, self._armed))}"
        weather = self.weather
        for name, wanted, had in (
            ("duplicate", weather.duplicate, weather.num_duplicates),
            ("reorder", weather.reorder, weather.num_reorders),
            ("cut", float(len(weather.cuts)), weather.taken.total()),
        ):
            assert not wanted or had, f"{name} was asked for and never happened"


_OPS: dict[str, Phase] = {
    "embed": "forward",
    "forward": "forward",
    "head": "head",
    "backward": "backward",
    "embed_backward": "backward",
}


def _phase_of(command: Command) -> tuple[Phase, int, int] | None:
    """(phase, stage, step) that a command belongs to; stage -1 where it belongs to none."""
    if isinstance(command, Compute):
        work = command.work
        return None if work.evaluate or work.op == "redundant" else (_OPS[work.op], work.stage, work.step)
    if isinstance(command, Reduce):
        return "reduce", command.stage, command.step
    if isinstance(command, Apply):
        return "apply", command.stage, command.step
    if isinstance(command, Note) and command.type in ("accumulated", "reduced"):
        return command.type, command.fields["stage"], command.fields["step"]  # type: ignore[return-value]
    return _phase_of_message(command) if isinstance(command, SendMessage) else None


def _phase_of_message(command: SendMessage) -> tuple[Phase, int, int] | None:
    message = command.message
    if isinstance(message, Propose | Decide):
        phase: Phase = "propose" if isinstance(message, Propose) else "decide"
        return (phase, COORDINATOR, message.record.step) if isinstance(message.record, Commit) else None
    if isinstance(message, OpenStep | StartReduce):
        phase = "open" if isinstance(message, OpenStep) else "start"
        return phase, COORDINATOR, message.step
    return None
