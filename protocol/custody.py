"""Which stages a node holds, in which role, and how it comes to their state: from the seed, a copy, others' weights, or its own
that it kept when the swarm took it off the roster, or when it gave up its lineage for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from protocol.chain import Chain
from protocol.commands import (
    Command,
    CreateSeat,
    DropSeat,
    GoOn,
    KeepGradients,
    Learn,
    Note,
    Regrow,
    Restore,
    Say,
    StopLearning,
)
from protocol.events import Applied, Learned, LearningGoesOn, RestoreFailed, Saved, SeatCreated
from protocol.ids import Ballot, PeerId, StateId, initial_state_id
from protocol.manifest import Manifest
from protocol.messages import Kept, Learning, Message
from protocol.records import Rebuild, Rollback, Seating, is_older_copy, is_weights_alone
from protocol.restoring import Unrestored
from protocol.rungs import Rung
from protocol.saving import Saving
from protocol.schedule import later_lr_factor
from protocol.seat import Seat, SeatPhase, SeatState
from protocol.shadows import told_of

REST_HEARTBEATS = 2.0
"""Beyond a lapse: until then a loss that nobody knew of when the seat was granted is on the roster."""
NOTHING_COMES_S = 1e9
"""Seconds left of a copy that has not begun."""
KEPT_GRADIENTS = 2
"""For learners, after their update. A range further behind is copied again: that costs three vectors, a gradient one."""


class Custody:
    """`seats` by stage. `emit` takes the commands that follow, `tell` what the coordinator is told."""

    def __init__(
        self,
        manifest: Manifest,
        me: PeerId,
        chain: Chain,
        emit: Callable[[Command], None],
        tell: Callable[[Message], None],
    ) -> None:
        self.seats: dict[int, Seat] = {}
        self._manifest, self._me, self._chain = manifest, me, chain
        self._emit, self._tell_leader = emit, tell
        self._kept: dict[int, Seat] = {}
        self.saving = Saving(me, chain, emit)
        self.facts: dict[type, Callable[[Any, float], None]] = {
            Saved: lambda event, _: self.saving.saved(event),
            RestoreFailed: lambda event, _: self.not_restored(event),
        }
        """What is done about events that concern nobody else."""
        self._at_rest: dict[int, float | None] = {}
        """Stages that this node is to learn, of which it has kept a whole state: that may soon be all that is left of them. It
        copies nothing over it before a step is committed, or (if it is not the newest) before this time; None: not set yet."""

    def _emit_all(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self._emit(command)

    def take_seat(self, join: Seating) -> None:
        """A seat was granted, or its role changed. A learner copies its state; at the start it comes from the seed."""
        stage = join.stage
        if stage in self.seats:
            self._change_role(self.seats[stage], join)
            return
        manifest, learns = self._manifest, join.role == "learner"
        if self._take_up_again(join) or not (learns or self._is_from_the_seed(stage)):
            return  # without the state that it was seated for its heartbeats tell that the seat is lost
        self.forget_kept()
        state = SeatState(stage, join.role, join.generation, "" if learns else self._chain.state_ids[stage])
        state.provenance = {"rung": "copy" if learns else "seed"}
        seat = Seat(state, self._me, manifest.max_in_flight, manifest.batch.tokens_per_microbatch)
        seat.phase = SeatPhase.LEARNING if learns else SeatPhase.CREATING
        self.seats[stage] = seat
        how = "copying its state from others" if learns else "making its weights from the seed"
        self._emit_all(
            [
                Note("granted", {"stage": stage, "role": join.role, "generation": join.generation}),
                Say(f"holding stage {stage} ({join.role}), {how}"),
                Learn(stage) if learns else CreateSeat(stage, join.generation),
            ]
        )

    def _is_from_the_seed(self, stage: int) -> bool:
        return self._chain.state_ids[stage] == initial_state_id(self._manifest.run_id, stage)

    def _change_role(self, seat: Seat, join: Seating) -> None:
        before, seat.state.role = seat.state.role, join.role
        if join.role == "parked":
            self._emit(Say(f"keeping stage {join.stage} as it is (parked) until a node comes that has room to compute it"))
        elif before != join.role:
            self._emit(Say(f"holding stage {join.stage} ({join.role})"))
        regain = self._chain.regained.get(join.stage)
        if join.role == "active" and regain and regain.peer == self._me:
            self._regained(seat, regain.rung)
        self._end_learning(seat)

    def _regained(self, seat: Seat, rung: Rung) -> None:
        """The stage goes on here, and would not otherwise."""
        copied = seat.state.provenance if rung in ("handover", "parked") else {}
        seat.state.provenance = {**copied, "rung": rung, "state_id": seat.state.state_id, "step": self._chain.step}
        if seat.phase is not SeatPhase.LEARNING:
            self._tell_provenance(seat)

    def regrow(self, join: Seating, rebuild: Rebuild) -> None:
        """This node is to hold a stage that is made of others, or that goes on from the state that it kept."""
        stage, state_id = join.stage, self._chain.state_ids[join.stage]
        if is_older_copy(rebuild):
            self._go_on(join, rebuild)
            return
        self.forget_kept(stage)
        manifest = self._manifest
        shadow = rebuild.shadow
        lr_factor = shadow.lr_factor if shadow else manifest.recovery.lr_factor
        state = SeatState(stage, join.role, rebuild.generation, "", lr_factor=lr_factor)
        sources = [{"stage": s.stage, "state_id": s.state_id, "coefficient": s.coefficient} for s in rebuild.sources]
        how = {"rung": "shadow"} | told_of(shadow) if shadow else {"rung": "recovery", "sources": sources}
        state.provenance = how | {"step": rebuild.step}
        seat = Seat(state, self._me, manifest.max_in_flight, manifest.batch.tokens_per_microbatch)
        seat.phase = SeatPhase.LEARNING
        self.seats[stage] = seat
        self._emit_all(
            [
                Note("granted", {"stage": stage, "role": join.role, "generation": rebuild.generation}),
                Say(_making(rebuild)),
                Regrow(stage, state_id, rebuild.step, rebuild.generation, rebuild.sources, state.lr_factor, shadow),
            ]
        )

    def _kept_of(self, rebuild: Rebuild) -> Seat | None:
        """What this node kept, if the stage goes on from just that, here."""
        mine = is_older_copy(rebuild) and rebuild.joins[0].member.peer == self._me
        return self._kept_as(rebuild.stage, rebuild.sources[0].state_id) if mine else None

    def _kept_as(self, stage: int, state_id: StateId) -> Seat | None:
        """What is kept of the stage, if it is whole and this state ('': any)."""
        seat = self._kept.get(stage)
        fits = seat and seat.phase is SeatPhase.IDLE and state_id in ("", seat.state.state_id)
        return seat if fits else None

    def _go_on(self, join: Seating, rebuild: Rebuild) -> None:
        """Without what was kept (any more) the seat stays empty, and the coordinator is told that it is lost."""
        seat, stage = self._kept_of(rebuild), rebuild.stage
        if seat is None:
            return
        self.seats[stage] = self._kept.pop(stage)
        state, seat.phase = seat.state, SeatPhase.LEARNING
        behind = rebuild.step - state.step
        state.role = join.role
        state.provenance = {"rung": "older_copy", "source": state.state_id, "steps_behind": behind, "step": rebuild.step}
        again = self._chain.state_ids[stage]
        self._emit_all(
            [
                Note("granted", {"stage": stage, "role": join.role, "generation": rebuild.generation}),
                Say(f"holding stage {stage} ({join.role}) again, with the state of {behind} steps ago"),
                GoOn(stage, again, rebuild.step, state.digest, state.optimizer_age, state.lr_factor, rebuild.generation),
            ]
        )

    # ---- back to what was saved ----

    def roll_back(self, rollback: Rollback) -> None:
        """Everything that is held here is of steps that are given up."""
        self.forget_kept()
        for seat in list(self.seats.values()):
            self.drop(seat)
        self.saving.roll_back()
        for seating in self._chain.seatings:
            if seating.member.peer == self._me and seating.role == "learner":
                self.take_seat(seating)
            elif seating.member.peer == self._me:
                self.restore(seating, rollback)

    def restore(self, seating: Seating, rollback: Rollback) -> None:
        """This node's seat begins with what was saved of its stage."""
        stage, step, manifest = seating.stage, rollback.to_step, self._manifest
        source, state_id = rollback.states[stage], self._chain.state_ids[stage]
        state = SeatState(stage, seating.role, seating.generation, "")
        state.provenance = {"rung": "checkpoint", "source": source, "step": step, "epoch": rollback.epoch}
        seat = Seat(state, self._me, manifest.max_in_flight, manifest.batch.tokens_per_microbatch)
        seat.phase = SeatPhase.LEARNING
        self.seats[stage] = seat
        how = f"as it was saved after step {step}" if step else "as it was at the beginning"
        granted = {"stage": stage, "role": seating.role, "generation": seating.generation}
        self._emit_all(
            [
                *([Note("granted", granted)] if seating in rollback.joins else []),
                Say(f"holding stage {stage} ({seating.role}) {how}"),
                Restore(stage, source, state_id, step, seating.generation),
            ]
        )

    def not_restored(self, event: RestoreFailed) -> None:
        """What was saved cannot be read back: the coordinator hears of it until it has decided something else."""
        seat = self.seats.get(event.stage)
        if seat and seat.phase is SeatPhase.LEARNING:
            self.saving.not_restored(event)

    def applied(self, seat: Seat, event: Applied) -> None:
        """The update is in the weights of the seat, which took part in the step."""
        state = seat.state
        state.state_id, state.digest, state.step = event.state_id, event.digest, event.step
        state.optimizer_age = event.optimizer_age
        state.lr_factor = later_lr_factor(self._manifest.recovery, state.lr_factor)
        seat.attempt, seat.phase = None, SeatPhase.IDLE
        facts = {"stage": event.stage, "state_id": event.state_id, "digest": event.digest, "step": event.step}
        self._emit(Note("committed", facts | {"contributors": seat.contributors}))
        self.saving.save(state)

    def give_way(self, rebuild: Rebuild) -> None:
        """The stage begins anew elsewhere, or here with another state: what is held of it is of no use, unless this node gives
        it its weights, or the state that it goes on from."""
        stage = rebuild.stage
        self._lay_aside(stage)
        if not self._kept_of(rebuild):
            self.forget_kept(stage)
        gives = any(s.role == "parked" and s.member.peer == self._me for s in rebuild.joins)
        if gives and stage in self.seats:
            self.seats[stage].state.role = "parked"
            self._emit(Say(f"giving the weights of stage {stage} alone: the time is too short for its whole state"))
        elif stage in self.seats:
            self.drop(self.seats[stage])

    def _end_learning(self, seat: Seat) -> None:
        """A seat that is no learner any more takes part from the newest state on, as soon as it has that."""
        stage = seat.state.stage
        if seat.phase is SeatPhase.LEARNING and seat.state.role != "learner" and self._is_newest(seat):
            seat.phase = SeatPhase.IDLE
            self._at_rest.pop(stage, None)
            self._emit(StopLearning(stage))
            self._tell_provenance(seat)

    def _tell_provenance(self, seat: Seat) -> None:
        """For the event log: this seat's weights are ready to take part, and came to be so."""
        facts = {"stage": seat.state.stage, "generation": seat.state.generation, "state_id": seat.state.state_id}
        self._emit(Note("provenance", {**facts, "step": seat.state.step, **seat.state.provenance}))

    def keep_gradients(self) -> None:
        """For those that learn one of this node's stages."""
        for stage, seat in self.seats.items():
            learners = any(s.role == "learner" for s in self._chain.seated(stage))
            wanted = KEPT_GRADIENTS if learners and seat.state.role != "learner" else 0
            if wanted != seat.keeps_gradients:
                seat.keeps_gradients = wanted
                self._emit(KeepGradients(stage, wanted))

    def begin_anew(self, why: str = "too far behind") -> None:
        """The chain begins anew here, without seats. A whole state may be one that its stage had in the lineage that goes on,
        before the two parted: it is kept until its age or generation says that it is of no use there."""
        self._forget_old()
        for seat in list(self.seats.values()):
            self.set_aside(seat)
            self._emit(Note("left", {"stage": seat.state.stage, "reason": why}))
            self._emit(Say(f"stage {seat.state.stage} is not held here any more: the roster goes on without this node"))

    def learning(self, event: LearningGoesOn, ballot: Ballot) -> None:
        """The copy of a stage has come so far."""
        seat = self.seats.get(event.stage)
        if seat and seat.phase is SeatPhase.LEARNING:
            self._tell_leader(self._learning(ballot, event.stage, "", "", event.seconds_left))

    def learned(self, event: Learned, ballot: Ballot) -> None:
        """The whole stage is of one state, and its digest is a donor's."""
        seat = self.seats.get(event.stage)
        if seat is None or seat.phase is not SeatPhase.LEARNING:
            return
        state = seat.state
        state.state_id, state.digest, state.step = event.state_id, event.digest, event.step
        state.optimizer_age, state.lr_factor, state.generation = event.optimizer_age, event.lr_factor, event.generation
        if state.provenance["rung"] not in ("recovery", "older_copy", "shadow", "checkpoint"):
            state.provenance = {"rung": "copy", "state_id": event.state_id, "step": event.step}
        if event.donors:
            self._tell_transfer(seat, event)
        self._tell_leader(self._learning(ballot, event.stage, event.state_id, event.digest, 0.0))
        self._end_learning(seat)

    def _tell_transfer(self, seat: Seat, event: Learned) -> None:
        seat.state.provenance |= {"from": list(event.donors), "bytes": event.num_bytes, "transfer_s": event.seconds}
        fields = {"what": f"stage {event.stage}", "bytes": event.num_bytes, "from": list(event.donors), "to": self._me}
        self._emit(Note("transfer", fields | {"s": event.seconds, "step": event.step, "state_id": event.state_id}))

    def leave_seat(self, stage: int) -> None:
        """The swarm decided to go on without this node's seat. Who is off the roster may be back in time with its state; a
        member gives up a seat that others hold, and the memory with it. A copy that is whole is kept until the next commit: the
        seat may be granted again in a record that is known here a moment later, and its donor be gone."""
        seat = self.seats.get(stage)
        if seat is None:
            return
        if self._has_copied(seat):
            self._emit(StopLearning(stage))
            seat.phase = SeatPhase.IDLE
            self._kept[stage] = self.seats.pop(stage)
        elif self._chain.member_of(self._me) is None:
            self.set_aside(seat)
        else:
            self.drop(seat)
        self._emit(Say(f"stage {stage} is not held here any more: the roster goes on without this node"))

    def _has_copied(self, seat: Seat) -> bool:
        state = seat.state
        copies = seat.phase is SeatPhase.LEARNING and state.provenance["rung"] == "copy" and state.stage not in self._at_rest
        return copies and bool(state.digest) and self._is_newest(seat)

    def set_aside(self, seat: Seat) -> None:
        """The seat takes no part any more; its state is kept for a while."""
        if seat.attempt and seat.settled:
            self._emit_all(seat.void())
        self._lay_aside(seat.state.stage)
        if seat.state.stage in self._kept:
            self._forget_old()
        elif seat.phase in (SeatPhase.IDLE, SeatPhase.APPLYING) and seat.state.digest and not self._is_stale(seat):
            self._kept[seat.state.stage] = self.seats.pop(seat.state.stage)
        else:
            self.drop(seat)

    def _lay_aside(self, stage: int) -> None:
        """What a learner has that rests is kept without the seat."""
        if stage in self._at_rest:
            del self._at_rest[stage]
            self._kept[stage] = self.seats.pop(stage)
            self._kept[stage].phase = SeatPhase.IDLE

    def _is_stale(self, seat: Seat) -> bool:
        """Would the swarm not go back to that state? Generations fence: a stage that was rebuilt since is another. What goes
        beyond the chain is of another lineage. Who has just left one knows nothing yet of the chain that it joins."""
        state, chain = seat.state, self._chain
        if not chain.height or self._is_newest(seat):
            return False
        same = state.generation == chain.generations[state.stage]
        return not same or not 0 <= chain.step - state.step <= self._manifest.recovery.stale_max_steps

    def applying(self, stage: int) -> Seat | None:
        """The seat, kept ones among them, whose update is being applied."""
        seat = self.seats.get(stage) or self._kept.get(stage)
        return seat if seat and seat.phase is SeatPhase.APPLYING else None

    def forget_stale(self, ballot: Ballot) -> None:
        """A step was committed. Memory for what is kept is there as long as nothing else is held. A learner that rested copies
        its stage: others hold it, and are further."""
        if self.seats:
            self.forget_kept()
        self._forget_old()
        for stage in tuple(self._at_rest):
            self._begin_to_copy(stage, ballot)

    def look(self, ballot: Ballot, now: float) -> None:
        """A heartbeat passed. Who had a part in the stage and is lost would be off the roster by now: a learner rests no longer
        with a state that is not the newest."""
        timing = self._manifest.timing
        for stage, until in tuple(self._at_rest.items()):
            if until is None:
                self._at_rest[stage] = now + timing.lapse_s + REST_HEARTBEATS * timing.heartbeat_s
            elif now >= until and self._chain.holders(stage) and not self._is_newest(self.seats[stage]):
                self._begin_to_copy(stage, ballot)

    def _is_newest(self, seat: Seat) -> bool:
        return seat.state.state_id == self._chain.state_ids[seat.state.stage]

    def _begin_to_copy(self, stage: int, ballot: Ballot) -> None:
        del self._at_rest[stage]
        self.seats[stage].state.digest = self.seats[stage].state.state_id = ""
        self._emit_all([DropSeat(stage), Learn(stage)])
        self._tell_leader(self._learning(ballot, stage, "", "", NOTHING_COMES_S))

    def report(self, stage: int, ballot: Ballot) -> Learning | Unrestored | None:
        """What the coordinator, which may be another one by now, should hear again of a stage that this node learns or made
        since the last commit: that it has the newest state, or for how long nothing comes, and an older one is still here."""
        state, phase = self.seats[stage].state, self.seats[stage].phase
        if failed := self.saving.unrestored(stage, ballot):
            return failed
        newest = bool(state.digest) and self._is_newest(self.seats[stage])
        was_made = stage in self._chain.rebuilds or self._chain.rollback is not None
        has_made = newest if phase is SeatPhase.LEARNING else was_made and phase is SeatPhase.IDLE
        if not has_made and stage not in self._at_rest:
            return None
        return self._learning(ballot, stage, state.state_id, state.digest, 0.0 if has_made else NOTHING_COMES_S)

    def _learning(self, ballot: Ballot, stage: int, state_id: StateId, digest: str, seconds_left: float) -> Learning:
        return Learning(ballot, stage, state_id, digest, seconds_left, self._chain.head)

    def has_no_donor(self, stage: int) -> bool:
        """Is this node seated for the state of the stage, still copies it, and is nobody else left who has it?"""
        seat = self.seats.get(stage)
        if seat is None or seat.phase is not SeatPhase.LEARNING or seat.state.role == "learner":
            return False
        copies = seat.state.provenance["rung"] == "copy"
        return copies and all(s.member.peer == self._me for s in self._chain.holders(stage))

    def _forget_old(self) -> None:
        for stage, seat in tuple(self._kept.items()):
            if self._is_stale(seat):
                self.forget_kept(stage)

    def kept(self) -> tuple[Kept, ...]:
        """Exact states without a seat, of the last steps: the swarm may be glad of them. Not before it has told where it
        stands: who has just left another lineage does not know which stages were rebuilt since."""
        if not self._chain.height:
            return ()
        whole = [seat.state for _, seat in sorted(self._kept.items()) if seat.phase is SeatPhase.IDLE]
        return tuple(Kept(state.stage, state.state_id, state.digest) for state in whole)

    def forget_kept(self, *stages: int) -> None:
        """What is kept without a seat, of these stages or of all, is of no use any more."""
        for stage in stages or tuple(self._kept):
            if self._kept.pop(stage, None):
                self._emit(DropSeat(stage))

    def _take_up_again(self, join: Seating) -> bool:
        """The seat is granted to the one that has its state already: a holder that came back in time. A learner rests."""
        seat = self._kept_as(join.stage, "" if join.role == "learner" else self._chain.state_ids[join.stage])
        if seat is None or self._is_stale(seat):
            return False
        self.seats[join.stage] = self._kept.pop(join.stage)
        seat.state.role, seat.state.generation = join.role, join.generation
        seat.state.provenance = {"rung": "returned", "state_id": seat.state.state_id, "step": self._chain.step}
        granted = {"stage": join.stage, "role": join.role, "generation": join.generation}
        if join.role == "learner":
            seat.phase = SeatPhase.LEARNING
            self._at_rest[join.stage] = None
        else:
            self._tell_provenance(seat)
        self._emit_all(
            [
                Note("granted", granted),
                Say(f"holding stage {join.stage} ({join.role}) again, with the state that it had"),
            ]
        )
        return True

    def created(self, event: SeatCreated) -> None:
        """Initial weights are made."""
        seat = self.seats.get(event.stage)
        if seat and seat.phase is SeatPhase.CREATING:
            seat.phase = SeatPhase.IDLE
            seat.state.digest = event.digest
            self._tell_provenance(seat)
            self._emit(Say(f"holding stage {event.stage} ({seat.state.role})"))

    def drop(self, seat: Seat) -> None:
        """Forget the seat and its state."""
        if seat.phase is not SeatPhase.APPLYING:
            self._emit_all(seat.void())
        del self.seats[seat.state.stage]
        self._at_rest.pop(seat.state.stage, None)
        self._emit(DropSeat(seat.state.stage))


def _making(rebuild: Rebuild) -> str:
    """For people: what is done."""
    if is_weights_alone(rebuild):
        return f"taking over the weights of stage {rebuild.stage} alone; its optimizer begins anew"
    if rebuild.shadow:
        of = f"steps {rebuild.shadow.oldest} to {rebuild.shadow.newest}"
        return f"restoring stage {rebuild.stage} of what {rebuild.shadow.keeper.peer[-8:]} kept of it, chunks of {of}"
    if not rebuild.sources:
        return f"drawing stage {rebuild.stage} anew from the seed"
    return f"rebuilding stage {rebuild.stage} of stages {', '.join(str(s.stage) for s in rebuild.sources)}"
