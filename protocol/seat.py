"""One stage that this node holds: the transitions of its part of a step.

CREATING -> IDLE -> WORKING -> READY -> REDUCING -> REDUCED -> APPLYING -> IDLE; a void leads back to IDLE from WORKING up to
REDUCED. A passive replica skips WORKING. A learner is LEARNING until it takes part. The seat knows nothing of ballots, rosters
or the coordinator: `NodeState` feeds it with what belongs to its open attempt and sends on what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from protocol.commands import Command, Compute, Discard, Note, Reduce, Release, SendPayload, Work
from protocol.events import ComputeDone, Reduced
from protocol.ids import PeerId, StateId, bitmap
from protocol.messages import OpenStep, PipeHeader, PipeKind, ReducedReport, ReduceReady, Route, SeatWork, StartReduce
from protocol.records import Role


class SeatPhase(StrEnum):
    """Where a seat stands in a step."""

    CREATING = "creating"
    LEARNING = "learning"
    IDLE = "idle"
    WORKING = "working"
    READY = "ready"
    REDUCING = "reducing"
    REDUCED = "reduced"
    APPLYING = "applying"


@dataclass(slots=True)
class Incoming:
    """A payload that waits for its turn or is being computed on."""

    header: PipeHeader
    handle: int
    peer: PeerId


@dataclass(slots=True)
class SeatState:
    """The facts about a seat that outlive a step."""

    stage: int
    role: Role
    generation: int
    state_id: StateId
    digest: str = ""
    step: int = 0
    optimizer_age: int = 0
    lr_factor: float = 1.0
    provenance: dict[str, object] = field(default_factory=lambda: {"rung": "seed"})


@dataclass(slots=True)
class Attempt:
    """What a seat does in one attempt at a step."""

    open: OpenStep
    order: tuple[int, ...]
    routes: dict[int, Route]
    admitted: int = 0
    in_flight: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    went_on: set[int] = field(default_factory=set)
    """Microbatches whose embed or forward pass is done here: nothing comes back of others."""
    turns: dict[str, int] = field(default_factory=lambda: {"head": 0, "backward": 0})
    waiting: dict[tuple[str, int], Incoming] = field(default_factory=dict)
    computing: dict[tuple[str, int], Incoming] = field(default_factory=dict)
    admitted_at: dict[int, float] = field(default_factory=dict)
    accumulated: list[int] = field(default_factory=list)
    loss_sum: float = 0.0
    tokens: int = 0
    busy_s: float = 0.0
    reduced: Reduced | None = None


class Seat:
    """See the module. Methods return commands; a call that does not fit the phase is the caller's defect unless said."""

    def __init__(self, state: SeatState, me: PeerId, max_in_flight: int, tokens_per_microbatch: int) -> None:
        self.state = state
        self.phase = SeatPhase.CREATING
        self.attempt: Attempt | None = None
        self.latency_s = 0.0
        """Stage 0: slowest way of a microbatch through the pipe and back, forgotten by 10 % per microbatch."""
        self.contributors: dict[PeerId, str] = {}
        """Who computed which microbatches (bitmap) of the step that is being applied."""
        self.keeps_gradients = 0
        """How many reduced gradients are kept for learners."""
        self._me = me
        self._max_in_flight = max_in_flight
        self._tokens = tokens_per_microbatch

    @property
    def settled(self) -> bool:
        """May a new step be opened here?"""
        return self.phase not in (SeatPhase.CREATING, SeatPhase.LEARNING, SeatPhase.APPLYING)

    def open(self, step: OpenStep, work: SeatWork, now: float) -> list[Command]:
        """Begin an attempt; an open one is discarded first."""
        assert self.settled, f"stage {self.state.stage} cannot open a step while {self.phase}"
        out = self.void()
        self.state.role, self.state.generation = work.role, work.generation
        routes = {r.microbatch: r for r in step.routes} if self.state.stage == 0 else {}
        self.attempt = Attempt(step, work.microbatches, routes)
        self.phase = SeatPhase.WORKING if work.role == "active" else SeatPhase.READY
        self._check_ready()
        return out + self._admit(now)

    def void(self) -> list[Command]:
        """Forget the open attempt, if there is one, with all that it holds."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return []
        assert self.phase is not SeatPhase.APPLYING, "a decided step cannot be voided"
        self.phase = SeatPhase.IDLE
        held = [*attempt.waiting.values(), *attempt.computing.values()]
        released: list[Command] = [Release(i.handle) for i in held if i.handle]
        return [*released, Discard(self.state.stage, attempt.open.step, attempt.open.attempt)]

    def _admit(self, now: float) -> list[Command]:
        """Stage 0: start microbatches up to the bound. Flow control of the whole swarm is here and nowhere else."""
        attempt = self._open()
        out: list[Command] = []
        while attempt.routes and attempt.admitted < len(attempt.order) and attempt.in_flight < self._max_in_flight:
            microbatch = attempt.order[attempt.admitted]
            attempt.admitted += 1
            attempt.in_flight += 1
            attempt.admitted_at[microbatch] = now
            header = self._header("forward", 0, attempt.routes[microbatch])
            out += self._start("embed", Incoming(header, 0, self._me))
        return out

    def _header(self, kind: PipeKind, hop: int, route: Route, at: tuple[int, ...] | None = None) -> PipeHeader:
        o = self._open().open
        return PipeHeader(o.ballot, o.step, o.attempt, o.parent, kind, hop, route, at)

    def take(self, incoming: Incoming) -> list[Command]:
        """A payload of the open attempt for this stage. Repeated and unowned ones, and what cannot have come back yet, are
        released."""
        attempt, header = self._open(), incoming.header
        op, microbatch = self._op_of(header), header.route.microbatch
        key = (op, microbatch)
        possible = microbatch in (attempt.order if op == "forward" else attempt.went_on)
        if self.phase is not SeatPhase.WORKING or key in attempt.seen or not possible:
            return [Release(incoming.handle)]
        attempt.seen.add(key)
        if op == "forward":
            return self._start(op, incoming)
        attempt.waiting[key] = incoming
        return self._next_turn("head" if op == "head" else "backward")

    def _op_of(self, header: PipeHeader) -> str:
        if header.kind == "backward":
            return "embed_backward" if header.hop == 0 else "backward"
        return "head" if header.hop == len(header.route.hops) - 1 else "forward"

    def _next_turn(self, lane: str) -> list[Command]:
        """Gradients are accumulated in the order of the assignment, whatever order they arrive in: so that a run's bits do
        not depend on timing. No deadlock: the lowest microbatch never waits, and forward passes wait for nobody."""
        attempt = self._open()
        out: list[Command] = []
        op = "head" if lane == "head" else "backward" if self.state.stage else "embed_backward"
        while attempt.turns[lane] < len(attempt.order):
            incoming = attempt.waiting.pop((op, attempt.order[attempt.turns[lane]]), None)
            if incoming is None:
                break
            attempt.turns[lane] += 1
            out += self._start(op, incoming)
        return out

    def _start(self, op: str, incoming: Incoming) -> list[Command]:
        attempt, header = self._open(), incoming.header
        attempt.computing[op, header.route.microbatch] = incoming
        work = Work(
            op,  # type: ignore[arg-type]
            self.state.stage,
            header.step,
            header.attempt,
            header.route.microbatch,
            accumulate=self._counts(header),
        )
        return [Compute(work, incoming.handle, incoming.peer)]

    def computed(self, done: ComputeDone, now: float) -> list[Command]:
        """A computation of the open attempt ended; a repeated or stale outcome only releases what it made."""
        attempt = self._open()
        incoming = attempt.computing.pop((done.work.op, done.work.microbatch), None)
        if incoming is None:
            return [Release(done.handle)] if done.handle else []
        attempt.busy_s += done.seconds
        out: list[Command] = [Release(incoming.handle)] if incoming.handle else []
        out += self._pass_on(done, incoming.header)
        if done.work.op in ("embed", "forward"):
            attempt.went_on.add(done.work.microbatch)
        if done.work.op == "head" and self._counts(incoming.header):
            attempt.loss_sum += done.loss_sum
            attempt.tokens += done.tokens
        if done.work.op in ("backward", "embed_backward"):
            out += self._came_back(incoming.header, now)
        return out

    def _counts(self, header: PipeHeader) -> bool:
        """Does the microbatch enter this stage's gradient? A replay that is meant for other stages does not."""
        return header.accumulate_at is None or self.state.stage in header.accumulate_at

    def _pass_on(self, done: ComputeDone, header: PipeHeader) -> list[Command]:
        if not done.handle:
            return []
        forward = done.work.op in ("embed", "forward")
        hop = header.hop + 1 if forward else header.hop - 1
        onward = self._header("forward" if forward else "backward", hop, header.route, header.accumulate_at)
        return [SendPayload(header.route.hops[hop].peer, onward, done.handle), Release(done.handle)]

    def _came_back(self, header: PipeHeader, now: float) -> list[Command]:
        """The gradient of a microbatch went through this seat: what was its room is free for the next one."""
        attempt, microbatch = self._open(), header.route.microbatch
        admitted_at = attempt.admitted_at.pop(microbatch, None)
        if admitted_at is not None:
            attempt.in_flight -= 1
            self.latency_s = max(now - admitted_at, 0.9 * self.latency_s)
        out: list[Command] = []
        if self._counts(header):
            attempt.accumulated.append(microbatch)
            fields = {"stage": self.state.stage, "microbatch": microbatch, "tokens": self._tokens}
            out.append(Note("accumulated", fields | self._where()))
        self._check_ready()
        return [*out, *self._admit(now)]

    def _where(self) -> dict[str, object]:
        o = self._open().open
        return {"ballot": [o.ballot.term, o.ballot.peer], "step": o.step, "attempt": o.attempt}

    def _check_ready(self) -> None:
        attempt = self._open()
        if self.phase is SeatPhase.WORKING and len(attempt.accumulated) == len(attempt.order):
            self.phase = SeatPhase.READY

    def reduce(self, start: StartReduce) -> list[Command]:
        """Everybody is ready: sum. A repeated start is ignored."""
        if self.phase is not SeatPhase.READY:
            return []
        self.phase = SeatPhase.REDUCING
        return [Reduce(start.ballot, start.stage, start.step, start.attempt, start.members)]

    def reduced(self, done: Reduced) -> list[Command]:
        """The sum is here."""
        if self.phase is not SeatPhase.REDUCING:
            return []
        self.phase = SeatPhase.REDUCED
        self._open().reduced = done
        fields = {"stage": done.stage, "digest": done.digest, "squared_norm": done.squared_norm}
        return [Note("reduced", fields | self._where())]

    def report(self) -> ReduceReady | ReducedReport | None:
        """What the coordinator should know of the open attempt now; None if nothing."""
        attempt = self.attempt
        if attempt is None:
            return None
        o, stage = attempt.open, self.state.stage
        if self.phase is SeatPhase.READY and self.state.role == "active":
            bits, per = bitmap(attempt.accumulated), attempt.busy_s / max(1, len(attempt.order))
            return ReduceReady(o.ballot, o.step, o.attempt, stage, bits, attempt.loss_sum, attempt.tokens, per)
        if self.phase is SeatPhase.REDUCED:
            assert attempt.reduced, "a reduced seat holds its result"
            result = attempt.reduced
            return ReducedReport(o.ballot, o.step, o.attempt, stage, result.digest, result.squared_norm)
        return None

    def oldest_in_flight(self) -> tuple[int, float] | None:
        """Stage 0: (microbatch, time of its admission) of the one that is longest on its way."""
        if self.attempt is None or not self.attempt.admitted_at:
            return None
        since, microbatch = min((t, m) for m, t in self.attempt.admitted_at.items())
        return microbatch, since

    def _open(self) -> Attempt:
        assert self.attempt is not None, f"stage {self.state.stage} has no open attempt"
        return self.attempt
