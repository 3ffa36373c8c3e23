"""Who joins, leaves, moves and changes roles: what the next Roster says, and when a step waits for a newcomer.

A newcomer to a living stage is a learner until it holds the newest state, passive until it has applied one update with the same
digest as a sibling, and active then. A leaver goes as soon as others hold its stages. Everything happens between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from protocol.chain import Chain, choose_voters
from protocol.commands import Note
from protocol.copies import Copies, is_copy
from protocol.digests import Digests
from protocol.gathering import Gathering
from protocol.handover import Handover
from protocol.ids import Member, PeerId
from protocol.learners import Learners
from protocol.losses import promotions
from protocol.manifest import Manifest
from protocol.messages import AppliedReport, Learning, Wish
from protocol.placement import Placement
from protocol.records import Roster, Seating
from protocol.sizes import fits
from protocol.speeds import Speeds
from protocol.takeover import ranks

MOVE_HEARTBEATS = 30.0
"""A stage must be starved for so long before a replica moves there, and no move follows a change of the roster sooner."""
LEAD_HEARTBEATS = (1.0, 4.0)
"""How long a coordinator that wants to go waits for others that do to say so, and for those that have said so to be gone: a
swarm that is told to go as a whole goes by one decision, and not each by what it can find out without a coordinator."""
LEAD_MOST_S = 4.0
"""It must still be there to go in order (`departure.DRAIN_S`)."""
COPY_HEARTBEATS = 5.0
"""How long a leaver waits for the successors of its copies."""
THERE_HEARTBEATS = 2.0
"""Who is silent for longer may be dead: nothing is given up for its sake."""
MAX_STRIKES = 3
"""A node whose updates came out different so often gets no seat any more."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the next Roster says, with notes for the event log. A seat that changes its role is in `joins`."""

    joins: tuple[Seating, ...] = ()
    leaves: tuple[Seating, ...] = ()
    notes: tuple[Note, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.joins or self.leaves)


@dataclass(frozen=True, slots=True)
class Odd:
    """A replica that holds something else than its siblings. `at_once`: it must not go on in the open step."""

    member: Member
    reason: str
    loses_all: bool
    at_once: bool
    note: Note


