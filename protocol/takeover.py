"""When the coordinator is gone: who stands for its role, who promises what to whom, and when the role is won.

Only voters stand, in an order that all of them know (`ranks`), each a little later than the one before it. A voter promises if
the coordinator is silent at it too, or if the coordinator itself asks under a higher ballot. Who was refused keeps asking.

Where nobody gets a quorum for `fork_after_s`, everybody calls the roll, and the first of those that answer asks them all to go
on with it; they promise if they have waited for as long themselves (`protocol.fork`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.acceptor import Acceptor
from protocol.candidate import Candidate
from protocol.chain import Chain
from protocol.commands import Command, Note, Say, SendMessage
from protocol.crediting import above_of
from protocol.fork import Roll, in_order, is_left_behind, uncovered, unmakeable
from protocol.ids import NO_BALLOT, Ballot, Member, PeerId, hash_of
from protocol.leader import MAX_TERM_AHEAD, Leader
from protocol.manifest import Manifest
from protocol.messages import Decide, Heartbeat, Held, Message, Prepare, Promise, Proposed
from protocol.proposal import Proposal
from protocol.recipes import beyond_recovery
from protocol.records import Commit
from protocol.stopwatch import recovered
from protocol.vacancies import Vacancies
from protocol.view import View

BACKOFF_S = 0.3
BACKOFF_HEARTBEATS = 0.3
PATIENCE_HEARTBEATS = 2.0
"""How long one that promised, or that heard of a rival, leaves the field to the other."""
HOPE_LAPSES = 3.0


@dataclass(frozen=True, slots=True)
class Succession:
    """What a new coordinator has from the one before, and its ballot."""

    ballot: Ballot
    peer: PeerId
    promised: tuple[PeerId, ...]
    validation: tuple[int, float]
    vacant: dict[int, float]
    """Since when a stage has no holder."""


def ranks(chain: Chain, num_stages: int) -> list[Member]:
    """Voters with a seat, in the order in which they stand."""
    return in_order(chain.voters, chain, num_stages)


class Takeover:
    """See the module. `leading`: this node coordinates. `won`: it has just won the role; the owner takes note and clears it.
    `learn` appends a decided record to the chain if it fits, with all that follows from it."""

    def __init__(self, me: Member, manifest: Manifest, chain: Chain, view: View, leader: Leader, acceptor: Acceptor) -> None:
        self.candidate: Candidate | None = None
        self.leading = leader.peer == me.peer
        self.won: Candidate | None = None
        self.learn: Callable[[Proposed, float], None] = lambda _record, _now: None
        self.roll = Roll(me, chain, view)
        self._fork_after_s, self._lapse_s = manifest.fork_after_s, manifest.timing.lapse_s
        self._manifest = manifest
        self._me, self._beat_s, self._num_stages = me, manifest.timing.heartbeat_s, manifest.num_stages
        self._recovers = manifest.recovery.policy != "none"
        self._chain, self._view, self._leader, self._acceptor = chain, view, leader, acceptor
        self.before: PeerId = ""
        """Who coordinated when this node last stood for the role; '' if that was this node itself."""
        self._highest = NO_BALLOT
        self._gone_at: float | None = None
        self._decided_at = -1e9
        self._stuck_since: float | None = None
        self._has_decided = False
        """As the candidate that it is: those that heard of it follow that ballot, and can promise it no more."""
        self._rival_at: float | None = None
        self._not_before = 0.0
        self._stood_at = 0.0
        self._vacancies = Vacancies(chain)
        self._out: list[Command] = []

    def take(self) -> list[Command]:
        """Commands made since the last call."""
        out, self._out = self._out, []
        return out

    def is_gone(self, now: float) -> bool:
        """Is the coordinator that this node followed no coordinator any more, as far as it can tell?"""
        leader = self._leader
        if leader.peer == self._me.peer:
            return not self.leading
        return bool(leader.peer) and (bool(leader.retired) or self._view.lapsed(leader.peer, now))

    def why_gone(self, now: float) -> str:
        """For people; '' while the coordinator is heard."""
        if self._leader.retired:
            return f"{self._leader.retired} and leads no more"
        if not self._view.lapsed(self._leader.peer, now):
            return ""
        alone = self._holds_alone(self._leader.peer)
        how = "it comes back: no other node holds its stage" if alone else "it comes back or the voters follow another"
        return f"is not heard; the run goes on when {how}{self.lacks(now)}"

    def begin_anew(self) -> None:
        """This node leaves its lineage."""
        self.followed()
        self.candidate = self.won = self._gone_at = self._rival_at = None
        self.leading, self.before, self._highest = False, "", NO_BALLOT
        self.roll.end()

    def has_no_hope(self, now: float) -> bool:
        """Has nobody led for so long, and do those that are heard lack so much, that this lineage lives no more here?"""
        return self.is_forsaken(now) and bool(self.lacks(now))

    def is_forsaken(self, now: float) -> bool:
        """Has nobody led for so long that those who could have gone on without a quorum have?"""
        since = self._gone_at
        return since is not None and now - since > self._fork_after_s + HOPE_LAPSES * self._lapse_s

    def hopes(self, now: float) -> bool:
        """May those that followed this node expect it to lead soon? Not if nobody has led for long, and it has not: whoever
        still hears it must promise others. It may have been outvoted by a coordinator that they have never heard of."""
        since = self._gone_at
        return since is None or now - max(since, self._decided_at) <= HOPE_LAPSES * self._lapse_s

    def given_up(self, now: float) -> str:
        """Why a run on one machine is over although no quorum is left to say so: for long nobody of those that answer has
        stages which cannot be made again; '' otherwise. Over a network whoever is without a quorum may be the one that is cut
        off, while the others train on: he waits."""
        since = self._stuck_since if self.leading else self._gone_at
        called, patience_s = self.roll.called_at, self._fork_after_s + HOPE_LAPSES * self._lapse_s
        if not self._manifest.local or since is None or now - since <= patience_s or called is None:
            return ""
        if now - called <= self._lapse_s:
            return ""
        return beyond_recovery(uncovered(self._chain, self.roll.present(now)), self._chain.step, self._manifest)

    def lacks(self, now: float) -> str:
        """For people: why those that are heard do not go on without a quorum; '' while that is not known."""
        called = self.roll.called_at
        if called is None or now - called <= self._lapse_s:
            return ""
        stages = unmakeable(self._chain, self.roll.present(now))
        again = " or anything to make it of" if self._recovers and stages != [0] else ""
        return f"; nobody who is heard holds stage {', '.join(map(str, stages))}{again}" if stages else ""

    def succession(self, validation: tuple[int, float]) -> Succession:
        """What the coordinator that this node has become begins with."""
        won, self.won = self.won, None
        assert won, "who leads has won"
        promised = tuple(m.peer for m in won.promises if m != self._me)
        return Succession(won.ballot, self.before, promised, validation, dict(self._vacancies.since))

    # ---- what others say ----

    def saw(self, ballot: Ballot, now: float) -> None:
        """Somebody on the roster serves this ballot. A coordinator below it cannot go on, and asks again under a higher one
        unless it hears in time from one that has taken over."""
        if self.candidate and ballot == self.candidate.ballot:
            return
        if ballot <= self._highest:
            return
        known = max(self._acceptor.promised, self._leader.ballot)
        if ballot.term > known.term + MAX_TERM_AHEAD:
            return
        self._highest = ballot
        if ballot > known and self._rival_at is None:
            self._rival_at = now

    def saw_former(self, member: Member, beat: Heartbeat, now: float) -> None:
        """Somebody who was on the roster once is heard by the coordinator. It may have promised not to follow this ballot."""
        if not is_left_behind(member, beat.head, self._chain):
            self.saw(beat.ballot, now)

    def on_prepare(self, sender: Member, asked: Prepare, now: float) -> bool:
        """A candidate asks. False if it is refused, and should hear which ballot is served here."""
        if asked.ballot.peer != sender.peer or self._chain.member_of(sender.peer) != sender:
            return False
        if sender != self._me:
            self.saw(asked.ballot, now)
        lets_go = self._has_waited(now) if asked.forks else self.is_gone(now)
        lets_go |= sender.peer in (self._leader.peer, self._me.peer)
        if asked.ballot.term > self._acceptor.promised.term + MAX_TERM_AHEAD or not lets_go:
            return False
        if not self._acceptor.may_vote(self._chain.head, asked.ballot) or not self._acceptor.grant(asked.ballot, sender):
            return False
        if sender != self._me:
            self._yield(now)
        for told in asked.decided:
            self.learn(told, now)
        self._send(sender.peer, self._acceptor.promise(asked, self._chain))
        return True

    def _has_waited(self, now: float) -> bool:
        """Has the coordinator been gone here for so long that this node may go on without a quorum?"""
        return self.is_gone(now) and self._gone_at is not None and now - self._gone_at >= self._fork_after_s

    def _yield(self, now: float) -> None:
        self.candidate, self._rival_at = None, None
        self._not_before = now + PATIENCE_HEARTBEATS * self._beat_s

    def on_promise(self, voter: Member, promise: Promise, now: float) -> None:
        """A voter promised, and tells what it knows and this node does not."""
        if self.candidate and promise.ballot == self.candidate.ballot and self._chain.member_of(voter.peer) == voter:
            for told in self.candidate.on_promise(voter, promise):
                self.learn(told, now)
            self._go_on(now)

    def on_held(self, voter: Member, message: Held, now: float) -> None:
        """A voter holds what was left behind and proposed again."""
        if self.candidate:
            self.candidate.on_held(voter, message)
            self._go_on(now)

    def followed(self) -> None:
        """A coordinator has spoken, under the highest ballot seen here; who stood under a lower one stands no more."""
        if self._leader.peer != self._me.peer:
            self._rival_at = self._gone_at = self.candidate = None
            self.leading = False
            self.roll.end()

    # ---- time ----

    def on_tick(self, now: float, stuck_since: float | None = None) -> None:
        """Stand when it is this node's turn; ask again those that have not answered. `stuck_since`: for so long it has
        coordinated without a quorum."""
        self._stuck_since = stuck_since
        self._vacancies.look(now)
        if self.leading:
            rival = self._rival_at is not None and not self._has_rival(now)
            forks = frozenset() if rival or stuck_since is None else self._turn_to_fork(stuck_since, now)
            if rival or forks or self._leader.ballot <= self._chain.fence:
                self.leading, self.before = False, ""
                self._stand(now, forks)
            elif stuck_since is None:
                self.roll.end()
            return
        if not self.is_gone(now):
            self._gone_at, self.candidate = None, None
            self.roll.end()
            return
        if self._gone_at is None:
            self._gone_at = now
        outbid = self.candidate is None or self._highest.term >= self.candidate.ballot.term
        if self.candidate and self.candidate.forks and not outbid:
            self._ask()
            self._go_on(now)
        elif self.candidate and self.candidate.forks and self._has_rival(now):
            return  # who outbid it may lead, and needs a moment to say so; whoever outbids him at once is never led
        elif forks := self._turn_to_fork(self._gone_at, now):
            self._stand(now, forks)
        elif not self._may_fork(now):
            self._wait_in_line(self._gone_at, outbid, now)

    def stand_aside(self, now: float) -> None:
        """This node has no seat, or lacks the state for one: it stands for nothing, and sees since when nobody leads."""
        self.candidate = None
        since = self._gone_at
        self._gone_at = (now if since is None else since) if self.is_gone(now) else None

    def _has_rival(self, now: float) -> bool:
        """Has it heard of a higher ballot, and not yet left the field to it for long enough?"""
        return self._rival_at is not None and now - self._rival_at <= PATIENCE_HEARTBEATS * self._beat_s

    def _wait_in_line(self, gone_at: float, outbid: bool, now: float) -> None:
        """Stand among the voters, in their order."""
        order = ranks(self._chain, self._num_stages)
        if self._me not in order or self._holds_alone(self._leader.peer):
            return
        waits = min(BACKOFF_S, BACKOFF_HEARTBEATS * self._beat_s)
        left = [m for m in order if m.peer != self._leader.peer or m == self._me]
        due = max(gone_at, self._not_before) + waits * left.index(self._me)
        outbid |= self._has_decided and now - self._stood_at > self._lapse_s
        if now < due and outbid:
            return
        if outbid:
            self._stand(now)
            self._not_before = now + PATIENCE_HEARTBEATS * self._beat_s * (1.0 + self._spread())
        else:
            self._ask()

    def _may_fork(self, now: float) -> bool:
        """Do those that answer the roll hold every stage, or can they make it again? Then the field is left to the first."""
        called = self.roll.called_at
        return called is not None and now - called > self._lapse_s and not unmakeable(self._chain, self.roll.present(now))

    def _turn_to_fork(self, since: float, now: float) -> frozenset[Member]:
        """Whom to ask to go on without a quorum, if it is this node's turn; empty if not."""
        if now - since < self._fork_after_s:
            return frozenset()
        self.roll.call(now)
        if not self._may_fork(now):
            return frozenset()
        present = self.roll.present(now)
        order = in_order([m for m in present if self._is_holder(m)], self._chain, self._num_stages)
        called = self.roll.called_at
        if self._me not in order or called is None:
            return frozenset()
        due = max(called + self._lapse_s * (1 + order.index(self._me)), self._not_before)
        return frozenset(present) if now >= due else frozenset()

    def _is_holder(self, member: Member) -> bool:
        return any(s.role != "learner" for s in self._chain.seats_of(member))

    def _holds_alone(self, peer: PeerId) -> bool:
        """Does the peer alone hold a stage, and is the policy to wait for it? Nothing could go on without it, and while it is
        on the roster the run goes on when it comes back. Who is seated by a record that is held here counts: it may be
        decided, and whoever went after that was not alone."""
        if peer == self._me.peer or self._recovers:
            return False
        held = self._acceptor.after(self._chain.head)
        joins = held.record.joins if held and not isinstance(held.record, Commit) else ()
        others = {s.stage for s in (*self._chain.seatings, *joins) if s.member.peer != peer and s.role != "learner"}
        alone = {s.stage for s in self._chain.seatings if s.member.peer == peer} - others
        return bool(alone)

    def _spread(self) -> float:
        """0 to 1, another one for each candidate and term: two that know different rosters, and stand at the same moment for
        that reason, do not do so again and again."""
        assert self.candidate, "who has just stood"
        ballot = self.candidate.ballot
        return int(hash_of([ballot.term, ballot.peer])[:4], 16) / 0xFFFF

    def _stand(self, now: float, forks: frozenset[Member] = frozenset()) -> None:
        self._stood_at, self._not_before = now, now + PATIENCE_HEARTBEATS * self._beat_s
        self._has_decided = False
        acceptor = self._acceptor
        term = 1 + max(acceptor.promised.term, acceptor.floor.term, self._leader.ballot.term, self._highest.term)
        self._rival_at = None
        if self._leader.peer != self._me.peer:
            self.before = self._leader.peer
        self.candidate = Candidate(Ballot(term, self._me.peer), self._chain, forks)
        self._out.append(Note("candidate", {"term": term, "step": self._chain.step}))
        self._ask()

    def _ask(self) -> None:
        assert self.candidate, "only a candidate asks"
        proposal = self.candidate.proposal
        for voter in dict.fromkeys([*self._chain.voters, *sorted(self.candidate.forks)]):
            if proposal is None:
                self._send(voter.peer, self.candidate.prepare(voter))
            elif voter in self._chain.voters and voter not in proposal.held:
                self._send(voter.peer, proposal.ask())
        promised, voters = self.candidate.num_promised, len(self._chain.voters)
        silent = self._leader.peer[-8:]
        self._out.append(
            Say(f"waiting: the coordinator {silent} is gone; {promised} of {voters} voters promise to follow this node")
        )

    def _go_on(self, now: float) -> None:
        """Do what follows from the newest promise or vote."""
        candidate = self.candidate
        assert candidate, "only a candidate goes on"
        before, head = candidate.proposal, self._chain.head
        decided = candidate.advance()
        while decided:
            self._decide(decided, now)
            decided = candidate.advance()
        if not self._chain.is_seated(self._me):
            self.candidate = None  # what it found takes its seat: nobody promises it anything any more
        elif candidate.has_won:
            self._win(candidate)
        elif self._chain.head != head or candidate.proposal is not before:
            self._ask()
        elif candidate.forks:
            self._fork(candidate, now)

    def _fork(self, candidate: Candidate, now: float) -> None:
        """Part from the rest, if those that promised can. All of them have been asked for long enough, or have answered."""
        wait = now - self._stood_at <= self._lapse_s
        roster = candidate.fork(self._me, wait, self.roll.present(now))
        if roster is None:
            if now - self._stood_at > 2 * self._lapse_s:
                self.candidate = None
            return
        self.learn(Proposed(candidate.ballot, roster, ()), now)
        for member in self._chain.members():
            if member != self._me:
                self._send(member.peer, Decide(candidate.ballot, roster, ()))
        self._win(candidate)

    def _win(self, candidate: Candidate) -> None:
        self.candidate, self.won, self.leading, self._gone_at = None, candidate, True, None
        self.roll.end()

    def stand_back(self, now: float) -> None:
        """The role was won, and this node is not to have it: those that promised follow the next one that asks."""
        self.won, self.leading = None, False
        self._not_before = now + PATIENCE_HEARTBEATS * self._beat_s

    def _decide(self, proposal: Proposal, now: float) -> None:
        self._has_decided, self._decided_at = True, now
        if isinstance(proposal.record, Commit):
            self._out += recovered(self._chain, {})
        for member in self._chain.members():
            if member != self._me:
                shares = proposal.shares if member in self._chain.voters else ()
                above = () if shares else above_of(member.peer, proposal.record, proposal.shares, self._chain.manifest)
                self._send(member.peer, Decide(proposal.ballot, proposal.record, shares, above=above))
        self.learn(Proposed(proposal.ballot, proposal.record, proposal.shares), now)

    def _send(self, peer: PeerId, message: Message) -> None:
        self._out.append(SendMessage(peer, message))
