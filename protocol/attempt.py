"""What a seat holds and remembers in one attempt at a step.

A microbatch may come through more than once: each way along which it is led has a number (`Route.replay`), and only the newest
one that is known here goes on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.events import Reduced
from protocol.ids import PeerId
from protocol.messages import OpenStep, PipeHeader, Route, SeatWork


@dataclass(slots=True)
class Incoming:
    """A payload that waits for its turn or is being computed on."""

    header: PipeHeader
    handle: int
    peer: PeerId
    accumulate: bool = False
    """Once it is computed on: whether it enters the seat's gradient."""


@dataclass(slots=True)
class Attempt:
    """See the module. `order`, `taken` and `helped` are those of `SeatWork`; `routes` those of a stage-0 seat."""

    open: OpenStep
    order: tuple[int, ...]
    routes: dict[int, Route]
    taken: frozenset[int] = frozenset()
    helped: frozenset[int] = frozenset()
    admitted: int = 0
    in_flight: int = 0
    again: deque[int] = field(default_factory=deque)
    """Stage 0: came back and have to go once more, as soon as there is room."""
    came_back: set[int] = field(default_factory=set)
    """Stage 0: along one way or another; every seat that owned one of these then has accumulated it."""
    seen: set[tuple[str, int, int]] = field(default_factory=set)
    newest: dict[int, int] = field(default_factory=dict)
    """Number of the newest way of a microbatch; 0 where nothing is said."""
    went_on: dict[int, int] = field(default_factory=dict)
    """Ways on which the embed or forward pass is done here: nothing comes back along others."""
    counted: set[tuple[str, int]] = field(default_factory=set)
    """(op, microbatch): in the seat's gradient, or on its way into it."""
    turns: dict[str, int] = field(default_factory=lambda: {"head": 0, "backward": 0})
    waiting: dict[tuple[str, int], Incoming] = field(default_factory=dict)
    computing: dict[tuple[str, int, int], Incoming] = field(default_factory=dict)
    admitted_at: dict[int, float] = field(default_factory=dict)
    accumulated: list[int] = field(default_factory=list)
    loss_sum: float = 0.0
    tokens: int = 0
    busy_s: float = 0.0
    summed: dict[PeerId, str] = field(default_factory=dict)
    """Who brings which microbatches (bitmap) into the stage's sum, once that has begun."""
    reduced: Reduced | None = None

    @property
    def num_owned(self) -> int:
        """How many microbatches enter the seat's gradient."""
        return len(self.order) + len(self.taken)

    def may_pass(self, microbatch: int) -> bool:
        """Is the microbatch computed here, for whatever gradient?"""
        return microbatch in self.order or microbatch in self.taken or microbatch in self.helped

    def begin_way(self, microbatch: int, number: int) -> list[Incoming]:
        """A payload on this way is here. What waits of an earlier one is of no use any more, and is returned."""
        if number <= self.newest.get(microbatch, 0):
            return []
        self.newest[microbatch] = number
        stale = [key for key in self.waiting if key[1] == microbatch]
        return [self.waiting.pop(key) for key in stale]

    def next_to_admit(self) -> int | None:
        """Stage 0: which microbatch goes next; None if none is left. Those that were lost first: others may wait for them."""
        while self.again:
            microbatch = self.again.popleft()
            if microbatch not in self.admitted_at:
                return microbatch
        if self.admitted == len(self.order):
            return None
        self.admitted += 1
        return self.order[self.admitted - 1]

    def accumulate_at(self, microbatch: int) -> tuple[int, ...] | None:
        """Stage 0: which stages may miss the microbatch. One that came back is missing at most where it was lost since; of one
        that did not, each seat knows for itself."""
        if microbatch not in self.came_back:
            return None
        return next((again.stages for again in self.open.again if again.microbatch == microbatch), None)

    def lead(self, step: OpenStep) -> list[int]:
        """Stage 0: take in the ways of an amendment. Returns those on their way, which begin again at once."""
        restart, lost = [], {again.microbatch for again in step.again}
        for route in step.routes:
            microbatch, before = route.microbatch, self.routes.get(route.microbatch)
            if before is None or route.replay <= before.replay:
                continue
            self.routes[microbatch] = route
            if microbatch in self.admitted_at:
                restart.append(microbatch)
            elif microbatch in lost and microbatch in self.came_back and microbatch not in self.again:
                self.again.append(microbatch)
        return restart

    def keep(self) -> list[Incoming]:
        """Nothing more is accumulated than what is already, or being computed. Returns what waits in vain."""
        mine = {microbatch for _, microbatch in self.counted}
        self.order = self.order[: self.turns["backward"]]
        self.taken, self.helped = self.taken & mine, frozenset()
        waiting, self.waiting = list(self.waiting.values()), {}
        return waiting

    def misfit(self, work: SeatWork) -> str:
        """'' if an amendment's work leaves what is accumulated where it is, else what is wrong."""
        turn, mine = self.turns["backward"], {microbatch for _, microbatch in self.counted}
        if work.microbatches[:turn] != self.order[:turn] or not mine <= {*work.microbatches, *work.taken}:
            return f"stage {work.stage} has accumulated {sorted(mine)} already, which are not in its work any more"
        return ""