class Membership:
    """See the module. Facts come in through `on_*`."""

    def __init__(self, manifest: Manifest, chain: Chain) -> None:
        timing = manifest.timing
        self.gathering = Gathering(manifest)
        self.speeds = Speeds()
        self.learners = Learners(chain, timing.heartbeat_s, timing.join_pause_s)
        self.handover = Handover(manifest, chain, self.learners)
        self.digests = Digests(chain)
        self._manifest, self._chain = manifest, chain
        self._placement = Placement(manifest, chain, self.speeds)
        self._copies = Copies(manifest, chain)
        self.hears: Callable[[Member, float, float], bool] = lambda _member, _seconds, _now: True
        """Was the member heard within so many seconds? The coordinator knows."""
        self._beat_s = timing.heartbeat_s
        self._strikes: dict[PeerId, int] = {}
        self._wrong: set[tuple[int, Member]] = set()
        """Seats that are taken away at the next boundary, from nodes that keep others."""
        self._changed_at = 0.0
        self._starved_since: float | None = None

    # ---- facts ----

    def on_wish(self, wish: Wish) -> bool:
        """Somebody wants a seat; False where the wish is outdated, or nothing is to be had for this node."""
        return self._strikes.get(wish.member.peer, 0) < MAX_STRIKES and self.gathering.enter(wish)

    def on_leave(self, member: Member, reason: str, now: float) -> None:
        """A member wants to go in order."""
        if self._chain.member_of(member.peer) == member:
            self.handover.leaving.setdefault(member, (now, reason))

    def on_learning(self, member: Member, message: Learning, now: float) -> None:
        """A learner says how far it is."""
        self.learners.look(now)
        self.learners.enter(member, message)

    def on_applied(self, member: Member, message: AppliedReport) -> None:
        """A replica has applied an update."""
        self.digests.enter(message.stage, message.state_id, member, message.digest)

    def odd(self, message: AppliedReport) -> list[Odd]:
        """Who is odd at this stage by now: with a wrong state it would make the others wrong. It loses all its seats, for its
        memory may be bad; where nobody else holds another stage of it, for want of better the wrong one only."""
        found = []
        for member, digest, right in self.digests.odd(message.stage):
            note = mismatch(message.stage, member, digest, right, message.step)
            reason = f"its stage {message.stage} has digest {digest[:8]}, its siblings' have {right[:8]}"
            loses_all = not self._is_needed(member, message.stage)
            if not loses_all:
                self._wrong.add((message.stage, member))
            found.append(Odd(member, reason, loses_all, self._chain.is_active(message.stage, member.peer), note))
            self.digests.forget(message.stage, member)
            self.strike(member.peer)
        return found

    def _is_needed(self, member: Member, besides: int) -> bool:
        """Is there another stage that it alone holds?"""
        held = [s.stage for s in self._chain.seats_of(member) if s.role != "learner" and s.stage != besides]
        return any(all(s.member == member for s in self._chain.holders(stage)) for stage in held)

    def strike(self, peer: PeerId) -> None:
        """The node's updates come out different: it loses its seats, and after some time its claim to any."""
        self._strikes[peer] = self._strikes.get(peer, 0) + 1

    # ---- decisions ----

    def roster(self, changes: Changes, me: Member) -> Roster:
        """The record that says so. `me` coordinates and votes first, or, if it goes, the one that is to take over."""
        chain = self._chain
        gone = {(s.stage, s.member) for s in (*changes.leaves, *changes.joins)}
        after = [*(s for s in chain.seatings if (s.stage, s.member) not in gone), *changes.joins]
        first = me
        if me in self.handover.leaving and all(s.member != me for s in after):
            active = [s.member for s in after if s.role == "active"]
            first = next((m for m in [*ranks(chain, self._manifest.num_stages), *active] if m in active), me)
        return Roster(chain.head, chain.step, changes.joins, changes.leaves, choose_voters(after, first))

    def changes(self, now: float) -> Changes:
        """What to decide between two steps; empty if nothing."""
        self.learners.look(now)
        self.speeds.keep(self._chain.seatings)
        self.handover.look()
        steps = (
            self._without_wrong,
            self._leavers,
            self._raised,
            self._relieved,
            self._unparked,
            self._handed_over,
            self._granted,
            self._moved,
        )
        found = next(filter(None, (step(now) for step in steps)), Changes())
        if found:
            self._changed_at, self._starved_since = now, None
        return found

    def _without_wrong(self, _now: float) -> Changes:
        if not self._wrong:
            return Changes()
        leaves = tuple(s for s in self._chain.seatings if (s.stage, s.member) in self._wrong)
        self._wrong.clear()
        return Changes(promotions([s for s in self._chain.seatings if s not in leaves]) if leaves else (), leaves)

    def _leavers(self, now: float) -> Changes:
        gone: list[Member] = []
        for member, (since, _) in self.handover.leaving.items():
            if self._may_go(member, [*gone, member], now - since, now):
                gone.append(member)
        if not gone:
            return Changes()
        leaves = tuple(s for s in self._chain.seatings if s.member in gone)
        return Changes(promotions([s for s in self._chain.seatings if s.member not in gone]), leaves)

    def _is_there(self, member: Member, now: float) -> bool:
        return self.hears(member, THERE_HEARTBEATS * self._beat_s, now)

    def _may_go(self, member: Member, gone: Sequence[Member], waited_s: float, now: float) -> bool:
        """Does somebody else hold each of its stages? A copy may wait a little for its successor."""
        mine = self._chain.seats_of(member)
        held = [s.stage for s in mine if s.role != "learner" and self.handover.is_whole(s.stage)]
        if all(m in self.handover.leaving for m in self._chain.members()):
            return True
        if member == self._chain.voters[0] and waited_s < self._goes_last_s():
            return False
        lost = {m for m in self._chain.members() if m in gone or not self._is_there(m, now)}
        if any(all(s.member in lost for s in self._chain.holders(stage)) for stage in held):
            return False
        if any(s.role == "parked" and not self.handover.is_whole(s.stage) for s in mine):
            return False
        copied = {s.stage for s in mine if is_copy(s, self._chain) and s.role == "passive"}
        learning = (s for stage in copied for s in self._chain.seated(stage) if s.role == "learner")
        waits = any(is_copy(s, self._chain) for s in learning) or any(s.stage in copied for s in self._missing(gone))
        return not waits or waited_s > COPY_HEARTBEATS * self._beat_s

    def _missing(self, going: Sequence[Member]) -> list[Seating]:
        """Copies to be, at nodes that have room for them."""
        missing, heirs = self._copies.missing(going), self.handover.heirs
        return [s for s in missing if heirs.can_copy(s.stage, s.member)] if self._manifest.copies_stages else missing

    def _goes_last_s(self) -> float:
        heartbeats = LEAD_HEARTBEATS[len(self.handover.leaving) > 1]
        return min(heartbeats * self._beat_s, LEAD_MOST_S, self._manifest.timing.leave_notice_s / 4)

    def _raised(self, _now: float) -> Changes:
        """Learners that hold the newest state become passive; passive ones that have proved themselves become active."""
        joins, leaves, notes = [], [], []
        roles = {(s.stage, s.member): s for s in self._chain.in_role("learner")}
        for stage, member, digest in self.learners.caught_up():
            seating, right = roles[stage, member], self.digests.believed(stage, self._chain.state_ids[stage])
            if right in ("", digest):
                self.digests.forget(stage, member)
                joins.append(replace(seating, role=self.handover.heirs.role(seating, self.handover.leaving)))
            else:
                self.strike(member.peer)
                leaves.append(seating)
                notes.append(mismatch(stage, member, digest, right, self._chain.step))
        ready = [s for s in self._chain.in_role("passive") if not is_copy(s, self._chain)]
        joins += [replace(s, role="active") for s in ready if self.digests.is_proven(s.stage, s.member)]
        return Changes(tuple(joins), tuple(leaves), tuple(notes))

    def _granted(self, _now: float) -> Changes:
        """Seats for those that wish for one, and copies where some are missing."""
        joins: list[Seating] = []
        notes: list[Note] = []
        for wish in self.gathering.wishes.values():
            stage = None if self._chain.member_of(wish.member.peer) else self._placement.stage_for(wish, joins)
            if stage is None or not (self._chain.holders(stage) or self._chain.step == 0):
                continue
            notes.append(self._why(stage, wish, joins))
            joins.append(self._seat_for(wish, stage))
        return Changes((*joins, *self._missing(list(self.handover.leaving))), notes=tuple(notes))

    def _seat_for(self, wish: Wish, stage: int) -> Seating:
        """At the start it makes the stage; later it learns it, if it has not kept the newest state itself."""
        learner = self._learner(stage, wish.member, pinned=wish.stage == stage)
        if not self._chain.holders(stage):
            return replace(learner, role="active")
        kept = self._placement.kept_by(wish, stage)
        is_right = kept and self.digests.believed(stage, kept.state_id) in ("", kept.digest)
        return replace(learner, role=self.handover.heirs.role(learner, self.handover.leaving)) if is_right else learner

    def _why(self, stage: int, wish: Wish, more: Sequence[Seating]) -> Note:
        """What the stages looked like when a newcomer was given one."""
        strengths = [self._placement.strength(s, more) for s in range(self._manifest.num_stages)]
        per_second, replicas = [x for x, _ in strengths], [n for _, n in strengths]
        facts = {"stage": stage, "peer": wish.member.peer, "asked": wish.stage, "step": self._chain.step}
        return Note("placed", facts | {"per_second": per_second, "replicas": replicas})

    def _learner(self, stage: int, member: Member, pinned: bool = False) -> Seating:
        return Seating(stage, member, "learner", self._chain.generations[stage], pinned)

    def _relieved(self, now: float) -> Changes:
        """Whoever took a second seat for want of nodes gives it up when somebody else serves that stage: it stays as a copy,
        where one is missing. Others that are silent may be dead, and nobody be left who has the stage."""
        chain = self._chain
        for stage in range(self._manifest.num_stages) if chain.has_shared else ():
            active = chain.active(stage)
            shared = [s for s in active if chain.num_computed(s.member) > 1]
            others = [s for s in active if s not in shared]
            if not shared or not any(self._is_there(s.member, now) for s in others):
                continue
            if self._copies.stays(shared[0]):
                return Changes((replace(shared[0], role="passive"),))
            return Changes((), (shared[0],))
        return Changes((), self._left_behind(now)[:1])

    def _left_behind(self, now: float) -> tuple[Seating, ...]:
        """Seats of those that moved to a lost stage, at stages that others compute. Copies are wanted as the manifest says."""
        chain, going = self._chain, self.handover.leaving
        idle = [s for s in (*chain.in_role("learner"), *chain.in_role("passive")) if chain.num_computed(s.member)]
        stay = {m: m not in going and self._is_there(m, now) for m in chain.members()} if idle else {}
        needless = [s for s in idle if any(stay[other.member] for other in chain.active(s.stage))]
        return self._copies.needless(needless, going)

    def _unparked(self, now: float) -> Changes:
        """A kept stage is computed where it is as soon as there is room, and no longer kept where somebody else computes it."""
        parked = self._chain.in_role("parked")
        held = [s for s in parked if any(self._is_there(x.member, now) for x in self._chain.active(s.stage))]
        kept = [s for s in held if self.handover.is_whole(s.stage)]
        joins = () if kept else tuple(replace(s, role="active") for s in self.handover.heirs.unparked()[:1])
        return Changes(joins, tuple(kept))

    def _handed_over(self, _now: float) -> Changes:
        """The only holder of a stage wants to go: somebody else copies its state. One heir each time: each has room for one."""
        for stage in self.handover.stages():
            heir = None
            if self.handover.heir(stage) is None:
                heir = self.handover.heirs.choose(stage, self.spares(stage), self.handover.leaving)
            if heir:
                return Changes((self._learner(stage, heir),))
        return Changes()

    def spares(self, stage: int) -> list[Member]:
        """Nodes without a seat whose memory suffices for the stage; those first that asked for it, then those that asked for
        none."""
        free = [w for w in self.gathering.wishes.values() if self._chain.member_of(w.member.peer) is None]
        able = [w for w in free if w.stage == stage or fits(self._manifest, stage, w.memory_bytes)]
        return [w.member for w in sorted(able, key=lambda w: (w.stage != stage, w.stage >= 0, w.member))]

    def _moved(self, now: float) -> Changes:
        move = self._placement.move() if not self.handover.leaving else None
        if move is None:
            self._starved_since = None
            return Changes()
        if self._starved_since is None:
            self._starved_since = now
        if now - max(self._starved_since, self._changed_at) < MOVE_HEARTBEATS * self._beat_s:
            return Changes()
        left, taken = move
        fields = {"peer": left.member.peer, "stage": left.stage, "to": taken.stage, "step": self._chain.step}
        return Changes((taken,), (left, *self._copies.beside(left)), (Note("moved", fields),))


def mismatch(stage: int, member: Member, digest: str, right: str, step: int) -> Note:
    """A replica holds something else than its siblings under the same state_id."""
    return Note("digest_mismatch", {"stage": stage, "peer": member.peer, "digest": digest, "own": right, "step": step})
