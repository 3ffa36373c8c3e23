"""What the simulated nodes compute: seats, one compute thread each, and reduces over replica sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node.sim.checkpoints import Checkpoints
from node.sim.copies import Copies
from node.sim.machine import (
    COST,
    PRODUCES,
    Contribution,
    SimSeat,
    loss_of,
    norm_of,
    require,
    sum_digest,
)
from node.sim.nodes import SimNode
from node.sim.surroundings import Surroundings
from protocol.checks import STEPS_AHEAD
from protocol.commands import (
    Apply,
    Command,
    Compute,
    CreateSeat,
    Discard,
    DropSeat,
    DropShadow,
    GoOn,
    KeepGradients,
    KeepShadow,
    Learn,
    MixAhead,
    Reduce,
    Regrow,
    Restore,
    Save,
    SealShadow,
    StopLearning,
    StopMixing,
    StopReduce,
    Survey,
    Work,
)
from protocol.events import Applied, CommandFailed, ComputeDone, Reduced, SeatCreated
from protocol.ids import PeerId, hash_of, initial_state_id
from protocol.schedule import later_lr_factor

CREATE_S = (0.05, 0.5)
GRADIENT_BYTES = 1 << 20


@dataclass(slots=True)
class Gathered:
    """One reduce: which members asked for it, and with which gradients. Passive ones get the sum, and nobody waits for them."""

    command: Reduce
    parts: dict[PeerId, tuple[SimNode, list[Contribution]]]
    digest: str = ""
    """Of the sum, once it is made."""
    seconds: float = 0.0
    """What that took."""

    def any(self, state: Callable[[SimNode], bool]) -> SimNode | None:
        """The first member of which this holds."""
        return next((node for node, _ in self.parts.values() if state(node)), None)


def _summands(command: Reduce) -> set[PeerId]:
    return {row.member.peer for row in command.members if row.role == "active"}


class Works:
    """Carries out the commands that compute. Late, once each, and never for a node that died."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._reduces: dict[tuple[int, int, int, int, Any], Gathered] = {}
        self.copies = Copies(world)
        self.checkpoints = Checkpoints(world)
        self.gradient_bytes = GRADIENT_BYTES
        self.forgets_stale = False
        """Is what waits for the device taken out of the queue when its attempt is discarded, as production does?"""
        self.commands: dict[type[Command], Callable[[SimNode, Any], None]] = {
            Compute: self._queue_job,
            Apply: self._queue_job,
            CreateSeat: self._create_seat,
            DropSeat: self._drop_seat,
            Reduce: self._reduce,
            StopReduce: self._stop_reduce,
            Discard: self._discard,
            Learn: self.copies.learn,
            Regrow: self.copies.regrow,
            GoOn: self.copies.go_on,
            KeepShadow: self.copies.shadows.keep,
            SealShadow: self.copies.shadows.seal,
            DropShadow: self.copies.shadows.drop,
            MixAhead: self.copies.mix_ahead,
            StopMixing: self.copies.stop_mixing,
            StopLearning: self._stop_learning,
            Save: self.checkpoints.save,
            Survey: self.checkpoints.survey,
            Restore: self.checkpoints.restore,
            KeepGradients: self.copies.keep,
        }

    def died(self, node: SimNode) -> None:
        """The reduces that wait for a dead process fail at the others as soon as their streams break."""
        for gathered in self._reduces.values():
            if node.peer in _summands(gathered.command) and not gathered.digest:
                for other, _ in gathered.parts.values():
                    self._fail(other, gathered.command, node.peer)

    # ---- seats and computations ----

    def _create_seat(self, node: SimNode, command: CreateSeat) -> None:
        self._world.post(self._world.now + self._world.rng.uniform(*CREATE_S), node, self._seat_created, node, command.stage)

    def _seat_created(self, node: SimNode, stage: int) -> None:
        require(stage not in node.seats, f"{node!r} creates its seat of stage {stage} twice")
        run_id = self._world.manifest.run_id
        seat = SimSeat(stage, initial_state_id(run_id, stage), hash_of(["weights", run_id, stage]))
        node.seats[stage] = seat
        self._world.watch.created(node, seat)
        self._world.handle(node, SeatCreated(stage, seat.digest, 1 << 20))

    def _drop_seat(self, node: SimNode, command: DropSeat) -> None:
        self.copies.drop(node, command.stage)
        self.checkpoints.end(node, command.stage)
        node.seats.pop(command.stage, None)  # a learner has none before its first copy

    def _stop_learning(self, node: SimNode, command: StopLearning) -> None:
        self.copies.stop(node, command)
        self.checkpoints.end(node, command.stage)

    def _discard(self, node: SimNode, command: Discard) -> None:
        node.seats[command.stage].discard((command.step, command.attempt))
        for gathered in self._reduces.values():
            reduce = gathered.command
            if reduce.stage == command.stage and (reduce.step, reduce.attempt) <= (command.step, command.attempt):
                gathered.parts.pop(node.peer, None)

    def _stop_reduce(self, node: SimNode, command: StopReduce) -> None:
        key = command.step, command.attempt
        node.seats[command.stage].forget_sum(key)
        for gathered in self._reduces.values():
            reduce = gathered.command
            if (reduce.stage, reduce.step, reduce.attempt) == (command.stage, *key) and reduce.sum_number < command.sum_number:
                gathered.parts.pop(node.peer, None)

    def _queue_job(self, node: SimNode, command: Compute | Apply) -> None:
        if isinstance(command, Compute) and command.handle:
            node.pool.hold(command.handle)
        node.thread.put(command, node.seats.get(_stage_of(command)))
        self._start_job(node)

    def _start_job(self, node: SimNode) -> None:
        queued = node.thread.next()
        if queued is None:
            return
        job, seat = queued
        op = job.work.op if isinstance(job, Compute) else "apply"
        took = COST[op] * node.spec.unit_s * (0.9 + 0.2 * self._world.rng.random()) * node.slowness
        node.num_slowed += node.slowness > 1.0
        if self.forgets_stale and isinstance(job, Compute) and self._is_stale(node, job.work):
            took = 0.0
        self._world.post(self._world.now + took, node, self._finish_job, node, job, seat, took)

    def _finish_job(self, node: SimNode, job: Compute | Apply, seat: SimSeat | None, took: float) -> None:
        if node.thread.hung:
            return
        node.thread.busy = False
        self._start_job(node)
        if seat is not node.seats.get(_stage_of(job)):
            seat = None
        if isinstance(job, Apply):
            self._finish_apply(node, seat, job, took)
            return
        if job.handle:
            node.pool.let_go(job.handle)
        work = job.work
        if seat is None or self._is_stale(node, work):
            failed = CommandFailed(work.stage, work.step, work.attempt, work.microbatch, "", "discarded")
            self._world.handle(node, failed if self._world.rng.random() < 0.5 else self._result(node, work, took))
            return
        seat.compute(work)
        self._world.handle(node, self._result(node, work, took))

    def _is_stale(self, node: SimNode, work: Work) -> bool:
        seat = node.seats.get(work.stage)
        return seat is None or (not work.evaluate and (work.step, work.attempt) <= seat.discarded)

    def _result(self, node: SimNode, work: Work, took: float) -> ComputeDone:
        tokens = self._world.manifest.batch.tokens_per_microbatch if work.op == "head" else 0
        loss = loss_of(work.step, work.microbatch, tokens) if tokens else 0.0
        handle, num_bytes = 0, 0
        if work.op in PRODUCES and not (work.op == "head" and work.evaluate):
            handle, num_bytes = node.pool.give(), self._world.payload_bytes
            self._world.watch.payload(node, handle, (work.step, work.attempt))
        return ComputeDone(work, handle, num_bytes, loss, tokens, took)

    def _finish_apply(self, node: SimNode, seat: SimSeat | None, command: Apply, took: float) -> None:
        if seat is None:
            return
        before = seat.state_id
        seat.apply(command)
        seat.lr_factor = later_lr_factor(self._world.manifest.recovery, seat.lr_factor)
        self._world.watch.applied(node, seat, command, before)
        self._world.handle(node, Applied(seat.stage, command.step, seat.state_id, seat.digest, seat.age, took))

    # ---- reduces ----

    def _reduce(self, node: SimNode, command: Reduce) -> None:
        key = (command.step, command.attempt)
        part = list(node.seats[command.stage].gradients.get(key, []))
        self._world.watch.reducing(node, command, part)
        self._forget_old(command)
        where = (command.stage, *key, command.sum_number, tuple(row for row in command.members if row.role == "active"))
        gathered = self._reduces.setdefault(where, Gathered(command, {}))
        gathered.parts[node.peer] = (node, part)
        if gathered.digest:
            self._publish(node, gathered)
            return
        missing = [peer for peer in _summands(command) if peer not in gathered.parts]
        if not missing:
            self._sum(gathered)
            return
        others = [self._world.nodes[peer] for peer in missing if peer in self._world.nodes]
        gone = next((other for other in others if other.dead and other.loud), None)
        if gone:
            self._fail(node, command, gone.peer)

    def _forget_old(self, command: Reduce) -> None:
        """Of earlier steps, whoever still waits for them."""
        old = [where for where in self._reduces if where[0] == command.stage and where[1] < command.step - STEPS_AHEAD]
        for where in old:
            del self._reduces[where]

    def _fail(self, node: SimNode, reduce: Reduce, peer: PeerId) -> None:
        where = reduce.stage, reduce.step, reduce.attempt, -1
        failed = CommandFailed(*where, peer, "the stream broke", sum_number=reduce.sum_number)
        at = self._world.now + self._world.rng.uniform(0.001, 0.2)
        self._world.post(at, node, self._world.handle, node, failed)

    def _sum(self, gathered: Gathered) -> None:
        summands = [peer for peer in _summands(gathered.command) if peer in gathered.parts]
        frozen = gathered.any(lambda node: node.frozen and node.peer in summands)
        if frozen:
            frozen.backlog.append((self._sum, (gathered,)))
            return
        if self._world.network.parted(summands, self._world.now):
            self._break(gathered)
            return
        command = gathered.command
        everything = [c for _, part in gathered.parts.values() for c in part]
        gathered.digest = sum_digest(command.stage, command.step, everything)
        gathered.seconds = self._reduce_seconds(list(gathered.parts))
        for node, _ in gathered.parts.values():
            self._publish(node, gathered)

    def _publish(self, node: SimNode, gathered: Gathered) -> None:
        """The sum comes to a member, unless somebody who sums does not reach it: then it names that one after a while."""
        world, summands = self._world, _summands(gathered.command)
        far = next((peer for peer in summands if world.network.parted((node.peer, peer), world.now)), None)
        if far and node.peer not in summands:
            world.post(world.now + 2 * world.manifest.timing.lapse_s, node, self._fail, node, gathered.command, far)
            return
        late = gathered.seconds * (1.0 + 0.2 * world.rng.random())
        world.post(world.now + late, node, self._reduced, node, gathered)

    def _break(self, gathered: Gathered) -> None:
        """Some members do not reach each other. Who waits for a part names whose it is; for a sum, one who waits for a part."""
        network, now, lapse_s = self._world.network, self._world.now, self._world.manifest.timing.lapse_s
        for node, _ in gathered.parts.values():
            others = [peer for peer in gathered.parts if peer != node.peer]
            silent = next((peer for peer in others if network.parted((node.peer, peer), now)), None)
            late_s = lapse_s if silent else 2 * lapse_s
            self._world.post(now + late_s, node, self._fail, node, gathered.command, silent or others[0])

    def _reduce_seconds(self, peers: list[PeerId]) -> float:
        if len(peers) == 1:
            return 0.001
        network = self._world.network
        latency = max(network.latency(a, b) for a in peers for b in peers if a != b)
        return 2 * latency + 2 * self.gradient_bytes / min(network.rate(peer) for peer in peers)

    def _reduced(self, node: SimNode, gathered: Gathered) -> None:
        command, digest = gathered.command, gathered.digest
        seat, key = node.seats.get(command.stage), (command.step, command.attempt)
        summands = _summands(command)
        gone = gathered.any(lambda other: other.dead and other.peer in summands)
        if gone and self._world.rng.random() < 0.5:
            if gone.loud:
                self._fail(node, command, gone.peer)
            return
        if seat is None or key <= seat.discarded or node.peer not in gathered.parts:
            return
        seat.sums[key] = digest
        event = Reduced(command.stage, *key, digest, norm_of(digest), gathered.seconds, command.sum_number)
        self._world.handle(node, event)


def _stage_of(job: Compute | Apply) -> int:
    return job.work.stage if isinstance(job, Compute) else job.stage
