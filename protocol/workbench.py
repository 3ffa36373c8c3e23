"""What a node works on: its seats, the step that is open at them, payloads that came early, and a running evaluation.

It follows decisions that were already fenced by ballot (`NodeState` does that) and compares everything else, payloads and
outcomes, with the open attempt: what is behind is released, what is ahead is kept until its step is opened here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from protocol.averaging import Averaging
from protocol.chain import Chain
from protocol.checks import STEPS_AHEAD, evaluation_misfit, open_misfit, payload_misfit
from protocol.commands import Apply, Command, Introduce, Note, Release, Say, SendMessage
from protocol.crediting import Credits
from protocol.custody import Custody
from protocol.evaluation import Evaluation
from protocol.events import (
    Applied,
    CommandFailed,
    ComputeDone,
    Learned,
    LearningGoesOn,
    PayloadArrived,
    Reduced,
    SeatCreated,
)
from protocol.ids import NO_BALLOT, Ballot, Member, PeerId, bitmap
from protocol.ledger import norms_agree
from protocol.manifest import Manifest
from protocol.messages import (
    AppliedReport,
    Contact,
    Message,
    OpenEvaluation,
    OpenStep,
    PipeHeader,
    StartReduce,
    VoidStep,
)
from protocol.pace import Pace
from protocol.records import Commit, Rollback, Share, short
from protocol.redundancy import Redundancy
from protocol.repeats import Repeats
from protocol.replica_set import reduce_misfit, spare_near, summands
from protocol.revoking import Revoke, Revoked
from protocol.schedule import gradient_scale, learning_rate
from protocol.seat import Incoming, Seat, SeatPhase
from protocol.shadows import Shadows
from protocol.stalls import Stalls

MAX_ADDRESSES = 8192


class Workbench:
    """See the module. `take` hands over the commands made since the last call."""

    def __init__(self, manifest: Manifest, me: PeerId, chain: Chain) -> None:
        self.custody = Custody(manifest, me, chain, self._emit, self._tell_leader)
        self.seats = self.custody.seats
        self._averaging = Averaging(manifest, me, chain, self.seats, self._emit)
        self.shadows = Shadows(manifest, me, chain, self._emit, self._tell_leader)
        self.open: OpenStep | None = None
        self.leader: PeerId = ""
        self.ballot: Ballot = NO_BALLOT
        self.addresses: dict[PeerId, str] = {}
        self._told: dict[PeerId, Introduce] = {}
        """Of these addresses; most are told again and again."""
        self._manifest, self._me, self._chain = manifest, me, chain
        self._pending: OpenStep | None = None
        self._pending_evaluation: OpenEvaluation | None = None
        self._evaluation: Evaluation | None = None
        self._early: dict[tuple[object, ...], Incoming] = {}
        self._voided: tuple[Ballot, int, int] = (NO_BALLOT, 0, 0)
        self._reported = Repeats(manifest.timing.heartbeat_s)
        """Reports of the seats, by stage."""
        self._stalls = Stalls(manifest.timing)
        self._pace = Pace()
        self._redundancy = Redundancy(manifest, me, self.seats)
        self._out: list[Command] = []
        self.orders: dict[type, Callable[[Any, float], None]] = {
            StartReduce: self.start_reduce,
            VoidStep: self.void,
            Revoke: self.revoke,
            OpenEvaluation: self.ask_evaluation,
        }
        """What the coordinator may ask for once a step is open, or of an evaluation."""

    def take(self) -> list[Command]:
        """Commands made since the last call."""
        out, self._out = self._out, []
        return out

    def _emit(self, command: Command) -> None:
        self._out.append(command)

    def _tell_leader(self, message: Message) -> None:
        if self.leader:
            self._out.append(SendMessage(self.leader, message))

    def introduce(self, contacts: Iterable[Contact]) -> None:
        """Remember where peers are reached."""
        for contact in contacts:
            if contact.peer != self._me and contact.address:
                told = self._told.get(contact.peer)
                if told is None or told.address != contact.address:
                    told = Introduce(contact.peer, contact.address)
                    if contact.peer in self.addresses or len(self.addresses) < MAX_ADDRESSES:
                        self.addresses[contact.peer], self._told[contact.peer] = contact.address, told
                self._out.append(told)

    @property
    def settled(self) -> bool:
        """All seats are made and none is applying an update; learners do not count."""
        return all(seat.settled for seat in self.seats.values() if seat.state.role != "learner")

    # ---- seats ----

    def lacks(self, member: Member) -> bool:
        """Is this node, the member, on the roster with a stage whose state it does not have, nor can get? It leaves as soon as
        it is heard, and leads nobody."""
        stages = {s.stage for s in self._chain.seats_of(member)}
        return not self.seats.keys() >= stages or any(map(self.custody.has_no_donor, stages))

    def roster_changed(self, now: float) -> None:
        """The roster is another: gradients are kept for learners, and what waits may be possible now."""
        self.custody.keep_gradients()
        self.go_on(now)

    def leave_lineage(self, leader: PeerId, why: str) -> None:
        """Forget everything that is open; `leader` coordinates the other one."""
        self.close()
        self.custody.begin_anew(why)
        self._averaging.look()
        self.shadows.leave()
        self.leader, self.ballot = leader, NO_BALLOT
        self._pending = self._pending_evaluation = None
        self._stalls.clear()
        self._voided = (NO_BALLOT, 0, 0)
        self._reported.clear()

    def learning(self, event: LearningGoesOn, _now: float) -> None:
        """The copy of a stage has come so far."""
        self.custody.learning(event, self.ballot)

    def learned(self, event: Learned, now: float) -> None:
        """The whole stage is of one state, and its digest is a donor's."""
        self.custody.learned(event, self.ballot)
        self.go_on(now)

    def roll_back(self, rollback: Rollback) -> None:
        """Everybody goes back to an earlier step (the chain has done so already)."""
        self.close_attempt()
        self._pending = self._pending_evaluation = None
        self._stalls.clear()
        self.custody.roll_back(rollback)

    def created(self, event: SeatCreated, now: float) -> None:
        """Initial weights are made."""
        self.custody.created(event)
        self.go_on(now)

    # ---- a step ----

    def ask_open(self, message: OpenStep, now: float) -> None:
        """Open this step as soon as its parent is the head and all seats are settled; an older or repeated one is ignored."""
        newest, o = self._pending or self.open, self.open
        key = (message.ballot, message.step, message.attempt)
        if key <= self._voided or (newest and (*key, message.amendment) <= _number(newest)):
            return
        if o and key == (o.ballot, o.step, o.attempt):
            self._amend(message, o, now)
            return
        if message.step > self._chain.step:
            self._pending = message
            self.go_on(now)

    def go_on(self, now: float) -> None:
        """Something changed: begin what is pending and possible now; look again at payloads that came early."""
        self._averaging.look()
        self.shadows.look()
        if self.open and self.open.parent != self._chain.head:
            self.close_attempt()
        step = self._pending
        if step and step.parent == self._chain.head and self.settled:
            self._pending = None
            if not self._refuse(open_misfit(step, self._me, self._manifest, self._chain)):
                self._open(step, now)
        asked = self._pending_evaluation
        if asked and asked.parent == self._chain.head and self.settled and 0 in self.seats:
            self._pending_evaluation = None
            if not self._refuse(evaluation_misfit(asked, self._me, self._manifest, self._chain)):
                self._out += self._evaluation_of(asked.parent, asked.step).open(asked)
        self._look_again()

    def _look_again(self) -> None:
        """Route what came early; what is still early is kept again."""
        early, self._early = self._early, {}
        for incoming in early.values():
            self._route(incoming)

    def _refuse(self, wrong: str) -> bool:
        if wrong:
            self._out.append(Note("refused", {"peer": self.leader, "reason": wrong}))
        return bool(wrong)

    def _open(self, step: OpenStep, now: float) -> None:
        self.open = step
        self._stalls.opened()
        self._pace.opened()
        self.end_evaluation()
        self.introduce(step.contacts)
        self._reported.clear()
        for work in step.seats:
            seat = self.seats.get(work.stage)
            if seat:
                self._out += seat.open(step, work, now, spare_near(work.stage, self._chain, self._manifest))
        self.report(now)

    def _amend(self, message: OpenStep, before: OpenStep, now: float) -> None:
        """The open attempt goes on with its work dealt out anew."""
        wrong = open_misfit(message, self._me, self._manifest, self._chain)
        mine = [(seat, work) for work in message.seats if (seat := self.seats.get(work.stage)) and seat.attempt]
        misfits = [seat.misfit(work) for seat, work in mine]
        if {w.stage for w in message.seats} != {w.stage for w in before.seats} or message.parent != before.parent:
            wrong = wrong or "an amendment is about the same seats"
        if self._refuse(wrong or "".join(misfits)):
            return
        self.open = message
        self._stalls.amended(message)
        self.introduce(message.contacts)
        self._reported.clear()
        for seat, work in mine:
            self._out += seat.amend(message, work, now)
        self.report(now)
        self._look_again()

    def revoke(self, message: Revoke, now: float) -> None:
        """Somebody cannot reach this node: say what its seats have accumulated, and let others have the rest."""
        seats = [seat for seat in self.seats.values() if seat.attempt and seat.state.role == "active"]
        if self.open is None or not self._is_open(message.step, message.attempt) or 0 in {s.state.stage for s in seats}:
            return
        counted = []
        for seat in seats:
            released, kept = seat.revoke()
            self._out += released
            counted.append(kept)
        self._tell_leader(Revoked(message.ballot, message.step, message.attempt, self.open.amendment, tuple(counted)))
        self.report(now)

    def _is_open(self, step: int, attempt: int) -> bool:
        return self.open is not None and (self.open.step, self.open.attempt) == (step, attempt)

    def start_reduce(self, message: StartReduce, now: float) -> None:
        """Sum the gradient of one stage. Whoever does not know where all others are says once more that it is ready, and is
        told; a passive replica is told again anyway."""
        seat = self.seats.get(message.stage)
        if not (seat and seat.phase is SeatPhase.READY and seat.attempt and self._is_open(message.step, message.attempt)):
            return
        if self._redundancy.holds(message):
            return
        accumulated, every = bitmap(seat.attempt.accumulated), self._manifest.batch.num_microbatches
        if self._refuse(reduce_misfit(message, self._me, accumulated, every, self._chain)):
            return
        self.introduce(message.contacts)
        members = summands(message, self._chain)
        others = [row.member.peer for row in members if row.member.peer != self._me]
        if message.contacts or all(peer in self.addresses for peer in others):
            self.introduce(Contact(peer, self.addresses.get(peer, "")) for peer in others)
            self._out += seat.reduce(message, members)
        else:
            self.report(now)

    def void(self, message: VoidStep, _now: float = 0.0) -> None:
        """Forget the attempt, whether it is open, pending or still to come: its OpenStep may arrive late or twice."""
        self._voided = max(self._voided, (message.ballot, message.step, message.attempt))
        pending = self._pending
        if pending and (pending.step, pending.attempt) == (message.step, message.attempt):
            self._pending = None
        if self._is_open(message.step, message.attempt):
            self.close_attempt()
            where = {"step": message.step, "attempt": message.attempt, "ballot": [message.ballot.term, message.ballot.peer]}
            self._out.append(Note("voided", where | {"reason": message.reason}))
            self._out.append(Say(f"step {message.step} voided: {message.reason}"))
        self._look_again()

    def close_attempt(self) -> None:
        """Forget the open attempt, if there is one."""
        self.open = None
        for seat in self.seats.values():
            if seat.phase is not SeatPhase.APPLYING:
                self._out += seat.void()

    def report(self, now: float, again: bool = False) -> None:
        """Tell the coordinator what the seats have reached; `again`: repeat what it has not answered."""
        if again:
            self.custody.look(self.ballot, now)
            self.shadows.report(self.ballot)
        if self.open and (stalled := self._stalls.again(now)):
            self._tell_leader(stalled)
        for stage, seat in sorted(self.seats.items()):
            report = seat.report()
            if report and (not again or self.is_due(stage, now)):
                if not again:
                    self._reported.said(stage, now)
                self._tell_leader(report)
            elif report is None and again and (learning := self.custody.report(stage, self.ballot)):
                self._tell_leader(learning)

    def is_due(self, stage: int, now: float) -> bool:
        """Is a report of this stage to be repeated now? It is taken as said then."""
        return self._reported.is_due(stage, now)

    def commit(self, commit: Commit, shares: tuple[Share, ...], above: tuple[str, ...], now: float) -> None:
        """The step is decided (the chain holds it already): update every seat that has the sum. Whoever passes a Commit on may
        not know all shares; who summed has been told those of the stage."""
        norms = {r.stage: r.squared_norm for r in commit.results}
        rate = learning_rate(self._manifest.optimizer, commit.step, self._manifest.last_step)
        counts = Credits(self._me, commit, shares, above, self._manifest)
        for stage, seat in sorted(self.seats.items()):
            held, decided = seat.attempt, commit.results[stage]
            result = held.reduced if held else None
            same = result and short(result.digest) == decided.digest and norms_agree(result.squared_norm, decided.squared_norm)
            if seat.state.role == "learner":
                continue
            if held is None or seat.phase is not SeatPhase.REDUCED or not same:
                self._fall_behind(seat, commit)
                continue
            self._out += seat.begin_applying()
            told = {s.member.peer: s.microbatches for s in shares if s.stage == stage}
            attempt = held.open.attempt  # an equal sum is as good, of whichever attempt
            seat.contributors = held.summed if attempt == commit.attempt or not told else told
            self._out += counts.of(stage, held, self._chain)
            scale = gradient_scale(self._manifest, commit.tokens, norms, stage)
            state_id = self._chain.state_ids[stage]
            self._out.append(Apply(stage, commit.step, attempt, scale, rate * seat.state.lr_factor, state_id))
        self.custody.forget_stale(self.ballot)
        self.open = None
        self.go_on(now)

    def _fall_behind(self, seat: Seat, commit: Commit) -> None:
        """A commit that this replica has no sum for: it can only catch up from a sibling, later."""
        stage = seat.state.stage
        self.custody.set_aside(seat)
        self._out.append(Note("left", {"stage": stage, "reason": f"missed the commit of step {commit.step}"}))
        self._out.append(Say(f"stage {stage} missed step {commit.step} here: the roster goes on without this node"))

    def applied(self, event: Applied, now: float) -> None:
        """The update is in the weights."""
        seat = self.custody.applying(event.stage)
        if seat is None:
            return
        self.custody.applied(seat, event)
        self._tell_leader(AppliedReport(self.ballot, event.stage, event.step, event.state_id, event.digest))
        self.go_on(now)

    # ---- payloads and outcomes ----

    def arrived(self, event: PayloadArrived) -> None:
        """A payload came in; this node owns its handle now."""
        self._route(Incoming(event.header, event.handle, event.peer))

    def _route(self, incoming: Incoming) -> None:
        """To its seat now, kept for later, or released: what does not fit is somebody else's fault and never raises."""
        header = incoming.header
        way = (header.kind, header.hop, header.route.microbatch, header.route.amendment)
        key = (header.ballot, header.step, header.attempt, *way)
        if payload_misfit(header, incoming.peer, self._me, self._manifest, self._chain):
            self._out.append(Release(incoming.handle))
            return
        seat = self.seats.get(header.route.hops[header.hop].stage)
        if seat and self._is_evaluation_now(header):
            self._out += self._evaluation_of(header.parent, header.step).take(incoming)
        elif seat and self._matches(header):
            self._out += seat.take(incoming)
        elif self._is_ahead(header) and len(self._early) < self._max_early() and key not in self._early:
            self._early[key] = incoming
        else:
            self._out.append(Release(incoming.handle))

    def _is_evaluation_now(self, header: PipeHeader) -> bool:
        now = (self.ballot, self._chain.step, self._chain.head)
        return header.kind == "evaluate" and (header.ballot, header.step, header.parent) == now and self.settled

    def _matches(self, header: PipeHeader) -> bool:
        o = self.open
        if o is None or header.kind == "evaluate" or header.route.amendment > o.amendment:
            return False
        return (header.ballot, header.step, header.attempt, header.parent) == (o.ballot, o.step, o.attempt, o.parent)

    def _is_ahead(self, header: PipeHeader) -> bool:
        """Does it belong to a step (or an evaluation after a commit) that is not begun here yet, but will be soon?"""
        if header.ballot < self.ballot or not self._may_lead(header.ballot.peer):
            return False
        ahead = header.step - self._chain.step
        if header.kind == "evaluate":
            return ahead == 1 or (ahead == 0 and header.parent == self._chain.head and not self.settled)
        key, newest = (header.ballot, header.step, header.attempt), self.open
        newer = key > self._voided and (newest is None or (*key, header.route.amendment) > _number(newest))
        return newer and 0 < ahead <= STEPS_AHEAD

    def _may_lead(self, peer: PeerId) -> bool:
        """The coordinator, or one that may have taken over: its word may still be on its way here."""
        return peer == self.leader or not self.leader or self._chain.member_of(peer) is not None

    def _max_early(self) -> int:
        """Room for everything that stage-0 replicas may have admitted, and for all that may be sent once more, both ways."""
        admitted = self._manifest.max_in_flight * max(self._manifest.start_replicas, len(self._chain.active(0)))
        return admitted + 2 * self._manifest.batch.num_microbatches

    def computed(self, event: ComputeDone, now: float) -> None:
        """A computation ended."""
        work = event.work
        self._stalls.ended(event.seconds)
        seat = self.seats.get(work.stage)
        if not work.evaluate and not math.isfinite(event.loss_sum) and self._is_open(work.step, work.attempt):
            self._stall(work.microbatch, "", f"the loss of microbatch {work.microbatch} is not finite", now)
        if work.evaluate and self._evaluation and self._evaluation.step == work.step:
            self._out += self._evaluation.computed(event)
        elif not work.evaluate and seat and seat.attempt and self._is_open(work.step, work.attempt):
            if work.op == "redundant":
                if start := self._redundancy.ended(event, now):
                    self.start_reduce(start, now)
                return
            self._out += self._redundancy.passed(event)
            self._out += seat.computed(event, now)
            self._pace.ended(work.stage, work.op, event.seconds)
            if seat.phase is SeatPhase.READY:
                self.report(now)
            elif (seconds := self._pace.news(work.stage)) and (slow := seat.slow(seconds, self._manifest.timing.lapse_s)):
                self._tell_leader(slow)
        elif event.handle:
            self._out.append(Release(event.handle))

    def reduced(self, event: Reduced, now: float) -> None:
        """The sum of one stage is here."""
        seat = self.seats.get(event.stage)
        if not math.isfinite(event.squared_norm) and self._is_open(event.step, event.attempt):
            self._stall(-1, "", f"the gradient of stage {event.stage} is not finite", now)
        elif seat and self._is_open(event.step, event.attempt):
            self._out += seat.reduced(event)
            self._reported.forget(event.stage)
            self.report(now, again=True)

    def failed(self, event: CommandFailed, now: float) -> None:
        """Somebody else's fault keeps the attempt from being finished here."""
        o, seat = self.open, self.seats.get(event.stage)
        if o is None or not self._is_open(event.step, event.attempt) or (event.unsent and event.peer in o.without):
            return
        is_old = event.is_sum and (seat is None or seat.attempt is None or seat.attempt.sum_number != event.sum_number)
        if not is_old and (stalled := self._stalls.failed(o, event, now)):
            self._tell_leader(stalled)

    def _stall(self, microbatch: int, peer: PeerId, reason: str, now: float) -> None:
        """Tell the coordinator once; `report` repeats it until the attempt is voided."""
        if self.open and (stalled := self._stalls.enter(self.open, microbatch, peer, reason, now)):
            self._tell_leader(stalled)

    @property
    def defect(self) -> str:
        """Why this node is of no use any more; '' as long as it is."""
        return self._stalls.defect

    def check_deadline(self, now: float) -> None:
        """Time has passed: what is overdue is told."""
        if stalled := self._stalls.look(self.seats.values(), self.open, now):
            self._tell_leader(stalled)

    # ---- evaluation ----

    def ask_evaluation(self, message: OpenEvaluation, now: float) -> None:
        """Admit held-out microbatches once the parent is the head here."""
        self.introduce(message.contacts)
        self._pending_evaluation = message
        self.go_on(now)

    def _evaluation_of(self, parent: str, step: int) -> Evaluation:
        if self._evaluation is None or self._evaluation.parent != parent:
            self.end_evaluation()
            self._evaluation = Evaluation(parent, step, self._me, self._manifest.max_in_flight)
        return self._evaluation

    def end_evaluation(self) -> None:
        """Release what a running evaluation still holds."""
        if self._evaluation:
            self._out += self._evaluation.end()
            self._evaluation = None

    def close(self) -> None:
        """Release everything."""
        self.close_attempt()
        self.end_evaluation()
        self._out += [Release(incoming.handle) for incoming in self._early.values()]
        self._early.clear()


def _number(step: OpenStep) -> tuple[Ballot, int, int, int]:
    return step.ballot, step.step, step.attempt, step.amendment
