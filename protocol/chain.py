"""The chain of decided records as one node knows it, and what follows from it: step, roster, voters, state_ids."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from protocol.ids import NO_BALLOT, Ballot, Member, PeerId, RecordId, StateId, hash_of, initial_state_id, next_state_id
from protocol.manifest import Manifest
from protocol.messages import Contact, Summary
from protocol.recipes import recipe, weights_of
from protocol.records import (
    Commit,
    Point,
    Rebuild,
    Record,
    Role,
    Rollback,
    Roster,
    Seating,
    Shadow,
    Share,
    Source,
    genesis_id,
    is_fork,
    is_older_copy,
    is_weights_alone,
    record_id,
)
from protocol.rollback import rollback_misfit, saves_after, with_point
from protocol.rungs import Regain, regained
from protocol.schedule import gradient_norm
from protocol.seats import Seats
from protocol.shadow_ledger import shadow_misfit

MAX_VOTERS = 7
KEPT_RECORDS = 64
KEPT_COMMITS = 64
MAX_SEEN = 4096


@dataclass(frozen=True, slots=True)
class Decided:
    """A record with the shares that were known here."""

    record: Record
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Past:
    """A commit, and the state_ids of all stages before it."""

    commit: Commit
    parents: tuple[StateId, ...]


class Chain:
    """Grows by `append` only. Knows nothing of ballots."""

    def __init__(self, manifest: Manifest, founder: Member | None) -> None:
        self._manifest = manifest
        self.head: RecordId = genesis_id(manifest.run_id)
        self.step = 0
        self.loss: float | None = None
        self.seatings: list[Seating] = []
        self.voters: tuple[Member, ...] = (founder,) if founder else ()
        self.state_ids: list[StateId] = [initial_state_id(manifest.run_id, s) for s in range(manifest.num_stages)]
        self.tokens = 0
        self.squared_norms: list[float] = []
        """Of the last commit, by stage; empty before the first."""
        self.generations = [0] * manifest.num_stages
        """How often each stage was rebuilt."""
        self.rebuilds: dict[int, Rebuild] = {}
        """By stage: since the last commit. Whoever is seated there has to have the state made before a step can be opened."""
        self.epoch = 0
        """How often the run has gone back."""
        self.fence = NO_BALLOT
        """No step is opened under this ballot, or a lower one: such a step may have been one of those that were given up."""
        self.points: tuple[Point, ...] = ()
        """Steps after which all stages were to be saved, oldest first: what the run may go back to."""
        self.rollback: Rollback | None = None
        """Since the last commit: whoever is seated has to have the state that was saved before a step can be opened."""
        self.regained: dict[int, Regain] = {}
        """By stage: lost or handed over, and got back, since the last commit."""
        self.height = 0
        """Number of decided records up to the head."""
        self.lineage: RecordId = ""
        """The newest Roster on it that forked; '' = none did."""
        self.lossy_forks = 0
        """How many Rosters on it forked and left a stage without a holder: the others may have gone on with theirs."""
        self.past: deque[Past] = deque(maxlen=KEPT_COMMITS)
        self.seen: dict[PeerId, None] = {founder.peer: None} if founder else {}
        """Peers that ever had a seat, as far as is known here: the newest."""
        self._seats = Seats()
        self._kept: deque[tuple[RecordId, Decided]] = deque(maxlen=KEPT_RECORDS)

    @property
    def manifest(self) -> Manifest:
        """Of the run."""
        return self._manifest

    def fits(self, record: Record) -> str:
        """'' if the record may follow the head, else what is wrong with it."""
        if record.parent != self.head:
            return f"its parent is {record.parent[:8]}, the head here is {self.head[:8]}"
        if isinstance(record, Commit):
            return self._commit_fits(record)
        if isinstance(record, Rollback):
            as_roster = Roster(record.parent, record.step, record.joins, (), record.voters)
            return self._roster_fits(as_roster) or rollback_misfit(record, self)
        return self._roster_fits(record) if isinstance(record, Roster) else self._rebuild_fits(record)

    def _rebuild_fits(self, rebuild: Rebuild) -> str:
        stage = rebuild.stage
        if self._manifest.recovery.policy == "checkpoint":
            return "under policy checkpoint no stage is made of others"
        makeable = range(0 if is_older_copy(rebuild) or rebuild.shadow else 1, self._manifest.num_stages)
        if stage not in makeable or rebuild.generation != self.generations[stage] + 1:
            return f"it makes generation {rebuild.generation} of stage {stage}"
        made = [s for s in rebuild.joins if (s.stage, s.role, s.generation) == (stage, "active", rebuild.generation)]
        if not made or (len(made) < len(rebuild.joins) and not is_weights_alone(rebuild)):
            return f"it does not seat active replicas of stage {stage}, generation {rebuild.generation}"
        if rebuild.shadow:
            wrong = self._shadow_fits(rebuild, rebuild.shadow)
        elif is_older_copy(rebuild):
            wrong = self._older_fits(rebuild)
        else:
            wrong = self._givers_fit(rebuild) if is_weights_alone(rebuild) else self._sources_fit(rebuild)
        if wrong:
            return wrong
        leaves = tuple(self._seats.at(stage))
        return self._roster_fits(Roster(rebuild.parent, rebuild.step, rebuild.joins, leaves, rebuild.voters))

    def _older_fits(self, rebuild: Rebuild) -> str:
        """Had the stage that state, not too long ago? Who knows of fewer steps than that cannot tell."""
        most, stage = self._manifest.recovery.stale_max_steps, rebuild.stage
        source = rebuild.sources[0]
        if self.holders(stage) or len(rebuild.joins) != 1 or source.coefficient != 1.0 or not most:
            return f"stage {stage} does not go on from {source} at {len(rebuild.joins)} nodes"
        known = list(self.past)[-most:]
        is_known = any(past.parents[stage] == source.state_id for past in known)
        return "" if is_known or len(known) < min(most, self.step) else f"stage {stage} had no such state: {source}"

    def _shadow_fits(self, rebuild: Rebuild, shadow: Shadow) -> str:
        """Is it kept by somebody on the roster, of steps close enough, and is nothing better left of the stage?"""
        if not self._manifest.keeps_shadows or rebuild.sources or not self.is_seated(shadow.keeper):
            return f"stage {rebuild.stage} is not restored of a shadow at {shadow.keeper.peer[-8:]}"
        if self.holders(rebuild.stage) and rebuild.stage not in self.rebuilds:
            return f"stage {rebuild.stage} has holders"
        return shadow_misfit(shadow, self.step, self._manifest.recovery.shadow_every)

    def _givers_fit(self, rebuild: Rebuild) -> str:
        """Do those give the stage's own weights that hold them now?"""
        stage = rebuild.stage
        givers = [s for s in rebuild.joins if s.role == "parked"]
        holders = [replace(s, role="parked") for s in self.holders(stage)]
        own = (Source(stage, self.state_ids[stage], 1.0),)
        if rebuild.sources != own or not givers or any(s not in holders for s in givers) or stage in self.rebuilds:
            return f"nobody gives stage {stage} its own weights as of {rebuild.sources}"
        return "" if all(s.role in ("active", "parked") for s in rebuild.joins) else "it seats who neither gives nor takes"

    def _sources_fit(self, rebuild: Rebuild) -> str:
        stage = rebuild.stage
        weights = weights_of(self.squared_norms, self._manifest.batch.tokens_per_step, self._manifest)
        whole = {source.stage for source in rebuild.sources}
        made = recipe(stage, whole, self.state_ids, weights, self._manifest)
        if not made.can_be_made or made.sources != rebuild.sources or any(not self.holders(s) for s in whole):
            return f"stage {stage} is not made of {rebuild.sources} but {made.sources or made.sentence}"
        return ""

    def _roster_fits(self, roster: Roster) -> str:
        if roster.step != self.step:
            return f"it was made at step {roster.step}, here is step {self.step}"
        stages = [s.stage for s in (*roster.joins, *roster.leaves) if not 0 <= s.stage < self._manifest.num_stages]
        if stages:
            return f"it seats stage {stages[0]}, there are 0..{self._manifest.num_block_stages}"
        if len({(s.stage, s.member.peer) for s in roster.joins}) != len(roster.joins):
            return "it seats a peer twice at one stage"
        after = {s.member for s in (*self.seatings, *roster.joins) if not roster.leaves or s not in roster.leaves}
        if len({member.peer for member in after}) != len(after):
            return "it seats a peer in two lives"
        if not 1 <= len(set(roster.voters)) == len(roster.voters) <= MAX_VOTERS:
            return f"it has {len(roster.voters)} voters; 1 to {MAX_VOTERS} different ones are needed"
        if is_fork(roster) and (not after.issuperset(roster.voters) or roster.voters[0].peer != roster.forked.peer):
            return "it forks with voters that it does not seat"
        return ""

    def _commit_fits(self, commit: Commit) -> str:
        if commit.step != self.step + 1:
            return f"it commits step {commit.step} after step {self.step}"
        if [r.stage for r in commit.results] != list(range(self._manifest.num_stages)):
            return f"it does not cover stages 0..{self._manifest.num_block_stages}"
        if commit.tokens != self._manifest.batch.tokens_per_step:
            return f"it counts {commit.tokens} tokens, a step has {self._manifest.batch.tokens_per_step}"
        if not math.isfinite(commit.loss_sum):
            return f"its loss is {commit.loss_sum}"
        try:
            gradient_norm(commit.tokens, [r.squared_norm for r in commit.results])
        except ValueError as error:
            return str(error)
        return ""

    def append(self, record: Record, shares: tuple[Share, ...]) -> RecordId:
        """Make `record`, which must fit, the head."""
        wrong = self.fits(record)
        assert not wrong, f"record does not fit the chain: {wrong}"
        self.head = record_id(record)
        self.height += 1
        self.regained |= regained(record, self.seatings, self.step)
        self._kept.append((self.head, Decided(record, shares)))
        if isinstance(record, Commit):
            self.past.append(Past(record, tuple(self.state_ids)))
            self.step = record.step
            self.tokens += record.tokens
            self.loss = record.loss_sum / record.tokens
            self.state_ids = [next_state_id(s, self.head) for s in self.state_ids]
            self.squared_norms = [result.squared_norm for result in record.results]
            self.rebuilds, self.regained, self.rollback = {}, {}, None
            if saves_after(self.step, self._manifest):
                self.points = with_point(self.points, Point(self.step, self.head, tuple(self.state_ids)))
        elif isinstance(record, Roster):
            self._seat(record)
            if is_fork(record):
                self.lineage = self.head
                self.lossy_forks += not all(self.holders(stage) for stage in range(self._manifest.num_stages))
        elif isinstance(record, Rebuild):
            self._rebuild(record)
        else:
            self._roll_back(record)
        return self.head

    def _roll_back(self, rollback: Rollback) -> None:
        """The chain goes on, with steps that it had before: a state that is saved once is another one each time that it is gone
        back to."""
        self.step, self.tokens = rollback.to_step, rollback.to_step * self._manifest.batch.tokens_per_step
        self.state_ids = [next_state_id(state, self.head) for state in rollback.states]
        self.points = tuple(point for point in self.points if point.step <= rollback.to_step)
        self.epoch, self.fence, self.rollback = rollback.epoch, rollback.ballot, rollback
        if not self.step:
            self.loss, self.squared_norms = None, []
        self.rebuilds = {}
        self.past.clear()
        self._seat(Roster(rollback.parent, rollback.step, rollback.joins, (), rollback.voters))

    def _seat(self, roster: Roster) -> None:
        gone = {(s.stage, s.member) for s in roster.leaves} | {(s.stage, s.member) for s in roster.joins}
        kept = [s for s in self.seatings if (s.stage, s.member) not in gone]
        self._set_seatings(sorted(kept + list(roster.joins), key=lambda s: (s.stage, s.role != "active")))
        self.voters = roster.voters

    def _rebuild(self, rebuild: Rebuild) -> None:
        stage = rebuild.stage
        self.state_ids[stage] = next_state_id(self.state_ids[stage], self.head)
        self.generations[stage], self.rebuilds[stage] = rebuild.generation, rebuild
        leaves = tuple(self._seats.at(stage))
        self._seat(Roster(rebuild.parent, rebuild.step, rebuild.joins, leaves, rebuild.voters))

    def _set_seatings(self, seatings: list[Seating]) -> None:
        self.seatings = seatings
        self._seats = Seats(seatings)
        if not self._seats.members.keys() <= self.seen.keys():
            self.seen = dict.fromkeys([*self.seen, *self._seats.members][-MAX_SEEN:])

    def summary(self, ballot: Ballot, contacts: tuple[Contact, ...]) -> Summary:
        """Where it stands, for one that lacks more than is kept."""
        return Summary(
            ballot,
            self.head,
            self.step,
            self.tokens,
            self.loss or 0.0,
            tuple(self.seatings),
            self.voters,
            tuple(self.state_ids),
            contacts,
            self.height,
            self.lineage,
            tuple(self.squared_norms),
            tuple(self.generations),
            tuple(self.rebuilds.values()),
            self.lossy_forks,
            self.epoch,
            self.points,
            self.rollback,
        )

    def adopt(self, summary: Summary) -> str:
        """Go on from where another chain stands; '' or why not. In this lineage it must be further: nobody goes back. What is
        known here of another one tells nothing of how far this one is."""
        if summary.height <= self.height and summary.lineage == self.lineage:
            return "it is not further than what is known here"
        if not 0 <= summary.step <= summary.height or len(summary.state_ids) != self._manifest.num_stages:
            return f"it has {len(summary.state_ids)} state_ids at step {summary.step}"
        if len(summary.generations) != self._manifest.num_stages or len(summary.squared_norms) not in (
            0,
            len(summary.state_ids),
        ):
            return f"it has {len(summary.generations)} generations and {len(summary.squared_norms)} norms"
        if not 0 <= summary.lossy_forks <= (summary.height if summary.lineage else 0):
            return f"it has parted {summary.lossy_forks} times with a loss in {summary.height} records"
        wrong = self._roster_fits(Roster(summary.head, self.step, summary.seatings, tuple(self.seatings), summary.voters))
        if wrong:
            return wrong
        self.head, self.height, self.step, self.tokens = summary.head, summary.height, summary.step, summary.tokens
        self.loss, self.lineage = summary.loss if summary.step else None, summary.lineage
        self.lossy_forks = summary.lossy_forks
        self.epoch, self.points, self.rollback = summary.epoch, summary.points, summary.rollback
        self.fence = summary.rollback.ballot if summary.rollback else NO_BALLOT
        self.state_ids, self.voters = list(summary.state_ids), summary.voters
        self.squared_norms, self.generations = list(summary.squared_norms), list(summary.generations)
        self.rebuilds = {rebuild.stage: rebuild for rebuild in summary.rebuilds}
        self.regained = {s: found for rebuild in summary.rebuilds for s, found in regained(rebuild, (), self.step).items()}
        self._kept.clear()
        self.past.clear()
        self._set_seatings(list(summary.seatings))
        return ""

    def begin_anew(self) -> None:
        """Leave the lineage: nothing follows this head but a summary of another one."""
        seen, manifest = self.seen, self._manifest
        head = hash_of(["anew", self.head])
        self.__init__(manifest, None)  # type: ignore[misc]
        self.head, self.seen = head, seen

    def after(self, head: RecordId) -> list[Decided] | None:
        """Records that follow `head`, oldest first; None if `head` is not known (any more)."""
        if head == self.head:
            return []
        kept = list(self._kept)
        for index, (_, decided) in enumerate(kept):
            if decided.record.parent == head:
                return [d for _, d in kept[index:]]
        return None

    def has_kept(self, member: Member, stage: int, head: RecordId) -> bool:
        """Has no record after `head` taken the stage from the member? False also if `head` is not known (any more)."""
        since = self.after(head)
        lost = [s for d in since or () if isinstance(d.record, Roster) for s in d.record.leaves]
        return since is not None and all((s.stage, s.member) != (stage, member) for s in lost)

    def members(self) -> list[Member]:
        """Everybody on the roster, once, in roster order."""
        return list(self._seats.members.values())

    @property
    def by_peer(self) -> Mapping[PeerId, Member]:
        """The same by name, in the same order."""
        return self._seats.members

    def around(self, peer: PeerId) -> list[PeerId]:
        """The peers before and after one that is on the roster, in its order."""
        return self._seats.around(peer)

    def member_of(self, peer: PeerId) -> Member | None:
        """The incarnation of `peer` that is on the roster."""
        return self._seats.members.get(peer)

    def is_seated(self, member: Member) -> bool:
        """Is this life of the peer on the roster?"""
        known = self._seats.members.get(member.peer)
        return known is not None and known.incarnation == member.incarnation

    @property
    def active_seats(self) -> frozenset[tuple[int, PeerId]]:
        """(stage, peer) of all active replicas."""
        return self._seats.active

    def is_active(self, stage: int, peer: PeerId) -> bool:
        """Is the peer an active replica of the stage?"""
        return (stage, peer) in self._seats.active

    def seats_of(self, member: Member) -> list[Seating]:
        """What the member is seated at, in roster order."""
        return list(self._seats.of(member))

    def seated(self, stage: int) -> list[Seating]:
        """Seats of a stage: active replicas first, in roster order."""
        return list(self._seats.at(stage))

    def active(self, stage: int) -> list[Seating]:
        """Active replicas of a stage in roster order."""
        return list(self._seats.active_at(stage))

    def holders(self, stage: int) -> list[Seating]:
        """Replicas with the stage's whole state, kept ones among them: active ones first."""
        return list(self._seats.holders_at(stage))

    @property
    def held(self) -> frozenset[int]:
        """Stages that have such replicas."""
        return self._seats.held

    def in_role(self, role: Role) -> list[Seating]:
        """Seats of all stages in this role, in roster order."""
        return list(self._seats.in_role(role))

    def num_computed(self, member: Member) -> int:
        """How many stages the member computes."""
        return self._seats.busy[member]

    @property
    def has_shared(self) -> bool:
        """Does a member compute more than one stage?"""
        return self._seats.are_shared

    def empty_stages(self) -> list[int]:
        """Stages without an active replica."""
        return [s for s in range(self._manifest.num_stages) if not self.active(s)]


def choose_voters(seatings: list[Seating], first: Member) -> tuple[Member, ...]:
    """Up to 7 voters: `first` (the coordinator), then active replicas spread over the stages, round after round."""
    by_stage: dict[int, list[Member]] = {}
    for seating in seatings:
        if seating.role == "active":
            by_stage.setdefault(seating.stage, []).append(seating.member)
    chosen = [first]
    for depth in range(max((len(v) for v in by_stage.values()), default=0)):
        for stage in sorted(by_stage):
            row = by_stage[stage]
            if depth < len(row) and row[depth] not in chosen:
                chosen.append(row[depth])
            if len(chosen) >= MAX_VOTERS:
                return tuple(chosen)
    return tuple(chosen)


def is_quorum(held: set[Member], voters: tuple[Member, ...]) -> bool:
    """More than half of the voters, or exactly half including the first: the coordinator of the Roster that named them. Two
    quorums of the same voters always share one."""
    votes = [v for v in voters if v in held]
    if 2 * len(votes) > len(voters):
        return True
    return bool(votes) and 2 * len(votes) == len(voters) and votes[0] == voters[0]
