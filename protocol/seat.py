"""One stage that this node holds: the transitions of its part of a step.

CREATING -> IDLE -> WORKING -> READY -> REDUCING -> REDUCED -> APPLYING -> IDLE; a void leads back to IDLE from WORKING up to
REDUCED. A passive replica skips WORKING. A learner is LEARNING until it takes part. The seat knows nothing of ballots, rosters
or the coordinator: `NodeState` feeds it with what belongs to its open attempt and sends on what it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from protocol.attempt import Attempt, Incoming
from protocol.commands import (
    Command,
    Compute,
    Discard,
    Note,
    Reduce,
    ReduceMember,
    Release,
    SendPayload,
    StopReduce,
    Work,
)
from protocol.events import ComputeDone, Reduced
from protocol.ids import PeerId, StateId, bitmap
from protocol.messages import OpenStep, PipeHeader, PipeKind, ReducedReport, ReduceReady, SeatWork, StartReduce
from protocol.records import Role
from protocol.revoking import Counted

__all__ = ["Attempt", "Incoming", "Seat", "SeatPhase", "SeatState"]


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


class Seat:
    """See the module. Methods return commands; a call that does not fit the phase is the caller's defect unless said."""

    def __init__(self, state: SeatState, me: PeerId, max_in_flight: int, tokens_per_microbatch: int) -> None:
        self.state = state
        self.phase = SeatPhase.CREATING
        self.attempt: Attempt | None = None
        self.latency_s = 0.0
        """Stage 0: slowest way of a microbatch through the pipe and back, forgotten by 10 % per microbatch."""
        self.contributors: dict[PeerId, str] = {}
        """Who computed which microbatches (bitmap) of the gradient that was summed last."""
        self.keeps_gradients = 0
        """How many reduced gradients are kept for learners."""
        self._me = me
        self._max_in_flight = max_in_flight
        self._tokens = tokens_per_microbatch

    @property
    def settled(self) -> bool:
        """May a new step be opened here?"""
        return self.phase not in (SeatPhase.CREATING, SeatPhase.LEARNING, SeatPhase.APPLYING)

    def open(self, step: OpenStep, work: SeatWork, now: float, spare: Collection[int] = ()) -> list[Command]:
        """Begin an attempt; an open one is discarded first. `spare`: stages, of those next to this one, that have more than one
        active replica."""
        assert self.settled, f"stage {self.state.stage} cannot open a step while {self.phase}"
        out = self.void()
        self.state.role, self.state.generation = work.role, work.generation
        routes = {r.microbatch: r for r in step.routes} if self.state.stage == 0 else {}
        taken, helped = frozenset(work.taken), frozenset(work.helped)
        self.attempt = Attempt(step, work.microbatches, routes, taken, helped, spare, sum_number=work.sum_number)
        self.attempt.lead(step.detours)
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
        released = [Release(handle) for handle in attempt.held()]
        return [*released, Discard(self.state.stage, attempt.open.step, attempt.open.attempt)]

    def begin_applying(self) -> list[Command]:
        """The step is decided. What is still computed for others, or kept for them, is of no use any more."""
        attempt, self.phase = self._open(), SeatPhase.APPLYING
        return [Release(handle) for handle in attempt.held()]

    # ---- amendments ----

    def misfit(self, work: SeatWork) -> str:
        """'' if the open attempt can be amended so, else why not."""
        attempt = self._open()
        sums = self.phase in (SeatPhase.REDUCING, SeatPhase.REDUCED) and work.sum_number == attempt.sum_number
        if sums and {*work.microbatches, *work.taken} != {*attempt.accumulated}:
            return f"the sum of stage {self.state.stage} has begun"
        return attempt.misfit(work)

    def amend(self, step: OpenStep, work: SeatWork, now: float) -> list[Command]:
        """Work was given to others, or to this seat; `misfit` must have nothing against it. What is accumulated stays."""
        attempt = self._open()
        attempt.open, attempt.order = step, work.microbatches
        attempt.taken, attempt.helped = frozenset(work.taken), frozenset(work.helped)
        if self.state.stage == 0:
            attempt.routes = {r.microbatch: r for r in step.routes}
        out = self._sum_anew(work.sum_number) if work.sum_number > attempt.sum_number else []
        if self.phase is SeatPhase.READY and work.role == "active":
            self.phase = SeatPhase.WORKING
        self._check_ready()
        attempt.admitted_at = dict.fromkeys(attempt.admitted_at, now)  # others may have waited for what was lost
        for header, handle in attempt.lead(step.detours):
            out += self._send(header, handle)
        return out + self._admit(now)

    def _sum_anew(self, number: int) -> list[Command]:
        """One that brought something into the stage's sum is lost before all others had it. What is accumulated here stays."""
        attempt = self._open()
        attempt.sum_number, attempt.summed, attempt.reduced = number, {}, None
        if self.phase in (SeatPhase.REDUCING, SeatPhase.REDUCED):
            self.phase = SeatPhase.READY
        return [StopReduce(self.state.stage, attempt.open.step, attempt.open.attempt, number)]

    def revoke(self) -> tuple[list[Command], Counted]:
        """Accumulate no more than what is begun; returns what that is."""
        attempt = self._open()
        released = _released(attempt.keep())
        self._check_ready()
        return released, Counted(self.state.stage, bitmap(m for _, m in attempt.counted))

    # ---- payloads ----

    def _admit(self, now: float) -> list[Command]:
        """Stage 0: start microbatches up to the bound. Flow control of the whole swarm is here and nowhere else."""
        attempt = self._open()
        out: list[Command] = []
        while attempt.routes and attempt.in_flight < self._max_in_flight:
            microbatch = attempt.next_to_admit()
            if microbatch is None:
                break
            attempt.in_flight += 1
            attempt.admitted_at[microbatch] = now
            o, route = attempt.open, attempt.routes[microbatch]
            header = PipeHeader(o.ballot, o.step, o.attempt, o.parent, "forward", 0, route)
            out += self._start("embed", Incoming(header, 0, self._me), True)
        return out

    def take(self, incoming: Incoming) -> list[Command]:
        """A payload of the open attempt for this stage. Repeated and unowned ones are released."""
        attempt, header = self._open(), incoming.header
        op, microbatch = self._op_of(header), header.route.microbatch
        if (op, microbatch) in attempt.seen or not self._is_possible(microbatch):
            return [Release(incoming.handle)]
        attempt.seen.add((op, microbatch))
        if op == "forward":
            return self._start(op, incoming, True)
        attempt.waiting[op, microbatch] = incoming
        return self._take_back(op, microbatch)

    def _is_possible(self, microbatch: int) -> bool:
        """A seat that has all that it owns works on for others only."""
        attempt = self._open()
        done = self.phase in (SeatPhase.READY, SeatPhase.REDUCING, SeatPhase.REDUCED)
        fits = attempt.may_pass(microbatch)
        return fits and (self.phase is SeatPhase.WORKING or (done and microbatch in attempt.helped))

    def _take_back(self, op: str, microbatch: int) -> list[Command]:
        """What comes back waits for the forward pass here: it may come first where work was taken over. What is accumulated in
        its turn waits for that as well."""
        attempt = self._open()
        if microbatch not in attempt.went_on or (op, microbatch) not in attempt.waiting:
            return []
        if microbatch in attempt.order:
            return self._next_turn("head" if op == "head" else "backward")
        return self._start(op, attempt.waiting.pop((op, microbatch)), microbatch in attempt.taken)

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
            microbatch = attempt.order[attempt.turns[lane]]
            if microbatch not in attempt.went_on or (op, microbatch) not in attempt.waiting:
                break
            attempt.turns[lane] += 1
            out += self._start(op, attempt.waiting.pop((op, microbatch)), True)
        return out

    def _start(self, op: str, incoming: Incoming, accumulate: bool) -> list[Command]:
        attempt, header = self._open(), incoming.header
        microbatch = header.route.microbatch
        attempt.computing[op, microbatch] = Incoming(header, incoming.handle, incoming.peer, accumulate)
        if accumulate and op in ("head", "backward", "embed_backward"):
            attempt.counted.add((op, microbatch))
        work = Work(
            op,  # type: ignore[arg-type]
            self.state.stage,
            header.step,
            header.attempt,
            microbatch,
            accumulate=accumulate,
        )
        return [Compute(work, incoming.handle, incoming.peer)]

    def computed(self, done: ComputeDone, now: float) -> list[Command]:
        """A computation of the open attempt ended; a repeated or stale outcome only releases what it made."""
        attempt, work = self._open(), done.work
        incoming = attempt.computing.pop((work.op, work.microbatch), None)
        if incoming is None:
            return [Release(done.handle)] if done.handle else []
        attempt.busy_s += done.seconds
        out: list[Command] = [Release(incoming.handle)] if incoming.handle else []
        out += self._pass_on(done, incoming.header)
        if work.op in ("embed", "forward"):
            attempt.went_on.add(work.microbatch)
            out += self._take_back("backward", work.microbatch)
        if work.op == "head" and incoming.accumulate:
            attempt.loss_sum += done.loss_sum
            attempt.tokens += done.tokens
        if work.op in ("backward", "embed_backward"):
            out += self._came_back(incoming.header, incoming.accumulate, now)
        return out

    def _pass_on(self, done: ComputeDone, header: PipeHeader) -> list[Command]:
        """To the next stage. What may have to be sent once more, to another replica, is kept until the step is over."""
        if not done.handle:
            return []
        forward = done.work.op in ("embed", "forward")
        hop = header.hop + 1 if forward else header.hop - 1
        kind: PipeKind = "forward" if forward else "backward"
        where = header.ballot, header.step, header.attempt, header.parent
        out = self._send(PipeHeader(*where, kind, hop, header.route), done.handle)
        return out if (kind, done.work.microbatch) in self._open().sent else [*out, Release(done.handle)]

    def _send(self, header: PipeHeader, handle: int) -> list[Command]:
        attempt = self._open()
        route = attempt.around(header.route)
        onward = header if route is header.route else replace(header, route=route)
        hop = onward.route.hops[onward.hop]
        if hop.stage in attempt.spare:
            attempt.sent[onward.kind, onward.route.microbatch] = onward, handle
        return [SendPayload(hop.peer, onward, handle)]

    def _came_back(self, header: PipeHeader, accumulated: bool, now: float) -> list[Command]:
        """The gradient of a microbatch went through this seat: what was its room is free for the next one."""
        attempt, microbatch = self._open(), header.route.microbatch
        if microbatch in attempt.admitted_at:
            attempt.in_flight -= 1
            self.latency_s = max(now - attempt.admitted_at.pop(microbatch), 0.9 * self.latency_s)
        out: list[Command] = []
        if accumulated:
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
        if self.phase is SeatPhase.WORKING and len(attempt.accumulated) == attempt.num_owned:
            self.phase = SeatPhase.READY

    def reduce(self, start: StartReduce, members: tuple[ReduceMember, ...]) -> list[Command]:
        """Everybody is ready: sum over these. A repeated start is ignored, and that of another sum."""
        if self.phase is not SeatPhase.READY or start.sum_number != self._open().sum_number:
            return []
        self.phase = SeatPhase.REDUCING
        self._open().summed = {row.member.peer: row.microbatches for row in members if row.role == "active"}
        return [Reduce(start.ballot, start.stage, start.step, start.attempt, members, start.sum_number)]

    def reduced(self, done: Reduced) -> list[Command]:
        """The sum is here, unless it was given up."""
        if self.phase is not SeatPhase.REDUCING or done.sum_number != self._open().sum_number:
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
            per = 0.0 if o.amendment else attempt.busy_s / max(1, len(attempt.order))
            bits = bitmap(attempt.accumulated)
            return ReduceReady(o.ballot, o.step, o.attempt, stage, bits, attempt.loss_sum, attempt.tokens, per)
        if self.phase is SeatPhase.REDUCED:
            assert attempt.reduced, "a reduced seat holds its result"
            result = attempt.reduced
            where = o.ballot, o.step, o.attempt, stage
            return ReducedReport(*where, result.digest, result.squared_norm, attempt.sum_number)
        return None

    def slow(self, seconds_per_microbatch: float, least_s: float) -> ReduceReady | None:
        """What it has accumulated so far, if at this pace the rest takes longer than `least_s`."""
        attempt, o = self._open(), self._open().open
        left = attempt.num_owned - len(attempt.accumulated)
        if self.phase is not SeatPhase.WORKING or left * seconds_per_microbatch <= least_s:
            return None
        bits = bitmap(attempt.accumulated)
        return ReduceReady(o.ballot, o.step, o.attempt, self.state.stage, bits, 0.0, 0, seconds_per_microbatch)

    def oldest_in_flight(self) -> tuple[int, float] | None:
        """Stage 0: (microbatch, time of its admission) of the one that is longest on its way."""
        if self.attempt is None or not self.attempt.admitted_at:
            return None
        since, microbatch = min((t, m) for m, t in self.attempt.admitted_at.items())
        return microbatch, since

    def _open(self) -> Attempt:
        assert self.attempt is not None, f"stage {self.state.stage} has no open attempt"
        return self.attempt


def _released(held: Iterable[Incoming]) -> list[Command]:
    return [Release(incoming.handle) for incoming in held if incoming.handle]
