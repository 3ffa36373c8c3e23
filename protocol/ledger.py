"""The coordinator's book of one attempt: who accumulated what, who holds the reduced sum, and when a Commit may be proposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.assignment import Plan
from protocol.commands import SendMessage
from protocol.counted import contributors_of
from protocol.ids import ATTEMPTS_PER_TERM, Ballot, Member, PeerId, RecordId, bitmap
from protocol.manifest import Manifest
from protocol.messages import Contact, ReducedReport, ReduceReady, Stalled, StartReduce
from protocol.records import Commit, Seating, Share, StageResult, short
from protocol.replica_set import owners_of

NORM_TOLERANCE = 1e-6


@dataclass(slots=True)
class Doubt:
    """Somebody cannot reach the member, or it is slow. It was asked what it has accumulated."""

    until: float
    """When it must have answered."""
    asked_at: float
    reason: str
    about: tuple[Member, Stalled] | None = None
    """Who waits for its part of a sum: there it is of no use to know that it lives."""


@dataclass(frozen=True, slots=True)
class Led:
    """Through which replica a microbatch passes a stage since an amendment; `whole`: it is computed there in any case."""

    peer: PeerId
    amendment: int
    whole: bool


@dataclass(slots=True)
class Ledger:
    """Entries are added only if they fit the assignment; a repeated one changes nothing."""

    ballot: Ballot
    step: int
    attempt: int
    parent: RecordId
    plan: Plan
    seats: list[list[Seating]]
    """seats[stage], active first, in roster order: the attempt's roster. Another one is another list."""
    tokens_per_microbatch: int
    progress_at: float
    """When the attempt was opened or the last new report was entered."""
    ready: dict[tuple[int, Member], ReduceReady] = field(default_factory=dict)
    reduced: dict[tuple[int, Member], ReducedReport] = field(default_factory=dict)
    started: dict[int, tuple[Share, ...]] = field(default_factory=dict)
    """Stages whose sum has begun, and who brings what into it."""
    sum_numbers: dict[int, int] = field(default_factory=dict)
    """Of stages whose sum had to begin anew: the amendment with which it did."""
    amendment: int = 0
    """How often work was given to others in this attempt (`protocol.reroute`)."""
    taken: dict[tuple[int, PeerId], tuple[int, ...]] = field(default_factory=dict)
    """Owned besides the plan's hand."""
    helped: dict[tuple[int, PeerId], tuple[int, ...]] = field(default_factory=dict)
    """Computed, and owned by another one."""
    led: dict[tuple[int, int], list[Led]] = field(default_factory=dict)
    """By (stage, microbatch): where it was led, the newest last."""
    without: dict[PeerId, None] = field(default_factory=dict)
    """Through these no microbatch passes any more."""
    excluded: dict[Member, str] = field(default_factory=dict)
    """Off the attempt's roster with all their seats, and why: what they accumulated counts for nothing."""
    doubts: dict[Member, Doubt] = field(default_factory=dict)
    told: int = 0
    """The amendment that was last sent to everybody."""
    _by_member: dict[Member, list[Seating]] = field(default_factory=dict)
    _indexed: list[list[Seating]] | None = None
    """The seats of which `_by_member` was made."""

    def names(self, step: int, attempt: int) -> bool:
        """Is this the attempt that the message speaks of?"""
        return (step, attempt) == (self.step, self.attempt)

    def seated(self, stage: int, member: Member) -> Seating | None:
        """The member's seat at the stage on this attempt's roster."""
        return next((s for s in self.by_member().get(member, ()) if s.stage == stage), None)

    def by_member(self) -> dict[Member, list[Seating]]:
        """Who has a part in the attempt, and its seats by stage."""
        if self._indexed is not self.seats:
            self._indexed, self._by_member = self.seats, {}
            for row in self.seats:
                for seating in row:
                    self._by_member.setdefault(seating.member, []).append(seating)
        return self._by_member

    def owned(self, stage: int, peer: PeerId) -> tuple[int, ...]:
        """What enters the gradient of the stage at this replica."""
        return *self.plan.hands.get((stage, peer), ()), *self.taken.get((stage, peer), ())

    def enter_ready(self, member: Member, message: ReduceReady, now: float) -> str:
        """'' if the member accumulated exactly what it owns, else what is wrong."""
        seating = self.seated(message.stage, member)
        if seating is None or seating.role != "active":
            return f"it is no active replica of stage {message.stage}"
        owned = bitmap(self.owned(message.stage, member.peer))
        if message.microbatches != owned:
            if self.amendment:
                return ""  # said before the member knew of it; a seat says it again when it has all
            return f"it accumulated microbatches {message.microbatches} of stage {message.stage} and owns {owned}"
        tokens = self.tokens_per_microbatch * int(owned, 16).bit_count() if message.stage == 0 else 0
        if message.tokens != tokens or not math.isfinite(message.loss_sum):
            return f"it reports loss {message.loss_sum} over {message.tokens} tokens, not a finite one over {tokens}"
        if (message.stage, member) not in self.ready:
            self.ready[message.stage, member], self.progress_at = message, now
        return ""

    @property
    def nothing_moves(self) -> bool:
        """All stages sum: no microbatch is on its way any more."""
        return len(self.started) == len(self.seats)

    def is_alone(self, stage: int, member: Member) -> bool:
        """Is it the only one that has the stage?"""
        return all(s.member == member for s in self.seats[stage])

    def is_summed_without(self, stage: int, member: Member) -> bool:
        """Have all others of the stage the whole sum? Then what the member brought counts, whatever becomes of it."""
        others = [s.member for s in self.seats[stage] if s.member != member]
        return stage in self.started and bool(others) and all((stage, m) in self.reduced for m in others)

    def sum_anew(self, stage: int) -> None:
        """What was summed of the stage counts for nothing; the replicas are asked once more."""
        del self.started[stage]
        self.sum_numbers[stage] = self.amendment
        self.reduced = {key: report for key, report in self.reduced.items() if key[0] != stage}

    def led_before(self, stage: int, microbatch: int) -> set[PeerId]:
        """Replicas through which it was led already: none computes it twice."""
        return {led.peer for led in self.led.get((stage, microbatch), ())}

    def covered(self, stage: int) -> bool:
        """Every microbatch is in the stage's gradient exactly once, and every owner has said so."""
        active = [s.member for s in self.seats[stage] if s.role == "active"]
        if any((stage, m) not in self.ready for m in active):
            return False
        counts = [self.ready[stage, m].microbatches for m in active]
        total = sum(int(bits, 16) for bits in counts)
        every = (1 << len(self.plan.routes)) - 1
        return total == every and sum(int(b, 16).bit_count() for b in counts) == len(self.plan.routes)

    def begin_reduce(self, stage: int, addresses: dict[str, str], asks: Member | None = None) -> list[SendMessage]:
        """Let the replica set sum if everything is there. Told once; later only to whom `asks`."""
        if not self.covered(stage):
            return []
        again = stage in self.started
        is_first = (self.attempt - 1) % ATTEMPTS_PER_TERM == 0 and not self.amendment
        start = self.start_reduce(stage, {} if is_first and not again else addresses)
        if not again:
            row = [s.member for s in self.seats[stage] if s.role == "active"]
            self.started[stage] = tuple(Share(stage, m, self.ready[stage, m].microbatches) for m in row)
        return [SendMessage(s.member.peer, start) for s in self.seats[stage] if not again or s.member == asks]

    def start_reduce(self, stage: int, addresses: dict[str, str]) -> StartReduce:
        """What every member of the stage's replica set is told."""
        row = self.seats[stage]
        bitmaps = [self.ready[stage, s.member].microbatches for s in row if s.role == "active"]
        owners = owners_of(bitmaps, len(self.plan.routes))
        without = tuple(member.peer for member in self.excluded)
        contacts = contacts_of([s.member.peer for s in row], addresses)
        number = self.sum_numbers.get(stage, 0)
        return StartReduce(self.ballot, self.step, self.attempt, stage, owners, without, contacts, number)

    def enter_reduced(self, member: Member, message: ReducedReport, now: float) -> str:
        """'' if the member belongs to the replica set and reports a possible norm, else what is wrong."""
        if self.seated(message.stage, member) is None or message.stage not in self.started:
            return f"it has no part in the reduce of stage {message.stage}"
        if message.sum_number != self.sum_numbers.get(message.stage, 0):
            return f"it speaks of sum {message.sum_number} of stage {message.stage}, which is not the newest"
        if not (math.isfinite(message.squared_norm) and message.squared_norm >= 0):
            return f"it reports a squared norm of {message.squared_norm} for stage {message.stage}"
        if (message.stage, member) not in self.reduced:
            self.reduced[message.stage, member], self.progress_at = message, now
        return ""

    def conflict(self, message: ReducedReport) -> str:
        """'' if the result is the one that the stage's other replicas report, else how it differs."""
        stage = message.stage
        reports = (self.reduced.get((stage, s.member)) for s in self.seats[stage])
        for other in filter(None, reports):
            if other.digest != message.digest:
                return f"its gradient sum of stage {stage} has digest {message.digest[:8]}, not {other.digest[:8]}"
            if not norms_agree(other.squared_norm, message.squared_norm):
                return f"its gradient sum of stage {stage} has squared norm {message.squared_norm}, not {other.squared_norm}"
        return ""

    def complete(self) -> bool:
        """Every replica on the roster, active and passive, holds the whole sum."""
        enough = len(self.reduced) >= sum(map(len, self.seats))
        return enough and all((s.stage, s.member) in self.reduced for row in self.seats for s in row)

    def missing(self) -> list[tuple[int, Member]]:
        """Replicas that have not reported the sum yet."""
        return [(s.stage, s.member) for row in self.seats for s in row if (s.stage, s.member) not in self.reduced]

    def commit(self, manifest: Manifest) -> tuple[Commit, tuple[Share, ...]]:
        """The record to propose and the shares that it counts. The norm is the first replica's."""
        shares: list[Share] = []
        results: list[StageResult] = []
        for stage, row in enumerate(self.seats):
            first = self.reduced[stage, row[0].member]
            results.append(StageResult(stage, short(first.digest), first.squared_norm))
            shares += self.started[stage]
        losses = [self.ready[0, share.member] for share in self.started[0]]
        loss, tokens = sum(r.loss_sum for r in losses), sum(r.tokens for r in losses)
        where, counted = (self.parent, self.step, self.attempt), tuple(shares)
        return Commit(*where, tuple(results), loss, tokens, contributors_of(counted, self.step, manifest)), counted


def contacts_of(peers: Sequence[str], addresses: dict[str, str]) -> tuple[Contact, ...]:
    """Contacts of those peers whose address is known."""
    return tuple(Contact(p, addresses[p]) for p in peers if p in addresses)


def norms_agree(a: float, b: float) -> bool:
    """Are two replicas' squared norms of the same sum equal, up to the order in which they added?"""
    return abs(a - b) <= NORM_TOLERANCE * max(abs(a), abs(b))
