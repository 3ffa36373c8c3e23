"""The decision object of a node: `handle(event, now) -> commands`. Pure: no clock, no chance, no I/O, no tensor.

It owns the chain, the view, one `Seat` per stage that the node holds, the voter's `Acceptor`, the `Takeover` that waits for the
coordinator to go and, on the coordinating node, the `Coordinator`; it routes events to them, fences what is stale, and keeps
early payloads until their step is opened here. Messages to this node itself are handled in the same call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.checks import piece_misfit, shares_misfit
from protocol.commands import (
    Command,
    Exit,
    Note,
    PublishLease,
    Release,
    Say,
    SendMessage,
)
from protocol.coordinator import Coordinator
from protocol.ending import Ending
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
from protocol.hearing import hear
from protocol.ids import Ballot, Member, PeerId
from protocol.leader import Leader
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
    Prepare,
    Probe,
    Promise,
    Propose,
    Proposed,
    RecordsWanted,
    ReducedReport,
    ReduceHeader,
    ReduceReady,
    Stalled,
    Standing,
    StartReduce,
    Suspect,
    VoidStep,
    Wish,
)
from protocol.node_config import NodeConfig
from protocol.records import Commit, Roster
from protocol.status import snapshot
from protocol.takeover import Takeover
from protocol.view import PeerNews, View
from protocol.watch import Watch
from protocol.workbench import Workbench

__all__ = ["NodeConfig", "NodeState"]

TO_COORDINATOR = (Wish, Suspect, RecordsWanted, ReduceReady, ReducedReport, Stalled, Held, Evaluated)
Handler = Callable[[PeerId, int, Any, float], None]
"""(sender, its incarnation, message, now)"""


class NodeState:
    """See the module."""

    def __init__(self, config: NodeConfig) -> None:
        manifest, me = config.manifest, config.member
        self.config = config
        self.chain = Chain(manifest, me if config.founder else None)
        self.view = View(manifest.timing.lapse_s)
        self.acceptor = Acceptor()
        self.bench = Workbench(manifest, me.peer, self.chain)
        self.leader = Leader(self.acceptor, self.chain, me if config.founder else None)
        self.takeover = Takeover(me, manifest, self.chain, self.view, self.leader, self.acceptor)
        self.takeover.learn = self._learn
        self.coordinator = Coordinator(manifest, me, self.ballot, self.chain, self.view) if config.founder else None
        self.phase: Phase = "waiting" if config.founder else "starting"
        self.sentence = ""
        self.validation: tuple[int, float] = (-1, 0.0)
        self._manifest, self._me = manifest, me.peer
        self._watched_step: OpenStep | None = None
        self._watch = Watch(self.view, 4 * manifest.timing.lapse_s)
        self._next_beat = 0.0
        self._leaderless = False
        self._standing: Standing | None = None
        self._ending = Ending(manifest.timing.linger_s, 4 * manifest.timing.lapse_s)
        self._exiting = False
        self._inbox: deque[tuple[PeerId, int, Message]] = deque()
        self._out: list[Command] = []
        self._messages: dict[type, Handler] = {
            Heartbeat: self._on_heartbeat,
            Goodbye: self._on_goodbye,
            AppliedReport: self._on_applied_report,
            Order: self._on_order,
            **dict.fromkeys(TO_COORDINATOR, self._hear),
            Prepare: self._on_prepare,
            Promise: lambda p, i, m, now: self.takeover.on_promise(Member(p, i), m, now),
            Propose: self._led(self._on_propose),
            Decide: self._led(self._on_decide),
            OpenStep: self._led(self._on_open_step),
            StartReduce: self._led(lambda _p, _i, m, _now: self.bench.start_reduce(m)),
            VoidStep: self._led(lambda _p, _i, m, _now: self.bench.void(m)),
            Probe: self._led(self._on_probe),
            OpenEvaluation: self._led(lambda _p, _i, m, now: self.bench.ask_evaluation(m, now)),
            Standing: self._led(self._on_standing),
        }
        self._events: dict[type, Callable[[Any, float], None]] = {
            Tick: self._on_tick,
            LeasesSeen: self._on_leases,
            MessageReceived: self._on_message,
            PayloadArrived: self._on_payload,
            SeatCreated: self.bench.created,
            ComputeDone: self.bench.computed,
            Reduced: self.bench.reduced,
            Applied: self.bench.applied,
            CommandFailed: self.bench.failed,
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

    @property
    def ballot(self) -> Ballot:
        """The highest ballot of the coordinator that this node follows."""
        return self.leader.ballot

    def snapshot(self, now: float) -> dict[str, Any]:
        """The node as `/status` shows it (docs/contract.md)."""
        return snapshot(self, now)

    def _settle(self, now: float) -> None:
        """Handle messages to ourselves and let the coordinator go on until nothing is left to do."""
        while not self._exiting:
            self._drain_bench(now)
            while self._inbox and not self._exiting:
                peer, incarnation, message = self._inbox.popleft()
                self._messages[type(message)](peer, incarnation, message, now)
                self._drain_bench(now)
            self._emit(self.takeover.take())
            if self.takeover.won:
                self._lead(now)
            if self.coordinator and not self._exiting:
                self.coordinator.advance(now)
                self._emit(self.coordinator.take())
            if not self._inbox:
                return

    def _drain_bench(self, now: float) -> None:
        self._emit(self.bench.take())
        if self.bench.open is not None and self.bench.open is not self._watched_step:
            self._watch_neighbours(self.bench.open, now)

    def _emit(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, SendMessage) and command.peer == self._me:
                self._inbox.append((self._me, self.config.member.incarnation, command.message))
            elif isinstance(command, Say):
                self._say(command.sentence)
            else:
                self._out.append(command)

    def _send(self, peer: PeerId, message: Message) -> None:
        if peer:
            self._emit([SendMessage(peer, message)])

    def _say(self, sentence: str) -> None:
        if sentence != self.sentence:
            self.sentence = sentence
            self._out.append(Say(sentence))

    def takes_piece(self, peer: PeerId, header: ReduceHeader) -> bool:
        """May `peer` bring a piece of a gradient sum to this node, for a reduce that runs or will soon?"""
        return header.ballot == self.ballot and not piece_misfit(peer, header, self._me, self.chain)

    # ---- who is there ----

    def _on_leases(self, event: LeasesSeen, now: float) -> None:
        self.bench.introduce([*event.others, *([event.coordinator] if event.coordinator else [])])
        seated = self.chain.member_of(self._me) == self.config.member
        gone = not seated and self.coordinator is None and self.view.lapsed(self.leader.peer, now)
        if event.coordinator and (not self.leader.peer or (gone and event.coordinator.peer != self.leader.peer)):
            self.leader.learn(event.coordinator.peer)
            self.bench.leader = self.leader.peer
            self.view.expect(self.leader.peer, now)
            self._next_beat = now
        if not self.leader.peer:
            self._say("waiting: no coordinator is known yet")

    def _on_message(self, event: MessageReceived, now: float) -> None:
        self.view.heard(event.peer, now)
        self.leader.heard(event.peer, event.incarnation)
        self._messages[type(event.message)](event.peer, event.incarnation, event.message, now)

    def _led(self, handler: Handler) -> Handler:
        """Only the coordinator that this node follows gets through to `handler`."""

        def checked(peer: PeerId, incarnation: int, message: Any, now: float) -> None:
            before = self.leader.peer
            if self.leader.speaks(peer, incarnation, message.ballot):
                self.bench.ballot, self.bench.leader = self.leader.ballot, peer
                if peer != before:
                    self._follow(peer, now)
                handler(peer, incarnation, message, now)

        return checked

    def _follow(self, peer: PeerId, now: float) -> None:
        """Somebody has taken over. If that was this node's own role, it is an ordinary member from here on."""
        self.takeover.followed()
        self.view.expect(peer, now)
        self.view.heard(peer, now)
        self._next_beat = now
        self._abdicate()

    def _abdicate(self) -> None:
        if self.coordinator and not self.takeover.leading:
            self.coordinator = None
            self._claim()

    def _lead(self, now: float) -> None:
        """This node has won the role: with the promises of a quorum, and nothing left to settle."""
        before = self.takeover.succession(self.validation, self._standing)
        self.leader.speaks(self._me, self.config.member.incarnation, before.ballot)
        self.bench.ballot, self.bench.leader = before.ballot, self._me
        self.coordinator = Coordinator(self._manifest, self.config.member, before.ballot, self.chain, self.view)
        self.coordinator.succeed(before, self.bench.addresses | {self._me: self.config.address}, now)
        self._leaderless, self._next_beat = False, now
        self._out.append(Note("took_over", {"term": before.ballot.term, "from": before.peer, "step": self.chain.step}))
        self._claim()

    def _claim(self) -> None:
        self._out.append(PublishLease(tuple(sorted(self.bench.seats)), self.ballot.term, self.coordinator is not None))

    def _on_prepare(self, peer: PeerId, incarnation: int, message: Prepare, now: float) -> None:
        if not self.takeover.on_prepare(Member(peer, incarnation), message, now) and self._is_seated(peer, incarnation):
            self._send(peer, self._beat())

    def _on_heartbeat(self, peer: PeerId, incarnation: int, beat: Heartbeat, now: float) -> None:
        if self._is_seated(peer, incarnation):
            self.takeover.saw(beat.ballot, now)
            self.view.news[peer] = PeerNews(incarnation, beat.ballot, beat.head, beat.step, beat.attempt)
            if peer not in self._watch and peer != self.leader.peer and self.coordinator is None:
                self._send(peer, self._beat())
                self._watch.for_a_while(peer, now)
        if self.coordinator:
            self.coordinator.on_heartbeat(Member(peer, incarnation), beat, now)

    def _beat(self) -> Heartbeat:
        o = self.bench.open
        step, attempt = (o.step, o.attempt) if o else (0, 0)
        ballot = max(self.ballot, self.acceptor.promised)
        return Heartbeat(self.config.member.incarnation, ballot, self.chain.head, step, attempt)

    def _on_probe(self, peer: PeerId, _: int, message: Probe, now: float) -> None:
        if message.member.peer != self._me:
            self.bench.introduce([Contact(message.member.peer, message.address)])
            self.view.expect(message.member.peer, now)
            self._watch.for_a_while(message.member.peer, now)
            self._send(message.member.peer, self._beat())

    # ---- facts for the coordinator ----

    def _hear(self, peer: PeerId, incarnation: int, message: Message, now: float) -> None:
        if self.coordinator:
            hear(self.coordinator, self.chain, Member(peer, incarnation), message, now)
        elif isinstance(message, Held):
            self.takeover.on_held(Member(peer, incarnation), message, now)

    def _on_goodbye(self, peer: PeerId, incarnation: int, message: Goodbye, now: float) -> None:
        if message.member != Member(peer, incarnation):
            return
        self.view.forget(peer)
        if self.coordinator:
            self.coordinator.on_goodbye(message.member, message.reason)
        elif peer == self.leader.peer:
            self.view.expect(peer, now - 2 * self._manifest.timing.lapse_s)

    def _is_seated(self, peer: PeerId, incarnation: int) -> bool:
        return self.chain.member_of(peer) == Member(peer, incarnation)

    def _on_applied_report(self, peer: PeerId, incarnation: int, message: AppliedReport, now: float) -> None:
        seat = self.bench.seats.get(message.stage) if self._is_seated(peer, incarnation) else None
        if self.coordinator and seat and seat.state.state_id == message.state_id and seat.state.digest != message.digest:
            fields = {
                "stage": message.stage,
                "peer": peer,
                "digest": message.digest,
                "own": seat.state.digest,
            }
            self._out.append(Note("digest_mismatch", fields | {"step": message.step}))

    def _on_order(self, peer: PeerId, _: int, message: Order, now: float) -> None:
        if self.coordinator:
            self.coordinator.on_order(message)
        elif peer != self.leader.peer:
            self._send(self.leader.peer, message)

    # ---- decisions of the coordinator ----

    def _on_propose(self, peer: PeerId, _: int, message: Propose, now: float) -> None:
        record = message.record
        wrong = self.chain.fits(record)
        if not wrong and isinstance(record, Commit):
            wrong = shares_misfit(record, message.shares, self._manifest, self.chain)
        if wrong and record.parent != self.chain.head:
            self._send(peer, RecordsWanted(self.chain.head))
        elif wrong:
            self._out.append(Note("refused", {"peer": peer, "reason": wrong}))
        elif self.acceptor.hold(message.ballot, record, message.shares):
            held = self.acceptor.holding
            assert held, "hold keeps what it accepts"
            self._send(peer, Held(message.ballot, held.id))

    def _on_decide(self, peer: PeerId, _: int, message: Decide, now: float) -> None:
        self.bench.introduce(message.contacts)
        self._learn(Proposed(message.ballot, message.record, message.shares), now)

    def _learn(self, told: Proposed, now: float) -> None:
        """A record is decided; if it is the next one, take it in."""
        record, parent = told.record, self.chain.head
        if record.parent != parent:
            return
        wrong = self.chain.fits(record)
        if wrong:
            self._out.append(Note("refused", {"peer": told.ballot.peer, "reason": wrong}))
            return
        ballot = [told.ballot.term, told.ballot.peer]
        head = self.chain.append(record, told.shares)
        self.acceptor.settled(head)
        self._out.append(Note("decided", {"record": head, "parent": parent, "ballot": ballot, "step": self.chain.step}))
        self.bench.end_evaluation()
        if isinstance(record, Commit):
            loss = {"step": record.step, "value": record.loss_sum / record.tokens, "tokens": record.tokens}
            self._out.append(Note("loss", loss))
            self.bench.commit(record, told.shares, now)
        else:
            self._enroll(record)
            self.bench.go_on(now)

    def _enroll(self, roster: Roster) -> None:
        for leave in roster.leaves:
            self._out.append(Note("left", {"stage": leave.stage, "peer": leave.member.peer, "step": roster.step}))
            if leave.member == self.config.member:
                self.bench.leave_seat(leave.stage)
            if self.chain.member_of(leave.member.peer) is None and leave.member.peer != self.leader.peer:
                self.view.forget(leave.member.peer)
        for join in roster.joins:
            fields = {"stage": join.stage, "peer": join.member.peer, "role": join.role, "step": roster.step}
            self._out.append(Note("joined", fields))
            if join.member == self.config.member:
                self.bench.take_seat(join)
        self._claim()

    # ---- a step ----

    def _on_open_step(self, peer: PeerId, _: int, message: OpenStep, now: float) -> None:
        if message.step > self.chain.step and message.parent != self.chain.head:
            self._send(peer, RecordsWanted(self.chain.head))
        self.bench.ask_open(message, now)

    def _on_payload(self, event: PayloadArrived, now: float) -> None:
        self.view.heard(event.peer, now)
        self.bench.arrived(event)

    def _watch_neighbours(self, step: OpenStep, now: float) -> None:
        """A step was opened here: exchange heartbeats with those that it names."""
        self._watched_step = step
        self._watch.name(step.watch, now)
        self.phase = "training"

    # ---- time ----

    def _on_tick(self, event: Tick, now: float) -> None:
        self.view.tick(event.heard, now)
        if now >= self._next_beat:
            self._next_beat = now + self._manifest.timing.heartbeat_s
            self._beat_all()
            self.bench.report(now, again=True)
            self._suspect_lapsed(now)
            if self.coordinator:
                self.coordinator.on_tick(now)
        self._watch.expire(now)
        self.bench.check_deadline(now)
        if self._is_seated(self._me, self.config.member.incarnation) and self.chain.step < self._manifest.last_step:
            self.takeover.on_tick(now)
            self._abdicate()
        self._check_leader(now)
        self._check_finish(now)

    def _beat_all(self) -> None:
        peers = dict.fromkeys([self.leader.peer, *self._watch])
        if self.coordinator:
            peers |= dict.fromkeys(m.peer for m in self.chain.members())
            peers |= dict.fromkeys(self.coordinator.gathering.wishes)
        beat = self._beat()
        for peer in peers:
            if peer != self._me:
                self._send(peer, beat)
        mine = [s.stage for s in self.chain.seatings if s.member == self.config.member]
        if any(stage not in self.bench.seats for stage in mine):
            self._send(self.leader.peer, Goodbye(self.config.member, "its seat is lost"))
        elif not mine:
            c = self.config
            self._send(self.leader.peer, Wish(c.member, c.wished_stage, c.name, c.address, c.memory_bytes))

    def _suspect_lapsed(self, now: float) -> None:
        for peer in self._watch.lapsed(now):
            member = self.chain.member_of(peer)
            if member and self.coordinator is None:
                reason = f"not heard for {self.view.silent_s(peer, now):.1f} s"
                self._send(self.leader.peer, Suspect(member, reason))

    def _check_leader(self, now: float) -> None:
        leader = self.leader
        if self.coordinator or not leader.peer or self.phase == "finished":
            return
        why = self.takeover.why_gone(now)
        if why and self.chain.step >= self._manifest.last_step:
            self.phase = "finished"
            self._say(f"finished at step {self.chain.step}: the coordinator has gone already")
            self._ending.begin(self.chain.step, now)
        elif why or self.takeover.candidate:
            self.phase, self._leaderless = "waiting", True
            if self.takeover.candidate is None:
                self._say(f"waiting: the coordinator {leader.peer[-8:]} {why}")
        elif self._leaderless and self.view.silent_s(leader.peer, now) < self._manifest.timing.heartbeat_s:
            self._leaderless, standing = False, self._standing
            self.phase = standing.phase if standing else "waiting"
            self._say(standing.sentence if standing else "waiting: the coordinator is back")

    # ---- the end ----

    def _on_standing(self, peer: PeerId, _: int, message: Standing, now: float) -> None:
        self._standing, self.phase = message, message.phase
        if message.validation_step >= 0:
            self.validation = (message.validation_step, message.validation_loss)
        seated = self.chain.member_of(self._me) == self.config.member
        without = "" if seated or not self.chain.step else " (without a seat here)"
        self._say(message.sentence + without)
        self._ending.told(message, now)

    def _check_finish(self, now: float) -> None:
        """A finished node serves its peers for a while; the coordinator also waits for those that are behind."""
        behind = bool(self.bench.seats) and (self.chain.step < self._ending.step or not self.bench.settled)
        if self.coordinator and not self.coordinator.is_caught_up(now):
            behind = True
        if self._ending.is_due(behind, now):
            self._exit(0, self.sentence)

    def _on_leave(self, event: LeaveAsked, now: float) -> None:
        self.phase = "leaving"
        goodbye = Goodbye(self.config.member, event.reason)
        peers = dict.fromkeys([self.leader.peer, *self._watch])
        if self.coordinator:
            peers |= dict.fromkeys(m.peer for m in self.chain.members())
        for peer in peers:
            if peer != self._me:
                self._send(peer, goodbye)
        self._exit(0, f"left: {event.reason}")

    def _exit(self, code: int, sentence: str) -> None:
        self.bench.close()
        self._emit(self.bench.take())
        self._out.append(PublishLease((), self.ballot.term, False, leaving=True))
        self._exiting = True
        self._out.append(Exit(code, sentence))
