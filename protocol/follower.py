"""A member's side of the chain: it holds what is proposed, takes in what is decided, begins anew where too much is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocol.acceptor import Acceptor
from protocol.assignment import first_meetings, make_plan
from protocol.chain import Chain
from protocol.checks import shares_misfit
from protocol.commands import Command, Connect, Note, SendMessage
from protocol.counted import contributors_of
from protocol.crediting import contradiction
from protocol.fork import parts_from
from protocol.ids import Member, PeerId, RecordId
from protocol.manifest import Manifest
from protocol.messages import Decide, Held, Message, OpenStep, Propose, Proposed, RecordsWanted, Summary
from protocol.records import Commit, Rebuild, Rollback, Roster, Seating, Share, is_fork
from protocol.shadows import told_of
from protocol.view import View
from protocol.workbench import Workbench

MAX_EARLY = 4
"""Decided records that are kept until what they follow has come."""


class Follower:
    """`claim` is called when this node's seats may have changed. `take` hands over the commands made since the last call."""

    def __init__(self, me: Member, manifest: Manifest, chain: Chain, acceptor: Acceptor, bench: Workbench, view: View) -> None:
        self.claim: Callable[[], None] = lambda: None
        self._me, self._manifest, self._chain = me, manifest, chain
        self._acceptor, self._bench, self._view = acceptor, bench, view
        self._early: dict[RecordId, Decide] = {}
        """By the record that it follows, which has not come yet."""
        self._out: list[Command] = []

    def take(self) -> list[Command]:
        """Commands made since the last call."""
        out, self._out = self._out, []
        return out

    def _send(self, peer: PeerId, message: Message) -> None:
        self._out.append(SendMessage(peer, message))

    def _refuse(self, peer: PeerId, wrong: str) -> None:
        self._out.append(Note("refused", {"peer": peer, "reason": wrong}))

    def on_propose(self, peer: PeerId, _: int, message: Propose, _now: float) -> None:
        """A voter is asked to hold a record."""
        record = message.record
        wrong = self._chain.fits(record)
        if not wrong and isinstance(record, Commit):
            wrong = shares_misfit(record, message.shares, self._manifest, self._chain)
            wrong = wrong or contradiction(record, message.shares, self._me.peer, self._bench.seats, self._chain)
        if wrong and record.parent != self._chain.head:
            self._send(peer, RecordsWanted(self._chain.head))
        elif wrong:
            self._refuse(peer, wrong)
        elif self._acceptor.hold(message.ballot, record, message.shares):
            held = self._acceptor.holding
            assert held, "hold keeps what it accepts"
            self._send(peer, Held(message.ballot, held.id))

    def on_decide(self, peer: PeerId, _: int, message: Decide, now: float) -> None:
        """The coordinator says what was decided. A spare hears only of what concerns itself, and asks for what came before."""
        self._bench.introduce(message.contacts)
        if self._chain.after(message.record.parent) is None:
            self._send(peer, RecordsWanted(self._chain.head))
            self._early[message.record.parent] = message
            while len(self._early) > MAX_EARLY:
                del self._early[next(iter(self._early))]
        self.learn(message, now)

    def learn(self, told: Decide | Proposed, now: float) -> None:
        """A record is decided; if it is the next one, take it in."""
        record, parent = told.record, self._chain.head
        if record.parent != parent or parts_from(self._me, record, self._chain):
            return
        wrong = self._chain.fits(record)
        if wrong:
            self._refuse(told.ballot.peer, wrong)
            return
        ballot = [told.ballot.term, told.ballot.peer]
        shares = self._shares_of(told)
        head = self._chain.append(record, shares)
        self._acceptor.settled(head)
        root = {"root": record.contributors} if isinstance(record, Commit) else {}
        decided = {"record": head, "parent": parent, "ballot": ballot, "step": self._chain.step}
        self._out.append(Note("decided", decided | root))
        self._bench.end_evaluation()
        if isinstance(record, Commit):
            loss = {"step": record.step, "value": record.loss_sum / record.tokens, "tokens": record.tokens}
            self._out.append(Note("loss", loss))
            self._bench.commit(record, shares, told.above if isinstance(told, Decide) else (), now)
        elif isinstance(record, Roster):
            self._enroll(record, now)
        elif isinstance(record, Rebuild):
            self._regrow(record, now)
        else:
            self._roll_back(record, now)
        self._learn_early(now)

    def _learn_early(self, now: float) -> None:
        if told := self._early.pop(self._chain.head, None):
            self.learn(told, now)

    def _shares_of(self, told: Decide | Proposed) -> tuple[Share, ...]:
        """Those that the record names, as far as this node knows them: of what it was told and what it holds."""
        held, record = self._acceptor.holding, told.record
        if not isinstance(record, Commit):
            return ()
        if told.shares and contributors_of(told.shares, record.step, self._manifest) == record.contributors:
            return told.shares
        return held.shares if held and held.record == record else ()

    def _enroll(self, roster: Roster, now: float) -> None:
        if is_fork(roster):
            peers = [m.peer for m in self._chain.members()]
            self._out.append(Note("forked", {"record": self._chain.head, "peers": peers, "step": roster.step}))
        for leave in roster.leaves:
            self._out.append(Note("left", {"stage": leave.stage, "peer": leave.member.peer, "step": roster.step}))
            if leave.member == self._me:
                self._bench.custody.leave_seat(leave.stage)
            if self._chain.member_of(leave.member.peer) is None and leave.member.peer != self._bench.leader:
                self._view.forget(leave.member.peer)
        for join in roster.joins:
            fields = {"stage": join.stage, "peer": join.member.peer, "role": join.role, "step": roster.step}
            self._out.append(Note("joined", fields))
            if join.member == self._me:
                self._bench.custody.take_seat(join)
        self._meet([join for join in roster.joins if join.role == "active"])
        self._bench.roster_changed(now)
        self.claim()

    def _meet(self, joins: Sequence[Seating]) -> None:
        """A stream over a WAN takes a third of a second to be there: those that the first step after this record needs are
        opened while it is waited for."""
        if not joins:
            return
        rows = [[s.member.peer for s in self._chain.active(stage)] for stage in range(self._manifest.num_stages)]
        if all(rows):
            plan = make_plan(self._manifest.batch.num_microbatches, rows, self._manifest.swapped)
            fresh = {join.member.peer for join in joins}
            self._out += [Connect(peer) for peer in first_meetings(self._me.peer, fresh, plan)]

    def _regrow(self, rebuild: Rebuild, now: float) -> None:
        """A lost stage is to be made of others, here or elsewhere."""
        sources = [{"stage": s.stage, "state_id": s.state_id, "coefficient": s.coefficient} for s in rebuild.sources]
        facts = {"stage": rebuild.stage, "policy": self._manifest.recovery.policy, "sources": sources}
        facts |= {"generation": rebuild.generation, "step": rebuild.step}
        self._out.append(Note("rebuild", facts | ({"shadow": told_of(rebuild.shadow)} if rebuild.shadow else {})))
        self._bench.custody.give_way(rebuild)
        for join in rebuild.joins:
            self._out.append(
                Note("joined", {"stage": join.stage, "peer": join.member.peer, "role": join.role, "step": rebuild.step})
            )
            if join.member == self._me and join.role == "active":
                self._bench.custody.regrow(join, rebuild)
        self._meet(rebuild.joins)
        self._bench.roster_changed(now)
        self.claim()

    def _roll_back(self, rollback: Rollback, now: float) -> None:
        """Everybody goes back, and somebody takes what nobody holds."""
        facts = {"epoch": rollback.epoch, "from_step": rollback.step, "step": rollback.to_step}
        stages = [join.stage for join in rollback.joins]
        self._out.append(Note("rolled_back", facts | {"stages": stages, "sources": list(rollback.states)}))
        for join in rollback.joins:
            where = {"stage": join.stage, "peer": join.member.peer, "role": join.role}
            self._out.append(Note("joined", where | {"step": rollback.to_step}))
        self._bench.roll_back(rollback)
        self._meet(rollback.joins)
        self._bench.roster_changed(now)
        self.claim()

    def on_summary(self, peer: PeerId, _: int, message: Summary, now: float) -> None:
        """This node lacks more than the coordinator still has, or knows another lineage only, in which it has no seat: it goes
        on from the newest, without state of its own."""
        is_free = message.lineage != self._chain.lineage and not self._chain.is_seated(self._me)
        if message.height <= self._chain.height and not is_free:
            return  # whoever holds a stage in another lineage gives that up for one that is further, or not by this
        self._bench.introduce(message.contacts)
        self._bench.close_attempt()
        self._bench.end_evaluation()
        wrong = self._chain.adopt(message)
        if wrong:
            self._refuse(peer, wrong)
            return
        self._acceptor.settled(message.head)
        self._out.append(Note("caught_up", {"record": message.head, "step": message.step}))
        self._bench.custody.begin_anew()
        for seating in self._chain.seatings:
            rebuild, rollback = self._chain.rebuilds.get(seating.stage), self._chain.rollback
            if seating.member == self._me and rollback and seating.role != "learner":
                self._bench.custody.restore(seating, rollback)
            elif seating.member == self._me and rebuild and seating in rebuild.joins and seating.role == "active":
                self._bench.custody.regrow(seating, rebuild)
            elif seating.member == self._me and seating.role == "learner":
                self._bench.custody.take_seat(seating)
        self._bench.roster_changed(now)
        self.claim()
        self._learn_early(now)

    def on_open_step(self, peer: PeerId, _: int, message: OpenStep, now: float) -> None:
        """The coordinator opens a step."""
        if message.step > self._chain.step and message.parent != self._chain.head:
            self._send(peer, RecordsWanted(self._chain.head))
        self._bench.ask_open(message, now)
