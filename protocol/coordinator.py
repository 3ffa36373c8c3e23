"""The coordinator: opens steps, proposes records, declares losses. A role, not a node: it is tied to no stage.

It does one thing at a time, in this order of precedence: settle an open proposal, take lost members off the roster, finish the
open attempt, finish the evaluation, and only then begin something new. `advance` holds that order; everything else only enters
facts. What it decides goes out as messages, also to its own node.
"""

from __future__ import annotations

from protocol.assignment import MAX_WATCHED_NEIGHBOURS, make_plan
from protocol.chain import Chain, choose_voters
from protocol.commands import Command, Introduce, Note, SendMessage
from protocol.gathering import Gathering
from protocol.ids import ATTEMPTS_PER_TERM, Ballot, Member, PeerId, RecordId
from protocol.ledger import Ledger, contacts_of
from protocol.losses import Losses, promotions
from protocol.manifest import Manifest
from protocol.messages import (
    Decide,
    Evaluated,
    Heartbeat,
    Held,
    Message,
    OpenEvaluation,
    OpenStep,
    Order,
    Phase,
    Probe,
    ReducedReport,
    ReduceReady,
    SeatWork,
    Stalled,
    Standing,
    Suspect,
    VoidStep,
    Wish,
)
from protocol.poll import Poll
from protocol.proposal import Proposal
from protocol.records import Commit, Record, Roster, Share
from protocol.takeover import Succession
from protocol.view import View

RESEND_HEARTBEATS = 2.0
STANDING_HEARTBEATS = 5.0
MAX_BACKOFF_HEARTBEATS = 30.0
COMPLAIN_AFTER_VOIDS = 3
REDUCE_PATIENCE = 8.0
"""Without a report during a reduce, in units of `first_microbatch_s`."""


