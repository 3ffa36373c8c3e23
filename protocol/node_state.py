"""The decision object of a node: `handle(event, now) -> commands`. Pure: no clock, no chance, no I/O, no tensor.

It owns the chain, the view, one `Seat` per stage that the node holds, the voter's `Acceptor` and, on the coordinating node, the
`Coordinator`; it routes events to them, fences what is stale, and keeps early payloads until their step is opened here.
Messages to this node itself are handled in the same call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.commands import (
    Apply,
    Command,
    CreateSeat,
    Exit,
    Introduce,
    Note,
    PublishLease,
    Release,
    Say,
    SendMessage,
)
from protocol.coordinator import Coordinator
from protocol.evaluation import Evaluation
from protocol.events import (
    Applied,
    CommandFailed,
    ComputeDone,
    Event,
    LeasesSeen,
    LeaveAsked,
    MessageReceived,
    PayloadArrived,
    Reduced,
    SeatCreated,
    Tick,
)
from protocol.ids import Ballot, Member, PeerId
from protocol.manifest import Manifest
from protocol.messages import (
    AppliedReport,
    Contact,
    Decide,
    Evaluated,
    Goodbye,
    Heartbeat,
    Held,
    Message,
    OpenEvaluation,
    OpenStep,
    Order,
    Phase,
    PipeHeader,
    Probe,
    Propose,
    RecordsWanted,
    ReducedReport,
    ReduceReady,
    Stalled,
    Standing,
    StartReduce,
    Suspect,
    VoidStep,
    Wish,
)
from protocol.records import Commit, Roster, Seating
from protocol.schedule import gradient_scale, learning_rate
from protocol.seat import Incoming, Seat, SeatPhase, SeatState
from protocol.view import PeerNews, View

NORM_TOLERANCE = 1e-6
DEADLINE_FACTOR = 4.0
DEADLINE_HEARTBEATS = 3.0
RESEND_HEARTBEATS = 2.0


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What a node is, for as long as it lives."""

    manifest: Manifest
    member: Member
    name: str
    address: str
    """HOST:PORT of its gRPC server, as announced."""
    founder: bool = False
    """This node begins the run: it coordinates and is the genesis voter."""
    wished_stage: int = -1
    memory_bytes: int = 0


