"""What must hold in every simulated swarm at every moment, checked on what nodes do, not on what they say of themselves.

- S1 in each lineage one chain: no two decided records share a parent, those apart with which a lineage begins; a replica's
  state_id follows its lineage's decided records, link by link.
- Quorum: nobody sends a Decide before a quorum of the parent's voters holds the record. A Roster that forks is decided by its
  own candidate, with the promises of all that it seats, and those hold every stage or can make it again.
- S4 nobody parts from a holder that can be reached of a stage that is then made again.
- S2 the gradient that a committed step applies consists of each microbatch exactly once, per stage, computed on the committed
  weights; the shares say who accumulated what, and those members noted it, once each; the record's root is
  that of what they noted, and what a member shows of it is its own (`node.sim.credit`). However often work changes hands within
  an attempt, a microbatch of a stage has one owner (`node.sim.ownership`).
- S3 equal state_id, equal digest.
- Only members on the roster apply; a seat's attempts never go back in a lineage; no more payloads than may be in flight.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from node.sim.credit import Credit
from node.sim.in_flight import InFlight
from node.sim.machine import BrokenError, Contribution, Key, SimSeat, require, sum_digest, whole_gradient
from node.sim.nodes import SimNode
from node.sim.ownership import Ownership
from protocol.chain import is_quorum
from protocol.commands import Apply, Command, Compute, Note, Reduce, Regrow, Release, Restore, SendMessage
from protocol.ids import Ballot, Member, RecordId, StateId, bitmap, initial_state_id, members_of, next_state_id
from protocol.manifest import Manifest
from protocol.messages import Decide, Heartbeat, Held, OpenStep, Promise
from protocol.records import (
    Commit,
    Rebuild,
    Record,
    Rollback,
    Roster,
    Seating,
    Shadow,
    Share,
    genesis_id,
    is_fork,
    is_older_copy,
    record_id,
    short,
)

MAX_BACK = 200
"""Commits, of all lineages, in which one that is being applied is looked for."""


@dataclass(frozen=True, slots=True)
class Place:
    """Roster, voters, step and states after a decided record."""

    seats: dict[tuple[int, Member], Seating]
    voters: tuple[Member, ...]
    step: int = 0
    states: dict[int, StateId] = field(default_factory=dict)
    lineage: RecordId = ""
    """The newest record up to here that forked."""
    losses: int = 0
    """How many of those that forked left a stage without a holder."""
    made: frozenset[int] = frozenset()
    """Stages that were rebuilt since the last commit; whoever is seated there may not have them yet."""
    epoch: int = 0
    """How often everybody went back."""

    def active(self, stage: int) -> list[Member]:
        """Active replicas of a stage."""
        return [member for (s, member), seating in self.seats.items() if s == stage and seating.role == "active"]

    def has_quorum_without(self, *members: Member) -> bool:
        """Can the other voters decide?"""
        return is_quorum({v for v in self.voters if v not in members}, self.voters)

    def holders(self, stage: int) -> list[Member]:
        """Replicas of a stage that have its whole state."""
        return [m for (s, m), seating in self.seats.items() if s == stage and seating.role != "learner"]


class Invariants:
    """See the module. Raises `BrokenError`; counts on the way."""

    def __init__(self, manifest: Manifest, founder: Member) -> None:
        self._manifest = manifest
        self.head: RecordId = genesis_id(manifest.run_id)
        first = {s: initial_state_id(manifest.run_id, s) for s in range(manifest.num_stages)}
        self.places: dict[RecordId, Place] = {self.head: Place({}, (founder,), 0, first)}
        self.forks: list[RecordId] = []
        """Records with which a lineage began."""
        self.commits: list[tuple[float, Commit, RecordId]] = []
        self.num_checked: Counter[str] = Counter()
        self.most_payloads = 0
        self.now: Callable[[], float] = lambda: 0.0
        self.reaches: Callable[[SimNode, Member, int, RecordId], bool] = lambda *_: False
        """Could the node have heard the member, which is in this lineage, all the time of late?"""
        self.num_grown = 0
        """Commits that were the newest of the highest step."""
        self._lineages: dict[Member, RecordId] = {}
        """In which those that live are."""
        self._child: dict[RecordId, RecordId] = {}
        self._held: defaultdict[tuple[Ballot, RecordId], set[Member]] = defaultdict(set)
        self._promised: defaultdict[tuple[Ballot, RecordId], set[Member]] = defaultdict(set)
        self._parents: dict[RecordId, RecordId] = {}
        self._digests: dict[tuple[int, StateId], str] = {}
        self._steps: dict[tuple[int, StateId], int] = {}
        self._noted: Counter[tuple[Member, int, Key, int]] = Counter()
        self.recovered: dict[tuple[int, int, str], str] = {}
        self._teller: dict[tuple[int, int, str], SimNode] = {}
        """Who told of it last. His successor may tell of it again: it cannot know what he decided, and said to nobody else."""
        """(stage, step, peer where it goes on) -> rung, as the coordinators told it."""
        self._latest: dict[tuple[Member, int], Key] = {}
        self.payloads = InFlight()
        self.owners = Ownership()
        self.credit = Credit(manifest)
        self.checks: dict[type, Callable[[SimNode, Any], None]] = {
            Note: self._on_note,
            SendMessage: self._on_send,
            Compute: self._on_compute,
            Reduce: self._on_attempt,
            Apply: self._on_attempt,
            Release: self._on_release,
        }
        """What `command` does, by the command's class."""

    @property
    def place(self) -> Place:
        """Roster and voters after the newest decided record, of those of the highest step that anybody who lives may know."""
        return self.places[self.head]

    @property
    def step(self) -> int:
        """Newest committed step."""
        return self.places[self.head].step

    # ---- called by the world ----

    def command(self, node: SimNode, command: Command) -> None:
        """A node is about to carry out a command."""
        check = self.checks.get(type(command))
        if check:
            check(node, command)

    def after(self, node: SimNode) -> None:
        """A node has carried out all that followed from an event."""
        book = self.payloads
        book.look(node)
        if book.grown is None:
            return
        tag, book.grown = book.grown, None
        if book.count[tag] <= min(2 * self._manifest.max_in_flight, self.most_payloads):
            return  # whatever the bound is, it is not less
        count, stage0 = book.count[tag], max(1, len(self.place.active(0)))
        self.most_payloads = max(self.most_payloads, count)
        amendments = self.owners.amendments[tag]  # what is led around somebody is on its old way too, and is sent again at once
        bound = 2 * self._manifest.max_in_flight * stage0 * (1 + len(self.forks)) * (1 + amendments)
        bound += 2 * self._manifest.batch.num_microbatches * amendments
        require(count <= bound, f"{count} payloads of {tag} at once; the schedule allows {bound}")

    def payload(self, node: SimNode, handle: int, tag: Key) -> None:
        """A node was given a payload."""
        self.payloads.given(node, handle, tag)

    def created(self, node: SimNode, seat: SimSeat) -> None:
        """A seat's first weights are made."""
        self._agree(node, seat)

    def learned(self, node: SimNode, seat: SimSeat) -> None:
        """A learner holds a whole copy."""
        self._agree(node, seat)
        self.num_checked["copies"] += 1

    def step_of(self, state_id: StateId, stage: int) -> int:
        """The step after which the stage had this state."""
        return self._steps.get((stage, state_id), 0)

    def applied(self, node: SimNode, seat: SimSeat, command: Apply, before: StateId) -> None:
        """A seat's weights changed."""
        member, step = node.spec.member, command.step
        commits = [(record, name) for _, record, name in self.commits[-MAX_BACK:] if record.step == step]
        require(bool(commits), f"{node!r} applied step {step}, which nobody decided")
        own = [(record, name) for record, name in commits if next_state_id(before, name) == seat.state_id]
        follows = bool(own) and self.places[own[0][0].parent].states[seat.stage] == before
        require(follows, f"S1: {node!r} left the chain of stage {seat.stage} at step {step}")
        seats = self.places[own[0][0].parent].seats
        on_roster = (seat.stage, member) in seats and seats[seat.stage, member].role != "learner"
        require(on_roster, f"{node!r} applied step {step} of stage {seat.stage} off the roster")
        self._agree(node, seat)

    def reducing(self, node: SimNode, command: Reduce, part: list[Contribution]) -> None:
        """A node hands its gradient to a reduce."""
        row = next((r for r in command.members if r.member == node.spec.member), None)
        require(row is not None, f"{node!r} reduces stage {command.stage} without being named")
        assert row is not None
        for op in ("backward",) if command.stage else ("head", "embed_backward"):
            have = bitmap(m for m, done, _ in part if done == op)
            where = f"stage {command.stage}, step {command.step}, attempt {command.attempt}"
            require(have == row.microbatches, f"S2: {node!r} brings {op} of {have} to {where}, named {row.microbatches}")

    def died(self, node: SimNode) -> None:
        """A node's memory is gone."""
        self.payloads.gone(node)
        self._leaves(node.spec.member)

    def exited(self, node: SimNode) -> None:
        """A node left in order: it owes nothing."""
        self.quiet(node)
        self.payloads.gone(node)
        self._leaves(node.spec.member)

    def quiet(self, node: SimNode) -> None:
        """A node at rest owns no payload."""
        self.payloads.quiet(node)

    # ---- S1, quorum, S2: records ----

    def _on_send(self, node: SimNode, command: SendMessage) -> None:
        message = command.message
        if isinstance(message, Heartbeat):
            return
        if isinstance(message, Held):
            self._held[message.ballot, message.record].add(node.spec.member)
        elif isinstance(message, Promise):
            self._promised[message.ballot, message.head].add(node.spec.member)
        elif isinstance(message, Decide):
            self._decided(node, message)
        elif isinstance(message, OpenStep):
            self.owners.told(command.peer, message)

    def _decided(self, node: SimNode, message: Decide) -> None:
        record, name = message.record, record_id(message.record)
        is_new = name not in self.places
        self._enter(node, message.ballot, record, name)
        if isinstance(record, Commit) and (is_new or message.shares):
            self._check_shares(record, message.shares or self._shares_at(node, record))

    def _shares_at(self, node: SimNode, record: Record) -> tuple[Share, ...]:
        """Those that the node keeps with the record."""
        kept = node.state.chain.after(record.parent) or []  # type: ignore[attr-defined]
        return tuple(kept[0].shares) if kept and kept[0].record == record else ()

    def _enter(self, node: SimNode, ballot: Ballot, record: Record, name: RecordId) -> None:
        """A node says that the record is decided."""
        if name in self.places:
            return
        known = self._child.get(record.parent)
        require(is_fork(record) or known is None, f"S1: {node!r} decides {name[:8]} and {known} was decided after its parent")
        require(record.parent in self.places, f"S1: {node!r} decides {record}, which does not follow the head of any lineage")
        if isinstance(record, Roster) and is_fork(record):
            self._check_fork(node, ballot, record)
            self.forks.append(name)
        else:
            self._check_quorum(node, ballot, record, name)
            self._child[record.parent] = name
        self._append(record, name)

    def _told_nobody(self, node: SimNode, fields: dict[str, Any]) -> None:
        """Who is alone decides without a message; its chain has the record."""
        kept = node.state.chain.after(fields["parent"]) or []  # type: ignore[attr-defined]
        if kept:
            record = kept[0].record
            self._enter(node, Ballot(*fields["ballot"]), record, fields["record"])
            if isinstance(record, Commit):
                self._check_shares(record, kept[0].shares)

    def _check_quorum(self, node: SimNode, ballot: Ballot, record: Record, name: RecordId) -> None:
        voters = self.places[record.parent].voters
        holding = {v for v in voters if v in self._held[ballot, name] or v == node.spec.member}
        enough = 2 * len(holding) > len(voters) or (2 * len(holding) == len(voters) and voters[0] in holding)
        require(enough, f"{node!r} decides {name[:8]} with {sorted(holding)} of the voters {voters}")
        self.num_checked["quorums"] += 1

    def _check_fork(self, node: SimNode, ballot: Ballot, roster: Roster) -> None:
        """Whoever forks says nothing to itself on the wire; its own promise needs no witness."""
        place, me = self.places[roster.parent], node.spec.member
        stay = {m for _, m in place.seats} - {s.member for s in roster.leaves}
        promised = self._promised[ballot, roster.parent] | {me}
        named = roster.forked == ballot and ballot.peer == me.peer
        require(named and stay <= promised, f"{node!r} forks with {sorted(stay)}, and {sorted(promised)} promised")
        stages = range(self._manifest.num_stages)
        lost = [s for s in stages if not stay & set(place.holders(s))]
        is_source_left = len(lost) < len(stages) - 1 or self._manifest.redraws
        can_make = self._manifest.recovery.policy != "none" and 0 not in lost and is_source_left
        can_make |= self._manifest.recovery.policy == "checkpoint"
        fine = (can_make or not lost) and set(roster.voters) <= stay
        require(fine, f"{node!r} forks without stages {lost}, voters {roster.voters}")
        left = [f"stage {s} of {m}" for s in lost for m in place.holders(s) if self.reaches(node, m, s, place.lineage)]
        require(not left, f"S4: {node!r} parts from {left}, which can be reached, and will make it again")
        self.num_checked["forks"] += 1
        self.num_checked["forks with a loss"] += bool(lost)

    def _append(self, record: Record, name: RecordId) -> None:
        before, self._parents[name] = self.places[record.parent], record.parent
        if isinstance(record, Roster):
            gone = {(s.stage, s.member) for s in record.leaves}
            seats = {key: seating for key, seating in before.seats.items() if key not in gone}
            seats |= {(s.stage, s.member): s for s in record.joins}
            after = replace(before, seats=seats, voters=record.voters)
            if is_fork(record):
                lost = not all(map(after.holders, range(self._manifest.num_stages)))
                after = replace(after, lineage=name, losses=before.losses + lost)
            self.places[name] = after
        elif isinstance(record, Rebuild):
            self._check_rebuild(record, before)
            seats = {key: seating for key, seating in before.seats.items() if key[0] != record.stage}
            seats |= {(s.stage, s.member): s for s in record.joins}
            states = before.states | {record.stage: next_state_id(before.states[record.stage], name)}
            made = before.made | {record.stage}
            self.places[name] = replace(before, seats=seats, voters=record.voters, states=states, made=made)
            self.num_checked["rebuilds"] += 1
        elif isinstance(record, Rollback):
            self.places[name] = self._rolled_back(record, name, before)
        else:
            self._check_commit(record)
            self.commits.append((self.now(), record, name))
            states = {stage: next_state_id(state, name) for stage, state in before.states.items()}
            self.places[name] = replace(before, step=record.step, states=states, made=frozenset())
            self._steps |= dict.fromkeys(states.items(), record.step)
        if self._progress(name) >= self._progress(self.head):
            self.num_grown += isinstance(record, Commit)
            self.head = name

    def _leaves(self, member: Member) -> None:
        """Somebody is gone, or in another lineage. That of the highest step may have ended with him."""
        self._lineages.pop(member, None)
        living = set(self._lineages.values())
        if living and self.place.lineage not in living:
            left = [name for name, place in self.places.items() if place.lineage in living]
            self.head = max(reversed(left), key=self._progress)

    def _progress(self, name: RecordId) -> tuple[int, int]:
        return self.places[name].epoch, self.places[name].step

    def _rolled_back(self, rollback: Rollback, name: RecordId, before: Place) -> Place:
        """What everybody goes back to was the state of all stages after a step of this lineage, and is to be saved; nobody
        loses a stage by it that he holds."""
        states, above = dict(enumerate(rollback.states)), rollback.parent
        while self.places[above].states != states:
            require(above in self._parents, f"{rollback} goes back to what this lineage never was")
            above = self._parents[above]
        step, every = self.places[above].step, self._manifest.recovery.checkpoint_every
        require(step == rollback.to_step <= before.step and step % every == 0, f"{rollback} goes back to step {step}")
        taken = [s for s in rollback.joins if before.holders(s.stage)]
        require(not taken, f"{rollback} gives away {taken}, which somebody holds")
        require(bool(rollback.joins) or bool(before.made), f"{rollback} though nothing is lost")
        seats = before.seats | {(s.stage, s.member): s for s in rollback.joins}
        after = {stage: next_state_id(state, name) for stage, state in states.items()}
        self._steps |= dict.fromkeys(after.items(), step)
        self.num_checked["rollbacks"] += 1
        made, epoch = frozenset(states), before.epoch + 1
        return replace(before, seats=seats, voters=rollback.voters, step=step, states=after, made=made, epoch=epoch)

    def restored(self, node: SimNode, seat: SimSeat, command: Restore) -> None:
        """A seat has what was saved, under the name that it has from now on."""
        self.regrown(node, seat, None)
        known = self._digests.get((seat.stage, command.source), seat.digest)
        require(known == seat.digest, f"S3: {node!r} restores {command} as another state")
        self.num_checked["restored"] += 1

    def _check_rebuild(self, rebuild: Rebuild, before: Place) -> None:
        """What is mixed is what the sources are now; what a stage goes on from is what it was, not too long ago."""
        if is_older_copy(rebuild):
            was = self._steps.get((rebuild.stage, rebuild.sources[0].state_id))
            allowed = self._manifest.recovery.stale_max_steps
            require(was is not None and before.step - was <= allowed, f"{rebuild} at step {before.step} goes back to {was}")
            require(not before.holders(rebuild.stage), f"{rebuild} though its stage has holders")
            self.num_checked["older copies"] += 1
            return
        if rebuild.shadow:
            self._check_shadow(rebuild, rebuild.shadow, before)
        for source in rebuild.sources:
            wanted = before.states[source.stage]
            require(source.state_id == wanted, f"{rebuild} mixes {source}, which is not the newest state of its stage")

    def _check_shadow(self, rebuild: Rebuild, shadow: Shadow, before: Place) -> None:
        """It is kept by a member, of steps close enough to one another and to now, and nobody has the stage."""
        every = self._manifest.recovery.shadow_every
        fresh = before.step - 2 * every <= shadow.oldest <= shadow.newest <= min(before.step, shadow.oldest + every)
        require(fresh, f"{rebuild} at step {before.step} is of steps {shadow.oldest} to {shadow.newest}")
        require(any(member == shadow.keeper for _, member in before.seats), f"{rebuild} of what a stranger keeps")
        require(not before.holders(rebuild.stage) or rebuild.stage in before.made, f"{rebuild} though its stage has holders")
        self.num_checked["of shadows"] += 1

    def regrown(self, node: SimNode, seat: SimSeat, command: Regrow | None) -> None:
        """A lost stage is made of others, or (None) of itself."""
        decided = any(place.states.get(seat.stage) == seat.state_id for place in self.places.values())
        require(decided, f"{node!r} makes {command}, which nobody decided")
        self._agree(node, seat)
        self.num_checked["regrown"] += 1

    def goes_on(self, node: SimNode, seat: SimSeat) -> None:
        """A lost stage goes on from an older state of its own."""
        self.regrown(node, seat, None)

    def digests_after(self, step: int) -> dict[int, set[str]]:
        """By stage: what it ever was after the step."""
        states = [where for where, at in self._steps.items() if at == step and where in self._digests]
        found: defaultdict[int, set[str]] = defaultdict(set)
        for where in states:
            found[where[0]].add(self._digests[where])
        return found

    def digest_of(self, stage: int, state_id: StateId) -> str:
        """Digest of a state that somebody held."""
        return self._digests[stage, state_id]

    def _check_commit(self, commit: Commit) -> None:
        batch, place = self._manifest.batch, self.places[commit.parent]
        require(commit.step == place.step + 1, f"S1: step {commit.step} is committed after {place.step}")
        stages = [result.stage for result in commit.results]
        require(stages == list(range(self._manifest.num_stages)), f"commit of stages {stages}")
        for result in commit.results:
            weights = self._digests[result.stage, place.states[result.stage]]
            whole = whole_gradient(result.stage, batch.num_microbatches, weights)
            wanted = sum_digest(result.stage, commit.step, whole)
            require(result.digest == short(wanted), f"S2: stage {result.stage} commits a wrong sum at step {commit.step}")
            self.num_checked["sums"] += 1

    def _check_shares(self, commit: Commit, shares: tuple[Share, ...]) -> None:
        place = self.places[commit.parent]
        self.credit.decided(commit, shares, place.seats, self._noted)
        for stage in range(self._manifest.num_stages):
            mine = tuple(share for share in shares if share.stage == stage)
            every: list[int] = []
            for share in mine:
                if (stage, share.member) not in place.seats:
                    raise BrokenError(f"{share} is off the roster")
                every += self._accumulated(share, (commit.step, commit.attempt))
            whole = list(range(self._manifest.batch.num_microbatches))
            require(sorted(every) == whole, f"S2: stage {stage} covers {sorted(every)} at step {commit.step}")
            self.num_checked["shares"] += 1

    def _accumulated(self, share: Share, key: Key) -> list[int]:
        microbatches = members_of(share.microbatches)
        for microbatch in microbatches:
            times = self._noted[share.member, share.stage, key, microbatch]
            if times != 1:
                raise BrokenError(f"S2: {share} of {key}: microbatch {microbatch} noted {times} times")
        return microbatches

    # ---- S3 and the rest ----

    def _agree(self, node: SimNode, seat: SimSeat) -> None:
        known = self._digests.setdefault((seat.stage, seat.state_id), seat.digest)
        require(known == seat.digest, f"S3: {node!r} holds another stage {seat.stage} under the same state_id")
        self.num_checked["states"] += 1

    def _on_note(self, node: SimNode, note: Note) -> None:
        fields = note.fields
        if note.type == "accumulated":
            key = (fields["step"], fields["attempt"])
            piece = (fields["stage"], fields["microbatch"])
            self._noted[node.spec.member, piece[0], key, piece[1]] += 1
            self.owners.accumulated(node.spec.member, Ballot(*fields["ballot"]), *key, piece)
        elif note.type == "decided":
            if fields["record"] not in self.places:
                self._told_nobody(node, fields)
            known = self._child.get(fields["parent"], fields["record"])
            fine = fields["record"] in (known, *self.forks)
            if not fine:
                raise BrokenError(f"S1: {node!r} notes {fields}, {known} was decided after its parent")
            place = self.places[fields["record"]]
            self._lineages[node.spec.member] = place.lineage
            if place.epoch != self.places[fields["parent"]].epoch:
                self._counts_anew(node.spec.member)
        elif note.type == "yielded":
            self._counts_anew(node.spec.member)
            self._leaves(node.spec.member)
        elif note.type == "caught_up" and self.place.epoch:
            self._counts_anew(node.spec.member)
        elif note.type == "rerouted":
            self.num_checked["excluded" if fields["excluded"] else "relieved"] += 1
        elif note.type == "recovered":
            told = (fields["stage"], fields["step"], fields["peer"])
            require(self._teller.get(told) is not node, f"{node!r} tells of a recovery that it told before: {fields}")
            self.recovered[told], self._teller[told] = fields["rung"], node
        elif note.type in self.credit.checks:
            self.credit.checks[note.type](node, fields)

    def _counts_anew(self, member: Member) -> None:
        """Its steps go back."""
        self._latest = {where: key for where, key in self._latest.items() if where[0] != member}

    def _on_compute(self, node: SimNode, command: Compute) -> None:
        if not command.work.evaluate:
            self._on_attempt(node, command.work)

    def _on_attempt(self, node: SimNode, work: Any) -> None:
        where, key = (node.spec.member, work.stage), (work.step, work.attempt)
        before = self._latest.get(where, (0, 0))
        if before > key:
            raise BrokenError(f"{node!r}, stage {work.stage}: attempt {key} after {before}")
        self._latest[where] = key

    def _on_release(self, node: SimNode, command: Release) -> None:
        self.payloads.released(node, command.handle)