class Coordinator:
    """See the module. Facts come in through `on_*`, time through `on_tick`; `take` hands over the commands made since."""

    def __init__(self, manifest: Manifest, me: Member, ballot: Ballot, chain: Chain, view: View) -> None:
        self.ballot = ballot
        self.gathering = Gathering(manifest)
        self.addresses: dict[PeerId, str] = {}
        self.ledger: Ledger | None = None
        self.phase: Phase = "waiting"
        self.sentence = "waiting for nodes"
        self.validation: tuple[int, float] = (-1, 0.0)
        self._manifest, self._me, self._chain, self._view = manifest, me, chain, view
        self._proposal: Proposal | None = None
        self._poll: Poll | None = None
        self._losses = Losses(me, chain, view, manifest.timing.lapse_s)
        self._orders: dict[str, bool] = {"pause": False, "stop": False}
        self._serial = 0
        self._first_attempt = ATTEMPTS_PER_TERM * (ballot.term - 1)
        self._attempt = self._first_attempt
        self._voids = 0
        self._void_reason = ""
        self._reopen_at = 0.0
        self._polled_step = 0
        self._told_at: dict[PeerId, float] = {}
        self._asked_at: dict[PeerId, float] = {}
        self._standing_at: dict[PeerId, float] = {}
        self._out: list[Command] = []

    def take(self) -> list[Command]:
        """Commands made since the last call."""
        out, self._out = self._out, []
        return out

    def succeed(self, before: Succession, addresses: dict[PeerId, str], now: float) -> None:
        """Take over a run that goes on: everybody on the roster is expected to be heard, and those that promised have said
        that the coordinator before is silent for them too."""
        self.addresses |= addresses
        self.validation, self._polled_step = before.validation, max(0, before.validation[0])
        self._orders["pause"] = before.paused
        for member in self._chain.members():
            self._view.expect(member.peer, now)
        gone = self._chain.member_of(before.peer)
        for peer in before.promised if gone else ():
            self._losses.suspect(peer, gone, now)  # type: ignore[arg-type]
        self._look(now)

    # ---- facts ----

    def on_wish(self, wish: Wish, now: float) -> None:
        """Somebody wants a seat. After the start the set of nodes is fixed: the wish is answered with the standing."""
        if self._chain.member_of(wish.member.peer) != wish.member:
            if not self.gathering.enter(wish):
                return
            self._standing_at.setdefault(wish.member.peer, -1e9)
        self.addresses[wish.member.peer] = wish.address
        if wish.member != self._me and wish.address:
            self._out.append(Introduce(wish.member.peer, wish.address))
        self._view.expect(wish.member.peer, now)
        self._losses.heard(wish.member)

    def on_heartbeat(self, heard: Member, beat: Heartbeat, now: float) -> None:
        """A peer that is behind gets the records that it lacks, and the open step or the void of an old one again."""
        self._losses.heard(heard)
        peer, member, ledger = heard.peer, self._chain.member_of(heard.peer), self.ledger
        if now - self._told_at.get(peer, -1e9) < RESEND_HEARTBEATS * self._manifest.timing.heartbeat_s:
            return
        if beat.ballot < self.ballot and member:
            self._send(peer, self._standing())
        if beat.head != self._chain.head:
            self._told_at[peer] = now
            self.send_records(peer, beat.head)
        if member is None or self._proposal is not None:
            return
        if ledger and not ledger.names(beat.step, beat.attempt):
            self._told_at[peer] = now
            self._send_open(member, ledger)
        elif ledger is None and beat.step > self._chain.step:
            self._told_at[peer] = now
            self._send(peer, VoidStep(self.ballot, beat.step, beat.attempt, self._void_reason or "it is not open any more"))

    def on_ready(self, member: Member, message: ReduceReady, now: float) -> None:
        """An active replica accumulated all that it owns; the last one of a stage starts its reduce."""
        ledger = self.ledger
        if ledger is None or not ledger.names(message.step, message.attempt) or self._proposal:
            return
        wrong = ledger.enter_ready(member, message, now)
        if wrong:
            self._out.append(Note("refused", {"peer": member.peer, "reason": wrong}))
            return
        if not ledger.covered(message.stage):
            return
        start = ledger.start_reduce(message.stage, self.addresses)
        again = message.stage in ledger.started
        ledger.started.add(message.stage)
        for row in start.members:
            if not again or row.member == member:
                self._send(row.member.peer, start)

    def on_reduced(self, member: Member, message: ReducedReport, now: float) -> None:
        """A replica holds the sum. A result unlike its siblings' counts as silence and voids the attempt."""
        ledger = self.ledger
        if ledger is None or not ledger.names(message.step, message.attempt) or self._proposal:
            return
        wrong = ledger.enter_reduced(member, message, now)
        if wrong:
            self._out.append(Note("refused", {"peer": member.peer, "reason": wrong}))
        elif conflict := ledger.conflict(message):
            self._void(f"peer {member.peer[-8:]}: {conflict}", now)

    def on_held(self, member: Member, message: Held) -> None:
        """A voter holds the proposal."""
        if self._proposal:
            self._proposal.enter(member, message)

    def on_records_wanted(self, peer: PeerId, head: RecordId, now: float) -> None:
        """A peer lacks what came after `head`; it is answered once per heartbeat."""
        if now - self._asked_at.get(peer, -1e9) >= self._manifest.timing.heartbeat_s:
            self._asked_at[peer] = now
            self.send_records(peer, head)

    def on_stalled(self, member: Member, message: Stalled, now: float) -> None:
        """A seat cannot finish the attempt."""
        if self.ledger and self.ledger.names(message.step, message.attempt) and self._proposal is None:
            blame = f" ({message.peer[-8:]})" if message.peer else ""
            self._void(f"peer {member.peer[-8:]}: {message.reason}{blame}", now)

    def on_suspect(self, peer: PeerId, message: Suspect, now: float) -> None:
        """A second opinion about a member that may be lost."""
        if self._losses.suspect(peer, message.member, now):
            self._out.append(Note("suspected", {"peer": message.member.peer, "by": peer, "reason": message.reason}))

    def on_goodbye(self, member: Member, reason: str) -> None:
        """A node leaves and says so: no lapse is waited for."""
        self.gathering.leave(member)
        self._standing_at.pop(member.peer, None)
        self._losses.left(member, reason)

    def on_evaluated(self, peer: PeerId, message: Evaluated) -> None:
        """Loss of one held-out microbatch."""
        if self._poll:
            self._poll.enter(peer, message)

    def on_order(self, order: Order) -> None:
        """The organiser wants something (the signature was checked at the edge)."""
        if order.serial > self._serial:
            self._serial = order.serial
            self._orders["pause"] = order.action == "pause"
            self._orders["stop"] = self._orders["stop"] or order.action == "stop"

    # ---- time ----

    def on_tick(self, now: float) -> None:
        """Find lapsed members, repeat what may not have arrived."""
        self._look(now)
        timing, proposal = self._manifest.timing, self._proposal
        if proposal and now - proposal.sent_at >= RESEND_HEARTBEATS * timing.heartbeat_s:
            self._send_proposal(proposal, now)
        if proposal and now - proposal.opened_at > timing.lapse_s:
            held, voters = len(proposal.held), len(self._chain.voters)
            self._stand("waiting", f"waiting for a quorum: {held} of {voters} voters answer", now)
        if self.ledger and not proposal:
            self._hurry(self.ledger, now)
        self._forget_strangers(now)
        for peer, at in self._standing_at.items():
            if now - at >= STANDING_HEARTBEATS * timing.heartbeat_s:
                self._standing_at[peer] = now
                self._send(peer, self._standing())

    def _look(self, now: float) -> None:
        for peer, member in self._losses.look(now):
            self._send(peer, Probe(self.ballot, member, self.addresses.get(member.peer, "")))

    def _hurry(self, ledger: Ledger, now: float) -> None:
        """A passive replica has nothing to report before a reduce, so its StartReduce is repeated unasked; and a reduce in
        which nothing comes of that for long is given up, whoever lives."""
        missing = [(stage, member) for stage, member in ledger.missing() if stage in ledger.started]
        for stage, member in missing:
            seating = ledger.seated(stage, member)
            last = self._told_at.get(member.peer, -1e9)
            if seating and seating.role != "active" and now - last >= RESEND_HEARTBEATS * self._manifest.timing.heartbeat_s:
                self._told_at[member.peer] = now
                self._send(member.peer, ledger.start_reduce(stage, self.addresses))
        if len(ledger.started) == self._manifest.num_stages and missing:
            waited = now - ledger.progress_at
            if waited > REDUCE_PATIENCE * self._manifest.timing.first_microbatch_s:
                stage, member = missing[0]
                self._void(f"peer {member.peer[-8:]} does not have the sum of stage {stage} after {waited:.0f} s", now)

    def _forget_strangers(self, now: float) -> None:
        """What is remembered of those without a seat ends with their life here; the transport bounds how many live."""
        for wish in list(self.gathering.wishes.values()):
            if wish.member != self._me and self._view.lapsed(wish.member.peer, now):
                self.gathering.leave(wish.member)
        known = {*self.gathering.wishes, *(m.peer for m in self._chain.members()), self._me.peer}
        for peer in [p for p in {**self._standing_at, **self.addresses} if p not in known]:
            self._standing_at.pop(peer, None)
            self.addresses.pop(peer, None)
            self._view.forget(peer)
        heartbeat_s = self._manifest.timing.heartbeat_s
        self._told_at = {peer: at for peer, at in self._told_at.items() if now - at < RESEND_HEARTBEATS * heartbeat_s}
        self._asked_at = {peer: at for peer, at in self._asked_at.items() if now - at < heartbeat_s}

    # ---- decisions ----

    def advance(self, now: float) -> None:
        """Do the next thing, if there is one to do now."""
        if self._proposal:
            self._try_decide(self._proposal)
        elif not self._chain.seatings:
            self._gather(now)
        elif self._losses:
            self._drop_lost(self._losses.take(), now)
        elif self._chain.voters[0] != self._me:
            self._name_voters(now)
        elif self.ledger:
            if self.ledger.complete():
                self._propose_commit(self.ledger, now)
        elif self._poll:
            self._try_close_poll(self._poll, now)
        else:
            self._begin(now)

    def _begin(self, now: float) -> None:
        empty, step = self._chain.empty_stages(), self._chain.step
        finished = step >= self._manifest.last_step or self._orders["stop"]
        if self._evaluation_due(step) and not empty:
            self._open_poll(now)
        elif finished:
            why = "max_steps or max_tokens reached" if step >= self._manifest.last_step else "stopped by the organiser"
            self._stand("finished", f"finished at step {step}: {why}", now)
        elif empty:
            which = ", ".join(map(str, empty))
            self._stand("waiting", f"waiting: stage {which} has no holder since step {step}", now)
        elif self._orders["pause"]:
            self._stand("paused", f"paused by the organiser at step {step}", now)
        elif now >= self._reopen_at:
            self._open_step(now)

    def _gather(self, now: float) -> None:
        gathered = self.gathering.seat()
        if not gathered.seatings:
            self._stand("waiting", gathered.sentence, now)
            return
        voters = choose_voters(list(gathered.seatings), self._me)
        for seating in gathered.seatings:
            self.gathering.leave(seating.member)
        self._propose(Roster(self._chain.head, 0, gathered.seatings, (), voters), (), now)

    def _drop_lost(self, lost: dict[Member, str], now: float) -> None:
        if self.ledger:
            self._void("; ".join(f"{m.peer[-8:]} {why}" for m, why in lost.items()), now)
        if self._poll:
            self._skip_poll("a member was lost")
        step = self._chain.step + 1
        leaves = tuple(s for s in self._chain.seatings if s.member in lost)
        for seating in leaves:
            fields = {"stage": seating.stage, "peer": seating.member.peer, "reason": lost[seating.member]}
            self._out.append(Note("lost", fields | {"step": step}))
        stay = [s for s in self._chain.seatings if s.member not in lost]
        promoted = promotions(stay)
        for seating in promoted:
            self._out.append(Note("promoted", {"stage": seating.stage, "peer": seating.member.peer, "step": step}))
        voters = choose_voters([*stay, *promoted], self._me)
        self._reopen_at, self._voids = now, 0
        self._propose(Roster(self._chain.head, self._chain.step, promoted, leaves, voters), (), now)

    def _name_voters(self, now: float) -> None:
        """The voters were named by another coordinator; half of them is enough only with the one that named them."""
        chain = self._chain
        heard = [s for s in chain.seatings if not self._view.lapsed(s.member.peer, now)]
        self._propose(Roster(chain.head, chain.step, (), (), choose_voters(heard, self._me)), (), now)

    def _propose_commit(self, ledger: Ledger, now: float) -> None:
        """Each number was checked when it came; together they may still be too large for the clip."""
        commit, shares = ledger.commit()
        wrong = self._chain.fits(commit)
        if wrong:
            self._void(f"the step cannot be committed: {wrong}", now)
        else:
            self._propose(commit, shares, now)

    def _propose(self, record: Record, shares: tuple[Share, ...], now: float) -> None:
        self._proposal = Proposal(self.ballot, record, shares, now, now)
        self._send_proposal(self._proposal, now)

    def _send_proposal(self, proposal: Proposal, now: float) -> None:
        proposal.sent_at = now
        for voter in self._chain.voters:
            if voter not in proposal.held:
                self._send(voter.peer, proposal.ask())

    def _try_decide(self, proposal: Proposal) -> None:
        if not proposal.is_decided(self._chain.voters):
            return
        self._proposal = None
        before = [m.peer for m in self._chain.members()]
        joined = [s.member.peer for s in proposal.record.joins] if isinstance(proposal.record, Roster) else []
        if isinstance(proposal.record, Commit):
            self.ledger, self._attempt, self._voids, self._void_reason = None, self._first_attempt, 0, ""
        for peer in dict.fromkeys([*before, *joined]):
            self._send_decide(peer, proposal.record, proposal.shares)

    def _send_decide(self, peer: PeerId, record: Record, shares: tuple[Share, ...]) -> None:
        """With the shares that concern the peer. Voters keep all of them, for those that ask for the record later."""
        mine = {s.stage for s in self._chain.seatings if s.member.peer == peer}
        voters = {self._me.peer, *(v.peer for v in self._chain.voters)}
        kept = shares if peer in voters else tuple(s for s in shares if s.stage in mine)
        seated = [s.member.peer for s in record.joins] if isinstance(record, Roster) else []
        self._send(peer, Decide(self.ballot, record, kept, contacts_of(list(dict.fromkeys(seated)), self.addresses)))

    def send_records(self, peer: PeerId, head: RecordId) -> None:
        """Send what was decided after `head`, as far as this node still has it."""
        for decided in self._chain.after(head) or ():
            self._send_decide(peer, decided.record, decided.shares)

    # ---- steps ----

    def _open_step(self, now: float) -> None:
        chain = self._chain
        stages = range(self._manifest.num_stages)
        active = [[s.member.peer for s in chain.active(stage)] for stage in stages]
        plan = make_plan(self._manifest.batch.num_microbatches, active, self._manifest.swapped)
        self._attempt += 1
        seats = [chain.seated(stage) for stage in stages]
        step = chain.step + 1
        tokens = self._manifest.batch.tokens_per_microbatch
        self.ledger = Ledger(self.ballot, step, self._attempt, chain.head, plan, seats, tokens, now)
        trouble = f" (voided {self._voids} times: {self._void_reason})" if self._voids >= COMPLAIN_AFTER_VOIDS else ""
        self._stand("training", f"training step {step}{trouble}" if trouble else "training", now)
        for member in chain.members():
            self._view.expect(member.peer, now)
            self._told_at[member.peer] = now
            self._send_open(member, self.ledger)

    def _send_open(self, member: Member, ledger: Ledger) -> None:
        peer, plan = member.peer, ledger.plan
        work = tuple(
            SeatWork(
                s.stage,
                s.role,
                s.generation,
                plan.hands.get((s.stage, peer), ()) if s.role == "active" else (),
            )
            for row in ledger.seats
            for s in row
            if s.member == member
        )
        neighbours = plan.neighbours(peer)
        ring = self._ring(member)
        watch = tuple(dict.fromkeys([*ring, *neighbours[:MAX_WATCHED_NEIGHBOURS]]))
        contacts = contacts_of(list(dict.fromkeys([*neighbours, *ring])), self.addresses)
        self._send(
            peer,
            OpenStep(self.ballot, ledger.step, ledger.attempt, ledger.parent, work, plan.routes_from(peer), contacts, watch),
        )

    def _ring(self, member: Member) -> list[PeerId]:
        """The members before and after in roster order: so everybody is watched by a second node."""
        row = self._chain.members()
        at = row.index(member)
        around = [row[at - 1].peer, row[(at + 1) % len(row)].peer]
        return [p for p in dict.fromkeys(around) if p != member.peer]

    def _void(self, reason: str, now: float) -> None:
        ledger, self.ledger = self.ledger, None
        assert ledger, "only an open attempt can be voided"
        self._voids += 1
        self._void_reason = reason
        backoff = min(2.0 ** (self._voids - 1), MAX_BACKOFF_HEARTBEATS)
        self._reopen_at = now + backoff * self._manifest.timing.heartbeat_s
        for member in self._chain.members():
            self._send(member.peer, VoidStep(self.ballot, ledger.step, ledger.attempt, reason))

    # ---- evaluation ----

    def _evaluation_due(self, step: int) -> bool:
        every = self._manifest.evaluation.every_steps
        if not every or not self._manifest.data.validation or step == 0 or step == self._polled_step:
            return False
        return step % every == 0 or step >= self._manifest.last_step

    def _open_poll(self, now: float) -> None:
        chain, wanted = self._chain, self._manifest.evaluation.num_microbatches
        self._polled_step = chain.step
        active = [[s.member.peer for s in chain.active(stage)] for stage in range(self._manifest.num_stages)]
        plan = make_plan(wanted, active, swapped=False)
        self._poll = Poll(
            chain.head,
            plan.owner[0],
            self._manifest.batch.tokens_per_microbatch,
            now + self._manifest.timing.first_microbatch_s,
        )
        self._stand("evaluating", f"evaluating after step {chain.step}", now)
        for peer in dict.fromkeys(plan.owner[0]):
            contacts = contacts_of(plan.neighbours(peer), self.addresses)
            self._send(peer, OpenEvaluation(self.ballot, chain.head, chain.step, plan.routes_from(peer), contacts))

    def _try_close_poll(self, poll: Poll, now: float) -> None:
        if poll.complete:
            self._poll = None
            self.validation = (self._chain.step, poll.mean())
            self._out.append(Note("validation", {"step": self._chain.step, "value": self.validation[1]}))
            self._tell_everybody(now)
        elif now >= poll.deadline or self._chain.empty_stages():
            self._skip_poll("not all results came in time")

    def _skip_poll(self, reason: str) -> None:
        self._poll = None
        self._out.append(Note("evaluation_skipped", {"step": self._chain.step, "reason": reason}))

    # ---- standing ----

    def _stand(self, phase: Phase, sentence: str, now: float) -> None:
        if (phase, sentence) != (self.phase, self.sentence):
            self.phase, self.sentence = phase, sentence
            if phase not in ("evaluating",):
                self._tell_everybody(now)

    def _tell_everybody(self, now: float) -> None:
        for member in self._chain.members():
            self._standing_at[member.peer] = now
        for wish in self.gathering.wishes.values():
            self._standing_at[wish.member.peer] = now
        for peer in self._standing_at:
            self._send(peer, self._standing())

    def _standing(self) -> Standing:
        return Standing(self.ballot, self.phase, self.sentence, self._chain.step, *self.validation)

    def is_caught_up(self, now: float) -> bool:
        """Has every member that still lives said that it knows the head?"""
        return all(m == self._me or self._view.lapsed(m.peer, now) or self._heads_equal(m.peer) for m in self._chain.members())

    def _heads_equal(self, peer: PeerId) -> bool:
        news = self._view.news.get(peer)
        return news is not None and news.head == self._chain.head

    def _send(self, peer: PeerId, message: Message) -> None:
        self._out.append(SendMessage(peer, message))
