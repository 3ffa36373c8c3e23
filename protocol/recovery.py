"""What to do about stages that nobody holds any more: DESIGN's recovery ladder, as the coordinator sees it.

A stage is *hollow* while no member holds its whole state: nobody is seated there, or those who are have yet to make it. No step
is opened meanwhile. A holder that comes back with the newest state is seated again; else, after a grace, the stage is made of
its neighbours at a newcomer, a replica that can be spared elsewhere, or at last a neighbour that takes a second seat; under
policy `shadow` rather of what another node keeps of it (`protocol.shadow_offers`). Under policy `checkpoint` such a one takes
it, and all go back to what was saved (`protocol.rollbacks`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from protocol.chain import Chain, choose_voters
from protocol.commands import Survey
from protocol.copies import is_copy
from protocol.handover import Short
from protocol.ids import NO_BALLOT, Ballot, Member
from protocol.manifest import Manifest
from protocol.membership import Membership
from protocol.messages import Learning, Wish
from protocol.older_copy import Offer, youngest
from protocol.recipes import beyond_recovery, recipe, weights_of
from protocol.records import Rebuild, Rollback, Roster, Seating, Shadow, Source, is_older_copy, is_weights_alone
from protocol.rollbacks import Rollbacks
from protocol.shadow_offers import ShadowOffers
from protocol.stopwatch import Stopwatch
from protocol.view import View

FIND_LAPSES = 2.0
"""Left of a grace after a takeover, at least: until its coordinator has lapsed for whoever is back, and it has seen another one
in the directory."""
SPARED = ("learner", "passive", "active")
"""Roles of those that move to a lost stage, the ones that are missed least first."""


@dataclass(frozen=True, slots=True)
class Next:
    """What to decide now, or (without a record) what is waited for. No sentence: every stage has its state."""

    sentence: str = ""
    record: Rebuild | Roster | Rollback | None = None
    is_end: bool = False
    """Nothing can be decided any more: the run is over, for this reason."""
    survey: Survey | None = None
    """What is to be found out first."""


class Recovery:
    """See the module. Looks at the chain; keeps what members said about stages that they were to make."""

    def __init__(
        self, manifest: Manifest, me: Member, chain: Chain, view: View, members: Membership, ballot: Ballot = NO_BALLOT
    ) -> None:
        self.rollbacks = Rollbacks(me, chain, ballot, manifest.timing.heartbeat_s)
        self.memory = members.handover.heirs.memory
        self.shadows = ShadowOffers(manifest, chain, view)
        self.stopwatch = Stopwatch(chain)
        self._manifest, self._me, self._chain, self._view, self._members = manifest, me, chain, view, members
        self._made = members.handover.made
        self._since: dict[int, float] = {}
        self._began = -1e9

    def succeed(self, vacant: dict[int, float], now: float) -> None:
        """Take over. `vacant`: since when a stage has no holder. Its grace has begun then; but a holder that came back while
        nobody coordinated has to find out who does now."""
        most_s = max(0.0, self._manifest.recovery.rebuild_grace_s - FIND_LAPSES * self._manifest.timing.lapse_s)
        self._since, self._began = {stage: max(since, now - most_s) for stage, since in vacant.items()}, now

    def on_learning(self, member: Member, message: Learning) -> None:
        """A member says that it holds a state."""
        known = message.digest and 0 <= message.stage < self._manifest.num_stages
        if known and message.state_id == self._chain.state_ids[message.stage]:
            self._made.add((message.stage, member, message.state_id))

    def next(self, now: float) -> Next:
        """The next thing to do about hollow stages, one record at a time."""
        hollow = [s for s in range(self._manifest.num_stages) if not self._members.handover.is_whole(s)]
        self._since = {stage: self._since.get(stage, now) for stage in hollow}
        self.stopwatch.look(hollow, now)
        self.shadows.look(hollow)
        if not hollow:
            rules = self._manifest.recovery
            self.rollbacks.rest()
            fresh = rules.rebuilds and rules.moments == "fresh"
            short = self._members.handover.short_of_time(now) if fresh else None
            return self._weights_alone(short) if short else Next()
        if self._manifest.recovery.policy == "checkpoint":
            return self._go_back(hollow, now)
        end = self._end(hollow, now)
        if end:
            return Next(end, is_end=True)
        waits = []
        for stage in hollow:
            found = self._about(stage, hollow, now)
            if found.record:
                self.stopwatch.decides(stage, now - self._since[stage], self._manifest.recovery.rebuild_grace_s)
                return found
            waits.append(found.sentence)
        return Next("; ".join(waits))

    def _end(self, hollow: Sequence[int], now: float) -> str:
        """Why nothing can bring the stages back, once their holders have had their time to return; '' while something can."""
        recovery, lapse_s = self._manifest.recovery, self._manifest.timing.lapse_s
        waited_s = now - max(self._began, *self._since.values())
        if waited_s < max(recovery.rebuild_grace_s, lapse_s) or any(map(self._returned, hollow)):
            return ""
        kept = [stage for stage in hollow if self._kept_older(stage) or self._may_be_shadowed(stage, now)]
        lacking = [stage for stage in hollow if stage not in kept and not self._is_coming(stage, hollow, now)]
        return beyond_recovery(lacking, self._chain.step, self._manifest)

    def _may_be_shadowed(self, stage: int, now: float) -> bool:
        return bool(self.shadows.best(stage, now) or self._shadow_awaited(stage, now))

    def _shadow_awaited(self, stage: int, now: float) -> Member | None:
        return self.shadows.awaited(stage, now - max(self._began, self._since[stage]), now)

    def _is_coming(self, stage: int, hollow: Sequence[int], now: float) -> bool:
        """Is it being made, and what it is made of is there?"""
        rebuild = self._chain.rebuilds.get(stage)
        if rebuild is None or not self._chain.active(stage):
            return False
        if self._is_from_leaver(rebuild) or is_older_copy(rebuild):
            return True
        if rebuild.shadow:
            return self.shadows.still(stage, rebuild.shadow, now)
        return all(s.stage not in hollow and s.state_id == self._chain.state_ids[s.stage] for s in rebuild.sources)

    def _is_from_leaver(self, rebuild: Rebuild) -> bool:
        return is_weights_alone(rebuild) and any(s.role == "parked" for s in self._chain.seated(rebuild.stage))

    def _about(self, stage: int, hollow: Sequence[int], now: float) -> Next:
        being_made = self._chain.active(stage)
        if being_made:
            where = being_made[0].member.peer[-8:]
            if self._is_from_leaver(self._chain.rebuilds[stage]):
                return Next(f"the weights of stage {stage} alone are handed over to {where}: its leaver has no time for more")
            if is_older_copy(self._chain.rebuilds[stage]):
                return Next(f"stage {stage} goes on at {where} from an older state")
            if self._is_coming(stage, hollow, now):
                how = "restored" if self._chain.rebuilds[stage].shadow else "rebuilt"
                return Next(f"stage {stage} is being {how} by {where}")
            return self._rebuild(stage, hollow, [s.member for s in being_made], now)
        returned = self._returned(stage)
        if returned:
            sentence = f"stage {stage} goes on at {returned.member.peer[-8:]}, which is back with its state"
            return Next(sentence, self._seat_again(stage, returned))
        lost = f"waiting: stage {stage} has no holder since step {self._chain.step}"
        if self._manifest.recovery.policy == "none":
            return Next(f"{lost}; recovery.policy none waits until one that kept its state is back")
        left = self._since[stage] + self._manifest.recovery.rebuild_grace_s - now
        if left > 0:
            return Next(f"{lost}; its holder may come back for {left:.0f} s")
        if keeper := self._shadow_awaited(stage, now):
            return Next(f"{lost}; {keeper.peer[-8:]} is to say what it kept of it")
        older = self._older(stage, now)
        if older:
            return older
        newcomer = self._newcomer(stage, now)
        if newcomer is None:
            return Next(f"{lost}; no node can take it yet")
        return self._rebuild(stage, hollow, [newcomer], now)

    # ---- back to what was saved ----

    def _go_back(self, hollow: Sequence[int], now: float) -> Next:
        """Once their holders have had their time, and somebody takes each stage that nobody holds."""
        chain, lost = self._chain, [stage for stage in hollow if not self._chain.holders(stage)]
        for stage in lost:
            if returned := self._returned(stage):
                sentence = f"stage {stage} goes on at {returned.member.peer[-8:]}, which is back with its state"
                return Next(sentence, self._seat_again(stage, returned))
        if not lost and not self.rollbacks.is_in_vain():
            return Next(f"every stage goes back to step {chain.step}: {len(hollow)} of them have yet to be restored")
        named = f"stage {', '.join(map(str, lost))}"
        waiting = f"waiting: {named} has no holder since step {chain.step}"
        left = max((self._since[stage] + self._manifest.recovery.rebuild_grace_s - now for stage in lost), default=0.0)
        if left > 0:
            return Next(f"{waiting}; its holder may come back for {left:.0f} s")
        takers: dict[int, Member] = {}
        for stage in lost:
            taker = self._newcomer(stage, now, frozenset(takers.values()))
            if taker is None:
                return Next(f"{waiting}; no node can take stage {stage} yet")
            takers[stage] = taker
        found = self.rollbacks.decide(takers, now)
        for stage in lost if found.record else ():
            self.stopwatch.decides(stage, now - self._since[stage], self._manifest.recovery.rebuild_grace_s)
        return Next(found.sentence, found.record, survey=found.survey)

    # ---- a holder that is back ----

    def _returned(self, stage: int) -> Wish | None:
        newest = self._chain.state_ids[stage]
        seated = {m.peer for m in self._chain.members()}
        for wish in self._members.gathering.wishes.values():
            if wish.member.peer not in seated and any(k.stage == stage and k.state_id == newest for k in wish.kept):
                return wish
        return None

    def _seat_again(self, stage: int, wish: Wish) -> Roster:
        joins = (Seating(stage, wish.member, "active", self._chain.generations[stage], pinned=wish.stage == stage),)
        voters = choose_voters([*self._chain.seatings, *joins], self._me)
        return Roster(self._chain.head, self._chain.step, joins, (), voters)

    def _kept_older(self, stage: int) -> tuple[Offer, Source, int] | None:
        """Who kept a state of the stage that is some steps old."""
        return youngest(self._chain, stage, self._offers(stage), self._manifest.recovery.stale_max_steps)

    def _offers(self, stage: int) -> list[Offer]:
        """Of nodes without a seat, and of those that were to learn the stage when it was lost."""
        chain, members = self._chain, self._members
        wishes = [w for w in members.gathering.wishes.values() if chain.member_of(w.member.peer) is None]
        told = [Offer(w.member, k.state_id, w.stage == stage) for w in wishes for k in w.kept if k.stage == stage]
        asked = {s.member for s in chain.seated(stage) if s.pinned}
        return told + [Offer(m, state_id, m in asked) for m, state_id in members.learners.at_rest(stage)]

    def _older(self, stage: int, now: float) -> Next | None:
        """Where no shadow is younger."""
        chain, found, shadow = self._chain, self._kept_older(stage), self.shadows.best(stage, now)
        if found is None or (shadow and chain.step - shadow.oldest < found[2]):
            return None
        offer, source, age = found
        generation = chain.generations[stage] + 1
        joins = (Seating(stage, offer.member, "active", generation, offer.pinned),)
        voters = choose_voters([*(s for s in chain.seatings if s.stage != stage), *joins], self._me)
        record = Rebuild(chain.head, chain.step, stage, generation, (source,), joins, voters)
        return Next(f"stage {stage} goes on from the state of {age} steps ago, which {offer.member.peer[-8:]} kept", record)

    # ---- a stage made of its shadow, or of others ----

    def _rebuild(self, stage: int, hollow: Sequence[int], at: Sequence[Member], now: float) -> Next:
        chain, manifest, shadow = self._chain, self._manifest, self.shadows.best(stage, now)
        whole = [s for s in range(manifest.num_stages) if s not in hollow]
        weights = weights_of(chain.squared_norms, manifest.batch.tokens_per_step, manifest)
        made = recipe(stage, whole, chain.state_ids, weights, manifest)
        if not made.can_be_made and not shadow:
            return Next(f"waiting: stage {stage} is lost since step {chain.step}: {made.sentence}")
        generation = chain.generations[stage] + 1
        joins = tuple(Seating(stage, member, "active", generation) for member in at)
        kept = [s for s in chain.seatings if s.stage != stage]
        voters, sources = choose_voters([*kept, *joins], self._me), () if shadow else made.sources
        record = Rebuild(chain.head, chain.step, stage, generation, sources, joins, voters, shadow)
        if shadow:
            return Next(f"stage {stage} is lost and will be restored: {_told(shadow)}", record)
        return Next(f"stage {stage} is lost and will be {made.sentence}", record)

    def _weights_alone(self, short: Short) -> Next:
        """The heir of a leaver gets the stage's weights, a third of its state, and the optimizer begins anew."""
        chain, stage = self._chain, short.stage
        generation = chain.generations[stage] + 1
        givers = [replace(s, role="parked") for s in chain.holders(stage)]
        joins = (Seating(stage, short.heir, "active", generation), *givers)
        kept = [s for s in chain.seatings if s.stage != stage]
        source = Source(stage, chain.state_ids[stage], 1.0)
        voters = choose_voters([*kept, *joins], self._me)
        record = Rebuild(chain.head, chain.step, stage, generation, (source,), joins, voters)
        why = f"the {short.left_s:.0f} s that its leaver has are too few for the whole state of stage {stage}"
        return Next(f"{why}: {short.heir.peer[-8:]} gets its weights alone", record)

    def _newcomer(self, stage: int, now: float, taken: Collection[Member] = ()) -> Member | None:
        """Who came to copy the stage when its last holder went; a node without a seat, those first that asked for this stage; a
        replica that its stage can spare; a neighbour. `taken`: who takes another stage."""
        going = self._members.handover.leaving
        waiting = [s.member for s in self._chain.seated(stage) if s.role == "learner" and s.member not in going]
        for member in waiting:
            if not self._view.lapsed(member.peer, now) and member not in taken:
                return member
        spares = [member for member in self._members.spares(stage) if member not in taken]
        if spares:
            return spares[0]
        spared = self._spared(stage, now, taken)
        if spared:
            return spared
        if now - self._since[stage] < self._manifest.recovery.rebuild_grace_s + self._manifest.recovery.newcomer_wait_s:
            return None
        return self._neighbour(stage)

    def _spared(self, stage: int, now: float, taken: Collection[Member]) -> Member | None:
        """A replica of a stage that others compute: one that does not compute there yet comes first, then the youngest of the
        stage that has most. The new seat takes the place of the old one (`Membership`)."""
        chain, heirs = self._chain, self._members.handover.heirs
        computing = [s.member for s in chain.seatings if s.role == "active"]
        free = [
            s
            for s in reversed(chain.seatings)
            if s.role != "parked"
            and s.member not in taken
            and not (s.pinned or is_copy(s, chain) or self._view.lapsed(s.member.peer, now))
            and computing.count(s.member) == (s.role == "active")
            and any(other.member != s.member for other in chain.active(s.stage))
            and heirs.can_compute(stage, s.member, s.stage)
        ]
        best = min(free, key=lambda s: (SPARED.index(s.role), -len(chain.active(s.stage))), default=None)
        return best.member if best else None

    def _neighbour(self, stage: int) -> Member | None:
        """Who has most room: fewest seats, most memory, the nearest stage. The coordinator where nobody else is left."""
        seats: dict[Member, list[int]] = {}
        for s in self._chain.seatings:
            if s.role == "active" and not self._view.lapsed(s.member.peer, self._since[stage]):
                seats.setdefault(s.member, []).append(s.stage)
        heirs = self._members.handover.heirs
        able = [m for m in seats if heirs.can_compute(stage, m)]
        alone = self._me if self._chain.member_of(self._me.peer) and heirs.can_compute(stage, self._me) else None
        return min(able, key=lambda m: heirs.burden(stage, m), default=alone)


def _told(shadow: Shadow) -> str:
    """For people: what of."""
    steps = f"steps {shadow.oldest} to {shadow.newest}" if shadow.oldest < shadow.newest else f"step {shadow.oldest}"
    return f"{shadow.keeper.peer[-8:]} kept chunks of {steps}"
