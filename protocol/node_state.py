"""The decision object of a node: `handle(event, now) -> commands`. Pure: no clock, no chance, no I/O, no tensor.

It owns the chain, the view, one `Seat` per stage that the node holds, the voter's `Acceptor`, the `Takeover` that waits for the
coordinator to go and, on the coordinating node, the `Coordinator`; it routes events to them, fences what is stale, and keeps
early payloads until their step is opened here. Messages to this node itself are handled in the same call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.checks import piece_misfit
from protocol.commands import Command, Exit, Note, PublishLease, Release, Say, SendMessage
from protocol.coordinator import Coordinator
from protocol.departure import Departure
from protocol.ending import Ending
from protocol.events import (
    Applied,
    CommandFailed,
    ComputeDone,
    Event,
    Learned,
    LearningGoesOn,
    LeasesSeen,
    LeaveAsked,
    MessageReceived,
    PayloadArrived,
    Reduced,
    SeatCreated,
    ShadowSealed,
    Surveyed,
    Tick,
)
from protocol.follower import Follower
from protocol.hearing import TO_COORDINATOR, hear
from protocol.heartbeats import Heartbeats
from protocol.ids import Ballot, Member, PeerId
from protocol.leader import Leader
from protocol.lineage import Meeting
from protocol.meeting import Meetings, Stand
from protocol.messages import (
    Contact,
    Decide,
    Goodbye,
    Heartbeat,
    Held,
    Message,
    OpenStep,
    Order,
    Prepare,
    Probe,
    Promise,
    Propose,
    ReduceHeader,
    Standing,
    Summary,
    Suspect,
    Yield,
)
from protocol.node_config import NodeConfig
from protocol.orders import Orders
from protocol.outlook import Outlook
from protocol.status import snapshot
from protocol.takeover import Takeover
from protocol.view import PeerNews, View
from protocol.watch import Watch
from protocol.workbench import Workbench

__all__ = ["NodeConfig", "NodeState"]

Handler = Callable[[PeerId, int, Any, float], None]
"""(sender, its incarnation, message, now)"""


class NodeState:
    """See the module."""

    def __init__(self, config: NodeConfig, chain: Chain | None = None, view: View | None = None) -> None:
        manifest, me = config.manifest, config.member
        self.config = config
        self.chain = chain or Chain(manifest, me if config.founder else None)
        self.view = view or View(manifest.timing.lapse_s)
        self.acceptor = Acceptor()
        self.bench = Workbench(manifest, me.peer, self.chain)
        self.leader = Leader(self.acceptor, self.chain, me if config.founder else None)
        self.takeover = Takeover(me, manifest, self.chain, self.view, self.leader, self.acceptor)
        self.follower = Follower(me, manifest, self.chain, self.acceptor, self.bench, self.view)
        self.meetings = Meetings(me, manifest, self.chain, self.view, self.takeover)
        self.follower.claim = self._claim
        self.takeover.learn = self.follower.learn
        self.outlook = Outlook("waiting" if config.founder else "starting")
        self.orders = Orders()
        self.coordinator = self._coordinate() if config.founder else None
        self._manifest, self._me = manifest, me.peer
        self._watched_step: OpenStep | None = None
        self._watch = Watch(self.view, 4 * manifest.timing.lapse_s)
        self._now = 0.0
        self.heartbeats = Heartbeats(config, self.chain, self.leader, self.acceptor, self.bench, self.outlook)
        self.departure = Departure(me, self.chain, manifest.timing.leave_notice_s, self._hears_anybody)
        self._ending = Ending(manifest.timing.linger_s, 4 * manifest.timing.lapse_s)
        self._exiting = False
        self._inbox: deque[tuple[PeerId, int, Message]] = deque()
        self._out: list[Command] = []
        self._messages: dict[type, Handler] = {
            Heartbeat: self._on_heartbeat,
            Goodbye: self._on_goodbye,
            Order: self._on_order,
            **dict.fromkeys(TO_COORDINATOR, self._hear),
            Prepare: self._on_prepare,
            Promise: lambda p, i, m, now: self.takeover.on_promise(Member(p, i), m, now),
            Propose: self._led(self.follower.on_propose),
            Decide: self._led(self.follower.on_decide),
            Summary: self._led(self.follower.on_summary),
            OpenStep: self._led(self.follower.on_open_step),
            **dict.fromkeys(self.bench.orders, self._led(lambda _p, _i, m, now: self.bench.orders[type(m)](m, now))),
            Probe: self._led(self._on_probe),
            Standing: self._led(self._on_standing),
            Yield: self._led(self._on_yield),
            Meeting: self._on_meeting,
        }
        self._events: dict[type, Callable[[Any, float], None]] = {
            Tick: self._on_tick,
            LeasesSeen: self._on_leases,
            MessageReceived: self._on_message,
            PayloadArrived: self._on_payload,
            SeatCreated: self.bench.created,
            LearningGoesOn: self.bench.learning,
            Learned: self.bench.learned,
            **self.bench.custody.facts,
            ShadowSealed: lambda event, _: self.bench.shadows.sealed(event, self.ballot),
            Surveyed: self._on_surveyed,
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
        self._now = now
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
            if self.takeover.won and not self.heartbeats.may_lead:
                self.takeover.stand_back(now)
            elif self.takeover.won:
                self._lead(now)
            if self.coordinator and not self._exiting:
                self.coordinator.advance(now)
                self._emit(self.coordinator.take())
            if not self._inbox:
                return

    def _drain_bench(self, now: float) -> None:
        for part in (self.bench, self.follower, self.bench):
            if made := part.take():
                self._emit(made)
        if self.bench.open is not None and self.bench.open is not self._watched_step:
            self._watch_neighbours(self.bench.open, now)
            self._out += self.outlook.goes_on()

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
        self._out += self.outlook.say(sentence)

    def _coordinate(self) -> Coordinator:
        return Coordinator(self.config.manifest, self.config.member, self.ballot, self.chain, self.view, self.orders)

    def takes_piece(self, peer: PeerId, header: ReduceHeader) -> bool:
        """May `peer` bring a piece of a gradient sum to this node, for a reduce that runs or will soon?"""
        return header.ballot == self.ballot and not piece_misfit(peer, header, self._me, self.chain)

    # ---- who is there ----

    def _on_leases(self, event: LeasesSeen, now: float) -> None:
        self.bench.introduce([*event.others, *([event.coordinator] if event.coordinator else [])])
        gone, seated = self.coordinator is None and self.takeover.is_gone(now), self.chain.is_seated(self.config.member)
        other = event.coordinator.peer if event.coordinator and event.coordinator.peer != self.leader.peer else ""
        if other and (not self.leader.peer or (gone and not seated)):
            self.leader.learn(other)
            self.bench.leader = other
            self.view.expect(other, now)
            self.heartbeats.soon(now)
        elif other and gone and self.heartbeats.lacks and self.takeover.is_forsaken(now):
            self._begin_anew(other, now)
        if not self.leader.peer:
            self._say("waiting: no coordinator is known yet")
        self._emit(self.meetings.look([c.peer for c in event.rivals], Stand(self.ballot, self.coordinator is not None), now))

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
        self.heartbeats.soon(now)
        self._abdicate()

    def _abdicate(self) -> None:
        if self.coordinator and not self.takeover.leading:
            self.coordinator = None
            self._claim()

    def _lead(self, now: float) -> None:
        """This node has won the role: with the promises of a quorum, and nothing left to settle."""
        before = self.takeover.succession(self.outlook.validation)
        self.leader.speaks(self._me, self.config.member.incarnation, before.ballot)
        self.bench.ballot, self.bench.leader = before.ballot, self._me
        self.coordinator = self._coordinate()
        self.coordinator.succeed(before, self.bench.addresses | {self._me: self.config.address}, now)
        self.outlook.leads()
        self.heartbeats.soon(now)
        self._out.append(Note("took_over", {"term": before.ballot.term, "from": before.peer, "step": self.chain.step}))
        self._claim()

    def _claim(self) -> None:
        self._out.append(PublishLease(tuple(sorted(self.bench.seats)), self.ballot.term, self.coordinator is not None))

    def _on_prepare(self, peer: PeerId, incarnation: int, message: Prepare, now: float) -> None:
        sender = Member(peer, incarnation)
        if not self.takeover.on_prepare(sender, message, now) and self.chain.is_seated(sender):
            self._send(peer, self._beat())

    def _on_heartbeat(self, peer: PeerId, incarnation: int, beat: Heartbeat, now: float) -> None:
        self.leader.beats(peer, beat)
        sender = Member(peer, incarnation)
        if self.chain.is_seated(sender):
            self.takeover.saw(beat.ballot, now)
            self.view.news[peer] = PeerNews(incarnation, beat.ballot, beat.head, beat.step, beat.attempt, now, beat.lacks)
            if peer not in self._watch and peer != self.leader.peer and self.coordinator is None:
                self._send(peer, self._beat())
                self._watch.for_a_while(peer, now)
        elif self.coordinator and peer in self.chain.seen:
            self.takeover.saw_former(sender, beat, now)
        if self.coordinator:
            self.coordinator.on_heartbeat(sender, beat, now)

    def _beat(self) -> Heartbeat:
        hopes = self.takeover.hopes(self._now)
        return self.heartbeats.beat(leads=bool(self.coordinator or (hopes and self.takeover.candidate)), hopes=hopes)

    def _on_probe(self, peer: PeerId, _: int, message: Probe, now: float) -> None:
        if message.member.peer != self._me:
            self.bench.introduce([Contact(message.member.peer, message.address)])
            self.view.expect(message.member.peer, now)
            self._watch.for_a_while(message.member.peer, now)
            self._send(message.member.peer, self._beat())

    # ---- other lineages ----

    def _on_meeting(self, peer: PeerId, incarnation: int, message: Meeting, now: float) -> None:
        stand = Stand(self.ballot, self.coordinator is not None)
        stays = self.meetings.on_meeting(Member(peer, incarnation), message, stand, now)
        self._emit(self.meetings.take())
        if not stays:
            to = Contact(peer, self.bench.addresses.get(peer, ""))
            for member in self.chain.members() if self.coordinator else ():
                if member.peer != self._me:
                    self._send(member.peer, Yield(self.ballot, to))
            self._begin_anew(peer, now)

    def _on_yield(self, _: PeerId, _incarnation: int, message: Yield, now: float) -> None:
        if message.to.peer != self._me:
            self.bench.introduce([message.to])
            self._begin_anew(message.to.peer, now)

    def _begin_anew(self, to: PeerId, now: float) -> None:
        """Another lineage is further: leave this one, with all its state, and ask for a seat there."""
        self._out.append(Note("yielded", {"to": to, "step": self.chain.step}))
        self._say(f"another part of the swarm is further: joining it at {to[-8:]}")
        for member in self.chain.members():
            self.view.forget(member.peer)
        self.coordinator = None
        self.outlook.begin_anew()
        self.chain.begin_anew()
        self.acceptor.begin_anew()
        self.leader.learn(to)
        self.takeover.begin_anew()
        self.meetings.begin_anew()
        self.bench.leave_lineage(to, "joins another lineage")
        self.view.expect(to, now)
        self.heartbeats.soon(now)
        self._claim()

    # ---- facts for the coordinator ----

    def _hear(self, peer: PeerId, incarnation: int, message: Message, now: float) -> None:
        if self.coordinator:
            hear(self.coordinator, self.chain, Member(peer, incarnation), message, now)
        elif isinstance(message, Held):
            self.takeover.on_held(Member(peer, incarnation), message, now)

    def _on_surveyed(self, event: Surveyed, _now: float) -> None:
        if self.coordinator:
            self.coordinator.recovery.rollbacks.on_surveyed(event)

    def _on_goodbye(self, peer: PeerId, incarnation: int, message: Goodbye, now: float) -> None:
        if message.member != Member(peer, incarnation):
            return
        self.view.forget(peer)
        if self.coordinator:
            self.coordinator.on_goodbye(message.member, message.reason)
        elif peer == self.leader.peer:
            self.view.expect(peer, now - 2 * self._manifest.timing.lapse_s)

    def _on_order(self, peer: PeerId, _: int, message: Order, now: float) -> None:
        if not self.orders.take(message):
            return
        if self.coordinator:
            self.coordinator.herald.tell_everybody(now)
        elif peer != self.leader.peer:
            self._send(self.leader.peer, message)

    # ---- a step ----

    def _on_payload(self, event: PayloadArrived, now: float) -> None:
        self.view.heard(event.peer, now)
        self.bench.arrived(event)

    def _watch_neighbours(self, step: OpenStep, now: float) -> None:
        """A step was opened here: exchange heartbeats with those that it names."""
        self._watched_step = step
        self._watch.name(step.watch, now)
        self.outlook.phase = "training"

    # ---- time ----

    def _on_tick(self, event: Tick, now: float) -> None:
        self.view.tick(event.heard, now)
        beats = self.heartbeats.is_due(now)
        if beats:
            self._beat_all()
            self.bench.report(now, again=True)
        self._suspect_lapsed(now, again=beats)
        if self.coordinator:
            self.coordinator.lacks = self.takeover.lacks(now)
            self.coordinator.on_tick(now, beats)
        self._watch.expire(now, self.chain.member_of)
        self.bench.check_deadline(now)
        if not self.heartbeats.may_lead:
            self.takeover.stand_aside(now)
        elif self.chain.step < self._manifest.last_step:
            self.takeover.on_tick(now, self.coordinator.stuck_since if self.coordinator else None)
            self._abdicate()
        self._check_departure(now)
        if self.bench.defect and not self._exiting:
            self._go(self.bench.defect, 6)
        self._check_leader(now)
        self._check_finish(now)

    def _beat_all(self) -> None:
        beat = self._beat()
        self._out += [SendMessage(peer, beat) for peer in self._listeners() if peer and peer != self._me]
        if (newer := self.orders.unknown_to(self.outlook.order)) and self.coordinator is None:
            self._send(self.leader.peer, newer)
        if self.departure.is_on:
            self._send(self.leader.peer, self.departure.leave())
        for message in self.heartbeats.asks(leaves=self.departure.is_on):
            self._send(self.leader.peer, message)

    def _listeners(self) -> Iterable[PeerId]:
        """Whom it tells that it lives, each once; itself and '' may be among them."""
        members = self.chain.by_peer if self.coordinator or self.takeover.roll.is_on else ()
        wishes = self.coordinator.members.gathering.wishes if self.coordinator else ()
        return dict.fromkeys([self.leader.peer, *self._watch, *members, *wishes])

    def _suspect_lapsed(self, now: float, again: bool) -> None:
        for peer in self._watch.lapsed(now, again):
            member = self.chain.member_of(peer)
            if member and self.coordinator is None:
                self._send(self.leader.peer, Suspect(member, f"not heard for {self.view.silent_s(peer, now):.1f} s"))

    def _check_leader(self, now: float) -> None:
        leader = self.leader
        if self.coordinator or not leader.peer or self.outlook.phase == "finished" or self._ending.code:
            return
        why = self.takeover.why_gone(now)
        if why and self.chain.step >= self._manifest.last_step:
            self.outlook.phase = "finished"
            self._say(f"finished at step {self.chain.step}: the coordinator has gone already")
            self._ending.begin(self.chain.step, now)
        elif why or self.takeover.candidate:
            self.outlook.leaderless()
            if self.takeover.candidate is None:
                self._say(f"waiting: the coordinator {leader.peer[-8:]} {why}")
        elif self.view.silent_s(leader.peer, now) < self._manifest.timing.heartbeat_s:
            self._out += self.outlook.led()

    # ---- the end ----

    def _on_standing(self, _: PeerId, _incarnation: int, message: Standing, now: float) -> None:
        self._out += self.outlook.told(message, self.chain.is_seated(self.config.member) or not self.chain.step)
        self.orders.take(message.order)
        self._ending.told(message, now)

    def _check_finish(self, now: float) -> None:
        """A finished node serves its peers for a while; the coordinator also waits for those that are behind."""
        lost = self.takeover.given_up(now)
        if lost:
            self._say(lost)
            self._ending.give_up(lost, now)
        if self._ending.at is None:
            return
        behind = bool(self.bench.seats) and (self.chain.step < self._ending.step or not self.bench.settled)
        behind = behind or bool(self.coordinator and not self.coordinator.is_caught_up(now))
        if self._ending.is_due(behind, now):
            self._exit(self._ending.code, self._ending.sentence or self.outlook.sentence)

    def _hears_anybody(self) -> bool:
        """Is anybody else on the roster known to live? Of those that said goodbye nothing is expected any more."""
        return self.view.hears((m.peer for m in self.chain.members() if m != self.config.member), self._now)

    def _on_leave(self, event: LeaveAsked, now: float) -> None:
        """The first time it leaves in order, if that is of use; asked again, it goes at once."""
        sentence = "" if self.departure.is_on or self.outlook.phase == "finished" else self.departure.begin(event.reason, now)
        self.outlook.phase = "leaving"
        if not sentence:
            self._go(event.reason)
            return
        self._say(sentence)
        self._send(self.leader.peer, self.departure.leave())

    def _check_departure(self, now: float) -> None:
        knows = self.coordinator is None or not self.departure.is_on or self.coordinator.is_caught_up(now)
        if self.departure.is_due(knows, now):
            self._go(self.departure.reason)

    def _go(self, reason: str, code: int = 0) -> None:
        for peer in dict.fromkeys([self.leader.peer, *self._watch, *(self.chain.by_peer if self.coordinator else ())]):
            if peer != self._me:
                self._send(peer, Goodbye(self.config.member, reason))
        self._exit(code, f"left: {reason}")

    def _exit(self, code: int, sentence: str) -> None:
        self.bench.close()
        self._emit(self.bench.take())
        self._out.append(PublishLease((), self.ballot.term, False, leaving=True))
        self._exiting = True
        self._out.append(Exit(code, sentence))
