"""The coordinator: opens steps, proposes records, declares losses. A role, not a node: it is tied to no stage.

It does one thing at a time, in this order of precedence: settle an open proposal, take lost members off the roster, finish the
open attempt, finish the evaluation, and only then begin something new. `advance` holds that order; everything else only enters
facts. What it decides goes out as messages, also to its own node.
"""

from __future__ import annotations

from protocol.chain import Chain, choose_voters
from protocol.commands import Command, Introduce, Note, SendMessage
from protocol.detours import Detours
from protocol.herald import Herald
from protocol.ids import ATTEMPTS_PER_TERM, Ballot, Member, PeerId, RecordId
from protocol.ledger import Ledger
from protocol.losses import Losses, promotions
from protocol.manifest import Manifest
from protocol.membership import Membership
from protocol.messages import (
    AppliedReport,
    Evaluated,
    Heartbeat,
    Held,
    Learning,
    Leave,
    Message,
    Probe,
    ReducedReport,
    ReduceReady,
    Stalled,
    Suspect,
    VoidStep,
    Wish,
)
from protocol.opening import opening
from protocol.orders import Orders
from protocol.poll import Polls
from protocol.proposal import Proposal
from protocol.records import Commit, Record, Roster, Share
from protocol.recovery import Recovery
from protocol.repeats import Repeats
from protocol.replica_set import replicas
from protocol.revoking import Revoked
from protocol.stragglers import Stragglers
from protocol.takeover import Succession
from protocol.teller import RESEND_HEARTBEATS, Teller
from protocol.view import View

MAX_BACKOFF_HEARTBEATS = 30.0
COMPLAIN_AFTER_VOIDS = 3
REDUCE_PATIENCE = 8.0
"""Without a report during a reduce, in units of `first_microbatch_s`."""