class NodeState:
    """See the module."""

    def __init__(self, config: NodeConfig) -> None:
        manifest, me = config.manifest, config.member
        self.config = config
        self.chain = Chain(manifest, me if config.founder else None)
        self.view = View(manifest.timing.lapse_s)
        self.acceptor = Acceptor()
        self.seats: dict[int, Seat] = {}
        self.ballot = Ballot(1, me.peer) if config.founder else Ballot(0, "")
        self.coordinator = Coordinator(manifest, me, self.ballot, self.chain, self.view) if config.founder else None
        self.leader: PeerId = me.peer if config.founder else ""
        self.phase: Phase = "waiting" if config.founder else "starting"
        self.sentence = ""
        self.validation: tuple[int, float] = (-1, 0.0)
        self._manifest, self._me = manifest, me.peer
        self._open: OpenStep | None = None
        self._pending: OpenStep | None = None
        self._pending_evaluation: OpenEvaluation | None = None
        self._evaluation: Evaluation | None = None
        self._early: deque[Incoming] = deque()
        self._watch: dict[PeerId, None] = {}
        self._probes: dict[PeerId, float] = {}
        self._next_beat = 0.0
        self._reported: dict[int, float] = {}
        self._stalled_at: float | None = None
        self._standing: Standing | None = None
        self._finish_at: float | None = None
        self._exiting = False
        self._inbox: deque[tuple[PeerId, int, Message]] = deque()
        self._out: list[Command] = []
        self._messages: dict[type, Callable[[PeerId, int, Any, float], None]] = {
            Heartbeat: self._on_heartbeat,
            Wish: self._on_wish,
            Goodbye: self._on_goodbye,
            Suspect: self._on_suspect,
            RecordsWanted: self._on_records_wanted,
            ReduceReady: self._on_report,
            ReducedReport: self._on_report,
            Stalled: self._on_report,
            Held: self._on_report,
            AppliedReport: self._on_applied_report,
            Evaluated: self._on_evaluated,
            Propose: self._on_propose,
            Decide: self._on_decide,
            OpenStep: self._on_open_step,
            StartReduce: self._on_start_reduce,
            VoidStep: self._on_void,
            Probe: self._on_probe,
            OpenEvaluation: self._on_open_evaluation,
            Standing: self._on_standing,
            Order: self._on_order,
        }
        self._events: dict[type, Callable[[Any, float], None]] = {
            Tick: self._on_tick,
            LeasesSeen: self._on_leases,
            MessageReceived: self._on_message,
            PayloadArrived: self._on_payload,
            SeatCreated: self._on_created,
            ComputeDone: self._on_computed,
            Reduced: self._on_reduced,
            Applied: self._on_applied,
            CommandFailed: self._on_failed,
            LeaveAsked: self._on_leave,
        }

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in one fact; `now` is monotonic seconds. Commands are to be carried out in order."""
        if self._exiting:
            return [Release(event.handle)] if isinstance(event, PayloadArrived | ComputeDone) and event.handle else []
        self._events[type(event)](event, now)
        self._settle(now)
        out, self._out = self._out, []
        return out

    def _settle(self, now: float) -> None:
        """Handle messages to ourselves and let the coordinator go on until nothing is left to do."""
        while True:
            while self._inbox:
                peer, incarnation, message = self._inbox.popleft()
                self._messages[type(message)](peer, incarnation, message, now)
            if self.coordinator is None:
                return
            self.coordinator.advance(now)
            self._emit(self.coordinator.take())
            if not self._inbox:
                return

    def _emit(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, SendMessage) and command.peer == self._me:
                self._inbox.append((self._me, self.config.member.incarnation, command.message))
            else:
                self._out.append(command)

    def _send(self, peer: PeerId, message: Message) -> None:
        if peer:
            self._emit([SendMessage(peer, message)])

    def _say(self, sentence: str) -> None:
        if sentence != self.sentence:
            self.sentence = sentence
            self._out.append(Say(sentence))

    # ---- who is there ----

    def _on_leases(self, event: LeasesSeen, now: float) -> None:
        contacts = [*event.others, *([event.coordinator] if event.coordinator else [])]
        for contact in contacts:
            self._introduce(contact)
        if event.coordinator and not self.leader:
            self.leader = event.coordinator.peer
            self.view.expect(self.leader, now)
            self._next_beat = now
        if not self.leader:
            self._say("waiting: no coordinator is known yet")

    def _introduce(self, contact: Contact) -> None:
        if contact.peer != self._me and contact.address:
            self._out.append(Introduce(contact.peer, contact.address))

    def _on_message(self, event: MessageReceived, now: float) -> None:
        self.view.heard(event.peer, now)
        self._messages[type(event.message)](event.peer, event.incarnation, event.message, now)

    def _follows(self, peer: PeerId, ballot: Ballot) -> bool:
        """A coordinator speaks: is it the one with the highest ballot that was seen here?"""
        if ballot.peer != peer or not self.acceptor.follow(ballot):
            return False
        self.ballot, self.leader = ballot, peer
        return True

    def _on_heartbeat(self, peer: PeerId, incarnation: int, beat: Heartbeat, now: float) -> None:
        self.view.heard(peer, now)
        known = self.view.news.get(peer)
        if known is None or incarnation >= known.incarnation:
            self.view.news[peer] = PeerNews(incarnation, beat.ballot, beat.head, beat.step, beat.attempt)
        if peer not in self._watch and peer != self.leader and self.coordinator is None:
            self._send(peer, self._beat())
            self._watch_for_a_while(peer, now)
        if self.coordinator:
            self.coordinator.on_heartbeat(peer, beat, now)

    def _watch_for_a_while(self, peer: PeerId, now: float) -> None:
        """Answer the heartbeats of a peer that probes, without answering answers for ever."""
        self._watch.setdefault(peer)
        self._probes[peer] = now + 4 * self._manifest.timing.lapse_s

    def _beat(self) -> Heartbeat:
        step, attempt = (self._open.step, self._open.attempt) if self._open else (0, 0)
        return Heartbeat(self.config.member.incarnation, self.ballot, self.chain.head, step, attempt)

    def _on_probe(self, peer: PeerId, _: int, message: Probe, now: float) -> None:
        if self._follows(peer, message.ballot) and message.member.peer != self._me:
            self._introduce(Contact(message.member.peer, message.address))
            self.view.expect(message.member.peer, now)
            self._watch_for_a_while(message.member.peer, now)
            self._send(message.member.peer, self._beat())

    # ---- facts for the coordinator ----

    def _on_wish(self, peer: PeerId, _: int, message: Wish, now: float) -> None:
        if self.coordinator and message.member.peer == peer:
            self._introduce(Contact(peer, message.address))
            self.coordinator.on_wish(message, now)

    def _on_goodbye(self, peer: PeerId, _: int, message: Goodbye, now: float) -> None:
        if message.member.peer != peer:
            return
        self.view.forget(peer)
        if self.coordinator:
            self.coordinator.on_goodbye(message.member, message.reason)
        elif peer == self.leader:
            self.view.expect(peer, now - 2 * self._manifest.timing.lapse_s)

    def _on_suspect(self, peer: PeerId, _: int, message: Suspect, now: float) -> None:
        if self.coordinator and self.chain.member_of(peer):
            self.coordinator.on_suspect(peer, message, now)

    def _on_records_wanted(self, peer: PeerId, _: int, message: RecordsWanted, now: float) -> None:
        if self.coordinator:
            self.coordinator.send_records(peer, message.head)

    def _on_report(
        self,
        peer: PeerId,
        incarnation: int,
        message: ReduceReady | ReducedReport | Stalled | Held,
        now: float,
    ) -> None:
        """Only members on the roster, in the incarnation that is on it, are heard on a step; voters on a record."""
        member = Member(peer, incarnation)
        if self.coordinator is None or message.ballot != self.ballot:
            return
        if isinstance(message, Held):
            if member in self.chain.voters:
                self.coordinator.on_held(member, message)
        elif self.chain.member_of(peer) == member:
            if isinstance(message, ReduceReady):
                self.coordinator.on_ready(member, message)
            elif isinstance(message, ReducedReport):
                self.coordinator.on_reduced(member, message, now)
            else:
                self.coordinator.on_stalled(member, message, now)

    def _on_applied_report(self, peer: PeerId, _: int, message: AppliedReport, now: float) -> None:
        seat = self.seats.get(message.stage)
        if self.coordinator and seat and seat.state.state_id == message.state_id and seat.state.digest != message.digest:
            fields = {
                "stage": message.stage,
                "peer": peer,
                "digest": message.digest,
                "own": seat.state.digest,
            }
            self._out.append(Note("digest_mismatch", fields | {"step": message.step}))

    def _on_evaluated(self, peer: PeerId, _: int, message: Evaluated, now: float) -> None:
        if self.coordinator and message.ballot == self.ballot and self.chain.member_of(peer):
            self.coordinator.on_evaluated(message)

    def _on_order(self, peer: PeerId, _: int, message: Order, now: float) -> None:
        if self.coordinator:
            self.coordinator.on_order(message)
        elif peer != self.leader:
            self._send(self.leader, message)

    # ---- decisions of the coordinator ----

    def _on_propose(self, peer: PeerId, _: int, message: Propose, now: float) -> None:
        if not self._follows(peer, message.ballot):
            return
        wrong = self.chain.fits(message.record)
        if wrong and message.record.parent != self.chain.head:
            self._send(peer, RecordsWanted(self.chain.head))
        elif wrong:
            self._out.append(Note("refused", {"peer": peer, "reason": wrong}))
        elif self.acceptor.hold(message.ballot, message.record, message.shares):
            held = self.acceptor.holding
            assert held, "hold keeps what it accepts"
            self._send(peer, Held(message.ballot, held.id))

    def _on_decide(self, peer: PeerId, _: int, message: Decide, now: float) -> None:
        if not self._follows(peer, message.ballot) or message.record.parent != self.chain.head:
            return
        wrong = self.chain.fits(message.record)
        if wrong:
            self._out.append(Note("refused", {"peer": peer, "reason": wrong}))
            return
        parent = self.chain.head
        ballot = [message.ballot.term, message.ballot.peer]
        head = self.chain.append(message.record, message.shares)
        self.acceptor.settled(head)
        self._out.append(Note("decided", {"record": head, "parent": parent, "ballot": ballot, "step": self.chain.step}))
        if isinstance(message.record, Commit):
            self._commit(message, message.record)
        else:
            self._enroll(message.record, now)
        self._end_evaluation()
        self._try_open(now)

    def _commit(self, message: Decide, commit: Commit) -> None:
        loss = {"step": commit.step, "value": commit.loss_sum / commit.tokens, "tokens": commit.tokens}
        self._out.append(Note("loss", loss))
        norms = {r.stage: r.squared_norm for r in commit.results}
        for stage, seat in sorted(self.seats.items()):
            result = seat.attempt.reduced if seat.attempt else None
            decided = commit.results[stage]
            fits = seat.phase is SeatPhase.REDUCED and result and result.digest == decided.digest
            if not fits or not result or not _close(result.squared_norm, decided.squared_norm):
                self._fall_behind(seat, commit)
                continue
            seat.phase = SeatPhase.APPLYING
            optimizer = self._manifest.optimizer
            scale = gradient_scale(self._manifest, commit.tokens, norms, stage)
            rate = learning_rate(optimizer, commit.step, self._manifest.last_step) * seat.state.lr_factor
            state_id = self.chain.state_ids[stage]
            shares = {s.member.peer: s.microbatches for s in message.shares if s.stage == stage}
            seat.state.provenance = {**seat.state.provenance, "contributors": shares}
            self._out.append(Apply(stage, commit.step, commit.attempt, scale, rate, state_id))
        self._open = None

    def _fall_behind(self, seat: Seat, commit: Commit) -> None:
        """A commit that this replica has no sum for: it cannot follow until it catches up from a sibling."""
        stage = seat.state.stage
        self._emit(seat.void() if seat.attempt else [])
        del self.seats[stage]
        self._out.append(Note("left", {"stage": stage, "reason": f"missed the commit of step {commit.step}"}))
        self._say(f"stage {stage} missed the commit of step {commit.step} here; it is out of the run")

    def _enroll(self, roster: Roster, now: float) -> None:
        for leave in roster.leaves:
            self._out.append(Note("left", {"stage": leave.stage, "peer": leave.member.peer, "step": roster.step}))
            if leave.member == self.config.member:
                self._leave_seat(leave)
        for join in roster.joins:
            fields = {"stage": join.stage, "peer": join.member.peer, "role": join.role, "step": roster.step}
            self._out.append(Note("joined", fields))
            if join.member == self.config.member and join.stage not in self.seats:
                self._take_seat(join)
        stages = tuple(sorted(self.seats))
        self._out.append(PublishLease(stages, self.ballot.term, self.coordinator is not None))

    def _take_seat(self, join: Seating) -> None:
        manifest, stage = self._manifest, join.stage
        state = SeatState(stage, join.role, join.generation, self.chain.state_ids[stage])
        self.seats[stage] = Seat(state, self._me, manifest.max_in_flight, manifest.batch.tokens_per_microbatch)
        self._out.append(Note("granted", {"stage": stage, "role": join.role, "generation": join.generation}))
        self._say(f"holding stage {stage} ({join.role}), making its weights from the seed")
        self._out.append(CreateSeat(stage, join.generation))

    def _leave_seat(self, leave: Seating) -> None:
        seat = self.seats.pop(leave.stage, None)
        if seat and seat.attempt and seat.phase is not SeatPhase.APPLYING:
            self._emit(seat.void())
        self._say(f"stage {leave.stage} is no longer held here: the swarm went on without this node")

    # ---- a step ----

    def _on_open_step(self, peer: PeerId, _: int, message: OpenStep, now: float) -> None:
        if not self._follows(peer, message.ballot):
            return
        newest = self._pending or self._open
        if newest and (message.ballot, message.step, message.attempt) <= (
            newest.ballot,
            newest.step,
            newest.attempt,
        ):
            return
        if message.step <= self.chain.step:
            return
        self._pending = message
        if message.parent != self.chain.head:
            self._send(peer, RecordsWanted(self.chain.head))
        self._try_open(now)

    def _try_open(self, now: float) -> None:
        """Open the pending step once its parent is the head and all seats have applied it."""
        step = self._pending
        if step is None or step.parent != self.chain.head or not all(s.settled for s in self.seats.values()):
            return
        self._pending, self._open, self._stalled_at = None, step, None
        self._end_evaluation()
        for contact in step.contacts:
            self._introduce(contact)
        self._watch = dict.fromkeys(step.watch)
        for peer in step.watch:
            self.view.expect(peer, now)
        self.phase = "training"
        self._reported.clear()
        for work in step.seats:
            seat = self.seats.get(work.stage)
            if seat:
                self._emit(seat.open(step, work, now))
        self._report(now)
        self._replay_early(now)

    def _replay_early(self, now: float) -> None:
        early, self._early = self._early, deque()
        for incoming in early:
            self._take(incoming, now)

    def _on_start_reduce(self, peer: PeerId, _: int, message: StartReduce, now: float) -> None:
        seat = self.seats.get(message.stage)
        if not self._follows(peer, message.ballot) or seat is None or not self._is_open(message.step, message.attempt):
            return
        for row in message.members:
            self._introduce(Contact(row.member.peer, row.address))
        self._emit(seat.reduce(message))

    def _is_open(self, step: int, attempt: int) -> bool:
        return self._open is not None and (self._open.step, self._open.attempt) == (step, attempt)

    def _on_void(self, peer: PeerId, _: int, message: VoidStep, now: float) -> None:
        if not self._follows(peer, message.ballot):
            return
        if self._pending and (self._pending.step, self._pending.attempt) == (message.step, message.attempt):
            self._pending = None
        if self._is_open(message.step, message.attempt):
            self._close_attempt()
            ballot = [message.ballot.term, message.ballot.peer]
            fields = {
                "step": message.step,
                "attempt": message.attempt,
                "ballot": ballot,
                "reason": message.reason,
            }
            self._out.append(Note("voided", fields))
            self._say(f"step {message.step} voided: {message.reason}")

    def _close_attempt(self) -> None:
        self._open = None
        for seat in self.seats.values():
            if seat.phase is not SeatPhase.APPLYING:
                self._emit(seat.void())

    def _report(self, now: float, again: bool = False) -> None:
        """Tell the coordinator what the seats have reached; repeat what it has not answered."""
        wait = RESEND_HEARTBEATS * self._manifest.timing.heartbeat_s if again else 0.0
        for stage, seat in sorted(self.seats.items()):
            report = seat.report()
            if report and now - self._reported.get(stage, -1e9) >= wait:
                self._reported[stage] = now
                self._send(self.leader, report)

    # ---- payloads and outcomes ----

    def _on_payload(self, event: PayloadArrived, now: float) -> None:
        self.view.heard(event.peer, now)
        self._take(Incoming(event.header, event.handle, event.peer), now)

    def _take(self, incoming: Incoming, now: float) -> None:
        """Route a payload to its seat; keep it if it is ahead of this node, drop it if it is behind or does not fit."""
        header = incoming.header
        seat = self._seat_for(header)
        if header.kind == "evaluate":
            self._take_evaluation(incoming, seat)
        elif seat and self._matches(header):
            self._emit(seat.take(incoming))
        elif self._is_ahead(header) and len(self._early) < self._max_early():
            self._early.append(incoming)
        else:
            self._out.append(Release(incoming.handle))

    def _seat_for(self, header: PipeHeader) -> Seat | None:
        hops = header.route.hops
        if not 0 <= header.hop < len(hops) or hops[header.hop].peer != self._me:
            return None
        return self.seats.get(hops[header.hop].stage)

    def _matches(self, header: PipeHeader) -> bool:
        o = self._open
        return o is not None and (header.ballot, header.step, header.attempt, header.parent) == (
            o.ballot,
            o.step,
            o.attempt,
            o.parent,
        )

    def _is_ahead(self, header: PipeHeader) -> bool:
        if header.ballot < self.ballot or header.step <= self.chain.step:
            return False
        newest = self._open
        return newest is None or (header.ballot, header.step, header.attempt) > (
            newest.ballot,
            newest.step,
            newest.attempt,
        )

    def _max_early(self) -> int:
        """Room for everything that the stage-0 replicas may have admitted."""
        return self._manifest.max_in_flight * max(1, len(self.chain.active(0)))

    def _take_evaluation(self, incoming: Incoming, seat: Seat | None) -> None:
        header = incoming.header
        if seat and header.parent == self.chain.head and seat.settled:
            self._emit(self._evaluation_of(header.parent, header.step).take(incoming))
        elif header.ballot >= self.ballot and header.step >= self.chain.step and len(self._early) < self._max_early():
            self._early.append(incoming)
        else:
            self._out.append(Release(incoming.handle))

    def _evaluation_of(self, parent: str, step: int) -> Evaluation:
        if self._evaluation is None or self._evaluation.parent != parent:
            self._end_evaluation()
            self._evaluation = Evaluation(parent, step, self._me, self._manifest.max_in_flight)
        return self._evaluation

    def _end_evaluation(self) -> None:
        if self._evaluation:
            self._emit(self._evaluation.end())
            self._evaluation = None

    def _on_open_evaluation(self, peer: PeerId, _: int, message: OpenEvaluation, now: float) -> None:
        if not self._follows(peer, message.ballot):
            return
        for contact in message.contacts:
            self._introduce(contact)
        self._pending_evaluation = message
        self._try_evaluate()

    def _try_evaluate(self) -> None:
        asked = self._pending_evaluation
        if asked and asked.parent == self.chain.head and all(s.settled for s in self.seats.values()) and 0 in self.seats:
            self._pending_evaluation = None
            self._emit(self._evaluation_of(asked.parent, asked.step).open(asked))

    def _on_created(self, event: SeatCreated, now: float) -> None:
        seat = self.seats.get(event.stage)
        if seat and seat.phase is SeatPhase.CREATING:
            seat.phase = SeatPhase.IDLE
            seat.state.digest = event.digest
            self._say(f"holding stage {event.stage} ({seat.state.role})")
            self._try_open(now)

    def _on_computed(self, event: ComputeDone, now: float) -> None:
        work = event.work
        seat = self.seats.get(work.stage)
        if work.evaluate and self._evaluation and self._evaluation.step == work.step:
            self._emit(self._evaluation.computed(event))
        elif not work.evaluate and seat and seat.attempt and self._is_open(work.step, work.attempt):
            self._emit(seat.computed(event, now))
            if seat.phase is SeatPhase.READY:
                self._report(now)
        elif event.handle:
            self._out.append(Release(event.handle))

    def _on_reduced(self, event: Reduced, now: float) -> None:
        seat = self.seats.get(event.stage)
        if seat and self._is_open(event.step, event.attempt):
            self._emit(seat.reduced(event))
            self._reported.pop(event.stage, None)
            self._report(now, again=True)

    def _on_applied(self, event: Applied, now: float) -> None:
        seat = self.seats.get(event.stage)
        if seat is None or seat.phase is not SeatPhase.APPLYING:
            return
        state = seat.state
        state.state_id, state.digest, state.step = event.state_id, event.digest, event.step
        state.optimizer_age = event.optimizer_age
        seat.attempt, seat.phase = None, SeatPhase.IDLE
        contributors = state.provenance.get("contributors", {})
        fields = {
            "stage": event.stage,
            "state_id": event.state_id,
            "digest": event.digest,
            "step": event.step,
        }
        self._out.append(Note("committed", fields | {"contributors": contributors}))
        self._send(self.leader, AppliedReport(self.ballot, event.stage, event.step, event.state_id, event.digest))
        self._try_open(now)
        self._try_evaluate()
        if self._pending is None and self._open is None:
            self._replay_early(now)

    def _on_failed(self, event: CommandFailed, now: float) -> None:
        if self._is_open(event.step, event.attempt):
            self._stall(event.microbatch, event.peer, event.reason, now)

    def _stall(self, microbatch: int, peer: PeerId, reason: str, now: float) -> None:
        o = self._open
        if o and (self._stalled_at is None or now - self._stalled_at >= self._manifest.timing.lapse_s):
            self._stalled_at = now
            self._send(self.leader, Stalled(o.ballot, o.step, o.attempt, microbatch, peer, reason))

    # ---- time ----

    def _on_tick(self, event: Tick, now: float) -> None:
        self.view.tick(event.heard, now)
        if now >= self._next_beat:
            self._next_beat = now + self._manifest.timing.heartbeat_s
            self._beat_all()
            self._report(now, again=True)
            self._suspect_lapsed(now)
            if self.coordinator:
                self.coordinator.on_tick(now)
        for peer in [p for p, until in self._probes.items() if now >= until]:
            del self._probes[peer]
            if self._open is None or peer not in self._open.watch:
                self._watch.pop(peer, None)
        self._check_deadline(now)
        self._check_leader(now)
        self._check_finish(now)

    def _beat_all(self) -> None:
        peers = dict.fromkeys([self.leader, *self._watch])
        if self.coordinator:
            peers |= dict.fromkeys(m.peer for m in self.chain.members())
            peers |= dict.fromkeys(self.coordinator.gathering.wishes)
        beat = self._beat()
        for peer in peers:
            if peer != self._me:
                self._send(peer, beat)
        if self.chain.member_of(self._me) != self.config.member and self.leader:
            c = self.config
            self._send(self.leader, Wish(c.member, c.wished_stage, c.name, c.address, c.memory_bytes))

    def _suspect_lapsed(self, now: float) -> None:
        for peer in self._watch:
            member = self.chain.member_of(peer)
            if member and self.coordinator is None and self.view.lapsed(peer, now):
                reason = f"not heard for {self.view.silent_s(peer, now):.1f} s"
                self._send(self.leader, Suspect(member, reason))

    def _check_deadline(self, now: float) -> None:
        seat, timing = self.seats.get(0), self._manifest.timing
        oldest = seat.oldest_in_flight() if seat else None
        if seat is None or oldest is None or self._open is None:
            return
        measured = max(DEADLINE_HEARTBEATS * timing.heartbeat_s, DEADLINE_FACTOR * seat.latency_s)
        doubled = measured * 2.0 ** min(self._open.attempt - 1, 10)
        deadline = doubled if seat.latency_s else timing.first_microbatch_s
        if now - oldest[1] > max(measured, min(deadline, timing.first_microbatch_s)):
            late = f"microbatch {oldest[0]} is not back after {now - oldest[1]:.1f} s"
            self._stall(oldest[0], "", late, now)

    def _check_leader(self, now: float) -> None:
        if self.coordinator or not self.leader or self.phase == "finished":
            return
        silent = self.view.silent_s(self.leader, now)
        if self.view.lapsed(self.leader, now):
            self.phase = "waiting"
            self._say(f"waiting: the coordinator {self.leader[-8:]} is not heard; the run goes on when it comes back")
        elif self.phase == "waiting" and silent < self._manifest.timing.heartbeat_s and self._open:
            self.phase = "training"
            self._say("training")

    # ---- the end ----

    def _on_standing(self, peer: PeerId, _: int, message: Standing, now: float) -> None:
        if not self._follows(peer, message.ballot):
            return
        self._standing, self.phase = message, message.phase
        if message.validation_step >= 0:
            self.validation = (message.validation_step, message.validation_loss)
        seated = self.chain.member_of(self._me) == self.config.member
        without = "" if seated or not self.chain.step else " (without a seat here)"
        self._say(message.sentence + without)
        if message.phase == "finished" and self._finish_at is None:
            self._finish_at = now + self._manifest.timing.linger_s

    def _check_finish(self, now: float) -> None:
        """A finished node serves its peers for a while; the coordinator also waits for those that are behind."""
        if self._finish_at is None or now < self._finish_at or self._standing is None:
            return
        seated = bool(self.seats)
        behind = seated and (self.chain.step < self._standing.step or not all(s.settled for s in self.seats.values()))
        late = now >= self._finish_at + 4 * self._manifest.timing.lapse_s
        if self.coordinator and not self.coordinator.is_caught_up(now):
            behind = True
        if behind and not late:
            return
        self._exit(0, self.sentence)

    def _on_leave(self, event: LeaveAsked, now: float) -> None:
        self.phase = "leaving"
        goodbye = Goodbye(self.config.member, event.reason)
        peers = dict.fromkeys([self.leader, *self._watch])
        if self.coordinator:
            peers |= dict.fromkeys(m.peer for m in self.chain.members())
        for peer in peers:
            if peer != self._me:
                self._send(peer, goodbye)
        self._exit(0, f"left: {event.reason}")

    def _exit(self, code: int, sentence: str) -> None:
        self._close_attempt()
        self._end_evaluation()
        for incoming in self._early:
            self._out.append(Release(incoming.handle))
        self._early.clear()
        self._out.append(PublishLease((), self.ballot.term, False, leaving=True))
        self._exiting = True
        self._out.append(Exit(code, sentence))


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= NORM_TOLERANCE * max(abs(a), abs(b))
