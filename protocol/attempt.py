"""What a seat holds and remembers in one attempt at a step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from protocol.events import Reduced
from protocol.ids import PeerId, members_of
from protocol.messages import Hop, OpenStep, PipeHeader, Route, SeatWork
from protocol.revoking import Detour

GRADIENT_OPS = ("backward", "embed_backward")


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
    spare: Collection[int] = ()
    """Stages with more than one active replica: what is sent to one of them may have to be sent to another one."""
    admitted: int = 0
    in_flight: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    """(op, microbatch) of the payloads that were taken: whichever comes first counts, however often it is sent."""
    went_on: set[int] = field(default_factory=set)
    """Microbatches of which the embed or forward pass is done here."""
    counted: set[tuple[str, int]] = field(default_factory=set)
    """(op, microbatch): in the seat's gradient, or on its way into it."""
    turns: dict[str, int] = field(default_factory=lambda: {"head": 0, "backward": 0})
    waiting: dict[tuple[str, int], Incoming] = field(default_factory=dict)
    """For their turn, or for the forward pass before them."""
    computing: dict[tuple[str, int], Incoming] = field(default_factory=dict)
    sent: dict[tuple[str, int], tuple[PipeHeader, int]] = field(default_factory=dict)
    """By (kind, microbatch): header and handle of what went to a stage that has a replica to spare, until the step is over."""
    detours: dict[tuple[int, int], Detour] = field(default_factory=dict)
    """By (stage, microbatch)."""
    admitted_at: dict[int, float] = field(default_factory=dict)
    accumulated: list[int] = field(default_factory=list)
    loss_sum: float = 0.0
    tokens: int = 0
    busy_s: float = 0.0
    sum_number: int = 0
    summed: dict[PeerId, str] = field(default_factory=dict)
    """Who brings which microbatches (bitmap) into the stage's sum, once that has begun."""
    reduced: Reduced | None = None

    @property
    def num_owned(self) -> int:
        """How many microbatches enter the seat's gradient."""
        return len(self.order) + len(self.taken)

    def owns(self, microbatch: int) -> bool:
        """Does it enter the seat's gradient?"""
        return microbatch in self.order or microbatch in self.taken

    def may_pass(self, microbatch: int) -> bool:
        """Is the microbatch computed here, for whatever gradient?"""
        return self.owns(microbatch) or microbatch in self.helped

    def next_to_admit(self) -> int | None:
        """Stage 0: which microbatch goes next; None if none is left."""
        if self.admitted == len(self.order):
            return None
        self.admitted += 1
        return self.order[self.admitted - 1]

    def held(self) -> Iterable[int]:
        """Handles of all that is kept here; nothing is afterwards."""
        incoming = [*self.waiting.values(), *self.computing.values()]
        handles = [x.handle for x in incoming if x.handle] + [handle for _, handle in self.sent.values()]
        self.waiting, self.computing, self.sent = {}, {}, {}
        return handles

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

    # ---- detours ----

    def lead(self, detours: Iterable[Detour]) -> list[tuple[PipeHeader, int]]:
        """Take in where microbatches pass now. Returns what is to be sent once more, headers and handles: what the new replica
        cannot have, and needs."""
        out = []
        for detour in detours:
            for microbatch in members_of(detour.microbatches):
                key = detour.stage, microbatch
                known = self.detours.get(key)
                if known is None or known.amendment < detour.amendment:
                    self.detours[key] = detour
                    out += [sent for sent in self._sent_there(*key) if detour.whole or self._is_missed(sent[0])]
        return out

    def _sent_there(self, stage: int, microbatch: int) -> list[tuple[PipeHeader, int]]:
        kept = [self.sent[key] for kind in ("forward", "backward") if (key := (kind, microbatch)) in self.sent]
        return [(header, handle) for header, handle in kept if header.route.hops[header.hop].stage == stage]

    def _is_missed(self, header: PipeHeader) -> bool:
        """Does nothing show yet that the next stage was done with it? A gradient shows that, one that goes back nothing."""
        microbatch = header.route.microbatch
        return header.kind == "backward" or not any((op, microbatch) in self.seen for op in GRADIENT_OPS)

    def around(self, route: Route) -> Route:
        """The route, as far as it is known here to lead around somebody."""
        ways = {stage: detour for (stage, m), detour in self.detours.items() if m == route.microbatch}
        if not ways:
            return route
        hops = tuple(Hop(hop.stage, ways[hop.stage].peer) if hop.stage in ways else hop for hop in route.hops)
        return replace(route, hops=hops, amendment=max(route.amendment, *(d.amendment for d in ways.values())))