class Coordinator:
    """See the module. Facts come in through `on_*`, time through `on_tick`; `take` hands over the commands made since."""

    def __init__(self, manifest: Manifest, me: Member, ballot: Ballot, chain: Chain, view: View, orders: Orders) -> None:
        self.ballot = ballot
        self.members = Membership(manifest, chain)
        self.members.hears = lambda member, seconds, now: member == me or view.is_there(member.peer, seconds, now)
        self.recovery = Recovery(manifest, me, chain, view, self.members, ballot)
        self.herald = Herald(ballot, chain, manifest.timing.heartbeat_s, orders)
        self.addresses: dict[PeerId, str] = {}
        self._teller = Teller(ballot, me, chain, view, self.addresses, manifest.timing)
        self.ledger: Ledger | None = None
        self.lacks = ""
        self._manifest, self._me, self._chain, self._view = manifest, me, chain, view
        self._proposal: Proposal | None = None
        self._polls = Polls(manifest, chain)
        self._losses = Losses(me, chain, view, manifest.timing.lapse_s)
        self._detours = Detours(me, chain, view, manifest.timing)
        self._stragglers = Stragglers(manifest, chain, self.members.speeds)
        self._orders = orders
        self._first_attempt = ATTEMPTS_PER_TERM * (ballot.term - 1)
        self._attempt = self._first_attempt
        self._voids = 0
        self._void_reason = ""
        self._reopen_at = 0.0
        self.has_left = False
        """This node has left the roster in order; somebody else will take over."""
        self._urged = Repeats(manifest.timing.heartbeat_s)
        """Passive replicas that do not have the sum of a stage yet."""
        self._out: list[Command] = []

    def take(self) -> list[Command]:
        """Commands made since the last call."""
        out, self._out = [*self._out, *self.herald.take(), *self._detours.take()], []
        return out

    def succeed(self, before: Succession, addresses: dict[PeerId, str], now: float) -> None:
        """Take over a run that goes on: everybody on the roster is expected to be heard, and those that promised have said
        that the coordinator before is silent for them too."""
        self.addresses |= addresses
        self.recovery.succeed(before.vacant, now)
        self.herald.validation, self._polls.polled_step = before.validation, max(0, before.validation[0])
        for member in self._chain.members():
            self._view.expect(member.peer, now)
        gone = self._chain.member_of(before.peer)
        for peer in before.promised if gone else ():
            self._losses.suspect(peer, gone, now)  # type: ignore[arg-type]
        self._look(now)

    # ---- facts ----

    def on_wish(self, wish: Wish, now: float) -> None:
        """Somebody wants a seat: at the start all are seated together, later each between two steps."""
        if self._chain.member_of(wish.member.peer) != wish.member:
            if not self.members.on_wish(wish):
                return
            self.herald.welcome(wish.member.peer)
        self.addresses[wish.member.peer] = wish.address
        self.recovery.memory[wish.member.peer] = wish.memory_bytes
        if wish.member != self._me and wish.address:
            self._out.append(Introduce(wish.member.peer, wish.address))
        self._view.expect(wish.member.peer, now)
        self._losses.heard(wish.member)

    def on_leave(self, member: Member, message: Leave, now: float) -> None:
        """A member wants to go in order: at the next boundary, and at once where a stage has to be handed over first."""
        self.members.on_leave(member, message.reason, now)
        if not self.members.handover.stages():
            return
        self._out += self._polls.skip("a node that leaves hands over its stage")
        if self.ledger and self._proposal is None:
            self._void(f"peer {member.peer[-8:]} leaves and hands over its stage", now)

    def on_learning(self, member: Member, message: Learning, now: float) -> None:
        """A learner says how far it is."""
        self.members.on_learning(member, message, now)
        self.recovery.on_learning(member, message)

    def on_applied(self, member: Member, message: AppliedReport, now: float) -> None:
        """A replica has applied a commit. One that holds something else than its siblings is taken off the roster."""
        self.members.on_applied(member, message)
        for odd in self.members.odd(message):
            self._out.append(odd.note)
            if odd.loses_all:
                self._losses.drop(odd.member, odd.reason)
            elif odd.at_once and self.ledger and self._proposal is None:
                self._void(f"peer {odd.member.peer[-8:]}: {odd.reason}", now)

    def on_heartbeat(self, heard: Member, beat: Heartbeat, now: float) -> None:
        """A peer that is behind gets the records that it lacks, and the open step or the void of an old one again."""
        self._losses.heard(heard)
        self.herald.heard(heard.peer, beat, now)
        peer, member, ledger = heard.peer, self._chain.member_of(heard.peer), self.ledger
        if not self._teller.is_due(peer, now):
            return
        self._out += self._teller.heard(heard, beat.head, now)
        if member is None or self._proposal is not None:
            return
        if ledger and (not ledger.names(beat.step, beat.attempt) or beat.amendment < ledger.amendment):
            self._teller.told(peer, now)
            self._send_open(member, ledger)
        elif ledger is None and beat.step > self._chain.step and beat.head == self._chain.head:
            self._teller.told(peer, now)
            self._send(peer, VoidStep(self.ballot, beat.step, beat.attempt, self._void_reason or "it is not open any more"))

    def attempt(self, step: int, attempt: int) -> Ledger | None:
        """The book of this attempt, as long as it is open and nothing is proposed."""
        ledger = self.ledger if self._proposal is None else None
        return ledger if ledger and ledger.names(step, attempt) else None

    def on_ready(self, ledger: Ledger, member: Member, message: ReduceReady, now: float) -> None:
        """An active replica accumulated all that it owns, or is slow; the last one of a stage starts its reduce."""
        slow = self._stragglers.enter(ledger, member, message)
        if slow is not None:
            if slow and (stuck := self._detours.on_slow(ledger, member, slow, now)):
                self._void(stuck, now)
            return
        wrong = ledger.enter_ready(member, message, now)
        if wrong:
            self._out.append(Note("refused", {"peer": member.peer, "reason": wrong}))
            return
        self._begin_reduce(ledger, message.stage, now, asks=member)

    def _begin_reduce(self, ledger: Ledger, stage: int, now: float, asks: Member | None = None) -> None:
        started = ledger.begin_reduce(stage, self.addresses, asks)
        for command in started:
            self._urged.said((stage, command.peer), now)
        self._out += started

    def on_reduced(self, ledger: Ledger, member: Member, message: ReducedReport, now: float) -> None:
        """A replica holds the sum. A result unlike its siblings' counts as silence and voids the attempt."""
        wrong = ledger.enter_reduced(member, message, now)
        if wrong:
            self._out.append(Note("refused", {"peer": member.peer, "reason": wrong}))
        elif conflict := ledger.conflict(message):
            self._void(f"peer {member.peer[-8:]}: {conflict}", now)

    def on_held(self, member: Member, message: Held) -> None:
        """A voter holds the proposal."""
        if self._proposal:
            self._proposal.enter(member, message)

    def on_records_wanted(self, wants: Member, head: RecordId, now: float) -> None:
        """A peer lacks what came after `head`."""
        self._out += self._teller.asked(wants, head, now)

    def on_stalled(self, ledger: Ledger, member: Member, message: Stalled, now: float) -> None:
        """A seat cannot finish the attempt as it is."""
        if not self._detours.on_stalled(ledger, member, message, now):
            self._fail(member, message, now)

    def _fail(self, by: Member, message: Stalled, now: float) -> None:
        blame = f" ({message.peer[-8:]})" if message.peer else ""
        self._losses.stalled(by, message)
        self._void(f"peer {by.peer[-8:]}: {message.reason}{blame}", now)

    def on_revoked(self, ledger: Ledger, member: Member, message: Revoked, now: float) -> None:
        """A replica that somebody cannot reach lives, and says what it has accumulated."""
        failed = self._detours.on_revoked(ledger, member, message)
        if failed:
            self._fail(*failed, now)

    def on_suspect(self, peer: PeerId, message: Suspect, now: float) -> None:
        """A second opinion about a member that may be lost."""
        if self._losses.suspect(peer, message.member, now):
            self._out.append(Note("suspected", {"peer": message.member.peer, "by": peer, "reason": message.reason}))
            if (by := self._chain.member_of(peer)) and self.ledger and not self._proposal:
                self._detours.on_suspect(self.ledger, by, message.member, now)
            self._look(now)

    def on_goodbye(self, member: Member, reason: str) -> None:
        """A node leaves and says so: no lapse is waited for."""
        self.members.gathering.leave(member)
        self.herald.forget(member.peer)
        self._teller.left(member.peer)
        self._losses.left(member, reason)

    def on_evaluated(self, peer: PeerId, message: Evaluated) -> None:
        """Loss of one held-out microbatch."""
        if self._polls.open:
            self._polls.open.enter(peer, message)

    # ---- time ----

    def on_tick(self, now: float, beats: bool = True) -> None:
        """Find lapsed members; once a heartbeat (`beats`) repeat what may not have arrived."""
        self._look(now)
        if beats:
            self._repeat(now)
        if self.ledger and not self._proposal and (stuck := self._detours.look(self.ledger, now)):
            self._void(stuck, now)

    def _repeat(self, now: float) -> None:
        timing, proposal = self._manifest.timing, self._proposal
        if proposal and now - proposal.sent_at >= RESEND_HEARTBEATS * timing.heartbeat_s:
            self._send_proposal(proposal, now)
        if proposal and now - proposal.opened_at > timing.lapse_s:
            held, voters = len(proposal.held), len(self._chain.voters)
            self.herald.stand("waiting", f"waiting for a quorum: {held} of {voters} voters answer{self.lacks}", now)
        if self.ledger and not proposal:
            self._hurry(self.ledger, now)
        self._forget_strangers(now)
        self.herald.greet(now)

    def _look(self, now: float) -> None:
        for peer, member in self._losses.look(now):
            self._send(peer, Probe(self.ballot, member, self.addresses.get(member.peer, "")))

    def _hurry(self, ledger: Ledger, now: float) -> None:
        """A passive replica has nothing to report before a reduce, so its StartReduce is repeated unasked; and a reduce in
        which nothing comes of that for long is given up, whoever lives."""
        missing = ledger.missing() if ledger.started or ledger.amendment else []
        for stage, member in (late for late in missing if late[0] in ledger.started):
            seating = ledger.seated(stage, member)
            if seating and seating.role != "active" and self._urged.is_due((stage, member.peer), now):
                self._send(member.peer, ledger.start_reduce(stage, self.addresses))
        if missing and (ledger.amendment or len(ledger.started) == self._manifest.num_stages):
            waited = now - ledger.progress_at
            if waited > REDUCE_PATIENCE * self._manifest.timing.first_microbatch_s:
                stage, member = missing[0]
                self._void(f"peer {member.peer[-8:]} does not have the sum of stage {stage} after {waited:.0f} s", now)

    def _forget_strangers(self, now: float) -> None:
        """What is remembered of those without a seat ends with their life here; the transport bounds how many live."""
        wishes = self.members.gathering.wishes
        for wish in list(wishes.values()):
            if wish.member != self._me and self._view.lapsed(wish.member.peer, now):
                self.members.gathering.leave(wish.member)
        known = {*wishes, *(m.peer for m in self._chain.members()), self._me.peer}
        for peer in [p for p in (*self.herald.known(), *self.addresses) if p not in known]:
            self.herald.forget(peer)
            self.addresses.pop(peer, None)
            self.recovery.memory.pop(peer, None)
            self._view.forget(peer)
        self._teller.forget_old(now)

    # ---- decisions ----

    def advance(self, now: float) -> None:
        """Do the next thing, if there is one to do now."""
        if self._proposal:
            self._try_decide(self._proposal, now)
        elif not self._chain.seatings:
            self._gather(now)
        elif self._losses.matter(self.ledger) and not (self.ledger and self._detours.around(self.ledger, self._losses.lost())):
            self._drop_lost(self._losses.take(), now)
        elif self._chain.voters[0] != self._me and not self.has_left:
            self._name_voters(now)
        elif self.ledger:
            self._carry_on(self.ledger, now)
        elif self._polls.open:
            self._close_poll(now)
        elif not self.has_left:
            self._begin(now)

    @property
    def stuck_since(self) -> float | None:
        """When the voters were first asked for what no quorum of them holds yet; None if nothing is open."""
        return self._proposal.opened_at if self._proposal else None

    def _carry_on(self, ledger: Ledger, now: float) -> None:
        if ledger.told < ledger.amendment:
            ledger.told, ledger.progress_at = ledger.amendment, now
            for member in self._chain.members():
                self._teller.told(member.peer, now)
                self._send_open(member, ledger)
            for stage in {*range(self._manifest.num_stages)} - ledger.started.keys():
                self._begin_reduce(ledger, stage, now)
        if not ledger.complete():
            return
        commit, shares = ledger.commit(self._manifest)
        wrong = self._chain.fits(commit)  # each number was checked when it came; together they may be too large for the clip
        if wrong:
            self._void(f"the step cannot be committed: {wrong}", now)
        else:
            self._propose(commit, shares, now)

    def _begin(self, now: float) -> None:
        if self.herald.exit_code or self.ballot <= self._chain.fence:
            return  # after a rollback everybody is asked to follow a higher ballot first (`Takeover.on_tick`)
        step = self._chain.step
        finished = step >= self._manifest.last_step or self._orders.stopped
        if self._polls.is_due():
            self.herald.stand("evaluating", f"evaluating after step {step}", now)
            self._out += self._polls.begin(self.ballot, self.addresses, now)
        elif finished:
            why = "max_steps or max_tokens reached" if step >= self._manifest.last_step else "stopped by the organiser"
            self.herald.stand("finished", f"finished at step {step}: {why}", now)
        elif not self._change_roster(now):
            self._train(now)

    def _change_roster(self, now: float) -> bool:
        """Joins, leaves and roles change between two steps."""
        changes = self.members.changes(now)
        if not changes:
            return False
        self._out += changes.notes
        for seating in changes.joins:
            self.members.gathering.leave(seating.member)
        self._propose(self.members.roster(changes, self._me), (), now)
        return True

    def _train(self, now: float) -> None:
        step, lost = self._chain.step, self.recovery.next(now)
        if lost.sentence:
            self.herald.stand("waiting", lost.sentence, now)
            if lost.survey:
                self._out.append(lost.survey)
            if lost.is_end:
                self.herald.give_up(lost.sentence, now)
            elif lost.record:
                for seating in lost.record.joins:
                    self.members.gathering.leave(seating.member)
                self._propose(lost.record, (), now)
        elif waits := self.members.handover.waits(now):
            self.herald.stand("waiting", waits, now)
        elif self._orders.paused:
            self.herald.stand("paused", f"paused by the organiser at step {step}", now)
        elif now >= self._reopen_at:
            why = self.members.learners.hold(now)
            if why:
                self.herald.stand("training", f"step {step + 1}: {why}", now)
            else:
                self._open_step(now)

    def _gather(self, now: float) -> None:
        gathered = self.members.gathering.seat()
        if not gathered.seatings:
            self.herald.stand("waiting", gathered.sentence, now)
            return
        voters = choose_voters(list(gathered.seatings), self._me)
        for seating in gathered.seatings:
            self.members.gathering.leave(seating.member)
        self._propose(Roster(self._chain.head, 0, gathered.seatings, (), voters), (), now)

    def _drop_lost(self, lost: dict[Member, str], now: float) -> None:
        if self.ledger:
            self._void("; ".join(f"{m.peer[-8:]} {why}" for m, why in lost.items()), now)
        self._out += self._polls.skip("a member was lost")
        step = self._chain.step + 1
        leaves = tuple(s for s in self._chain.seatings if s.member in lost)
        for seating in leaves:
            silent_s = self._view.silent_s(seating.member.peer, now)
            fields = {"stage": seating.stage, "peer": seating.member.peer, "reason": lost[seating.member]}
            self._out.append(Note("lost", fields | {"step": step, "silent_s": silent_s}))
            if all(s.member in lost for s in self._chain.active(seating.stage)):
                self.recovery.stopwatch.lost(seating.stage, silent_s)
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

    def _propose(self, record: Record, shares: tuple[Share, ...], now: float) -> None:
        self._proposal = Proposal(self.ballot, record, shares, now, now)
        self._send_proposal(self._proposal, now)

    def _send_proposal(self, proposal: Proposal, now: float) -> None:
        proposal.sent_at = now
        for voter in self._chain.voters:
            if voter not in proposal.held:
                self._send(voter.peer, proposal.ask())

    def _try_decide(self, proposal: Proposal, now: float) -> None:
        if not proposal.is_decided(self._chain.voters):
            return
        self._proposal = None
        if isinstance(proposal.record, Roster) and self._me in self.members.handover.leaving:
            self.has_left = self._loses_all_seats(proposal.record)
        if isinstance(proposal.record, Commit):
            for member, why in self.ledger.excluded.items() if self.ledger else ():
                self._losses.drop(member, f"{why}; step {proposal.record.step} was committed without it")
            self.ledger, self._attempt, self._voids, self._void_reason = None, self._first_attempt, 0, ""
            self._out += self.recovery.stopwatch.committed(now)
        else:
            for seating in proposal.record.joins:  # its wish is gone since it was proposed, and it may be gone itself
                self._view.expect(seating.member.peer, now)
        leaving = self.members.handover.leaving
        self._out += self._teller.decided(proposal.record, proposal.shares, proposal.held, leaving, now)

    def _loses_all_seats(self, roster: Roster) -> bool:
        lost = {s.stage for s in roster.leaves if s.member == self._me}
        had = {s.stage for s in (*self._chain.seats_of(self._me), *roster.joins) if s.member == self._me}
        return bool(lost) and had <= lost

    # ---- steps ----

    def _open_step(self, now: float) -> None:
        chain, plan = self._chain, self._stragglers.plan(now)
        self._attempt += 1
        self._urged.clear()
        self.members.learners.go_on(now)
        seats = [replicas(chain, stage) for stage in range(self._manifest.num_stages)]
        step = chain.step + 1
        tokens = self._manifest.batch.tokens_per_microbatch
        self.ledger = Ledger(self.ballot, step, self._attempt, chain.head, plan, seats, tokens, now)
        trouble = f" (voided {self._voids} times: {self._void_reason})" if self._voids >= COMPLAIN_AFTER_VOIDS else ""
        self.herald.stand("training", f"training step {step}{trouble}" if trouble else "training", now)
        for member in chain.members():
            self._view.expect(member.peer, now)
            self._teller.told(member.peer, now)
            self._send_open(member, self.ledger)

    def _send_open(self, member: Member, ledger: Ledger) -> None:
        if member not in ledger.excluded:
            self._send(member.peer, opening(member, ledger, self._chain, self.addresses))

    def _void(self, reason: str, now: float) -> None:
        ledger, self.ledger = self.ledger, None
        assert ledger, "only an open attempt can be voided"
        self._voids += 1
        self._void_reason = reason
        backoff = min(2.0 ** (self._voids - 1), MAX_BACKOFF_HEARTBEATS)
        self._reopen_at = now + backoff * self._manifest.timing.heartbeat_s
        for member in self._chain.members():
            self._send(member.peer, VoidStep(self.ballot, ledger.step, ledger.attempt, reason))

    def _close_poll(self, now: float) -> None:
        loss, notes = self._polls.close(now)
        self._out += notes
        if loss is not None:
            self.herald.validation = (self._chain.step, loss)
            self.herald.tell_everybody(now)

    # ---- the others ----

    def is_caught_up(self, now: float) -> bool:
        """See `Teller`."""
        return self._teller.is_caught_up(now)

    def _send(self, peer: PeerId, message: Message) -> None:
        self._out.append(SendMessage(peer, message))
