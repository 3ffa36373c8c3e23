"""The runtime: turns I/O into events for `NodeState` and its commands into I/O, through ports.

One `TaskGroup` owns every task. The same code runs in production and, on a virtual-time loop with in-memory ports, in the
simulator. A `PeerError` from a port becomes a `CommandFailed`; any other exception ends the node: it is a defect of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from node.ahead import Ahead
from node.halves import ELEMENT_BYTES, Dtype
from node.learning import Learner, Means
from node.mixing import MixedDonors, Mixer, RebuildSyllabus
from node.ports import (
    Lease,
    PeerError,
    Update,
)
from node.range_book import COPY_ELEMENTS, WEIGHT_BYTES
from node.reduce import Reducer
from node.savings import Savings
from node.shadows import Shadowing
from node.syllabus import ChainSyllabus
from node.world import Observers, Ports
from protocol.commands import (
    Apply,
    Compute,
    Connect,
    CreateSeat,
    Discard,
    DropSeat,
    DropShadow,
    Exit,
    GoOn,
    Introduce,
    KeepGradients,
    KeepShadow,
    Learn,
    MixAhead,
    Note,
    PublishLease,
    Reduce,
    Regrow,
    Release,
    Restore,
    Save,
    Say,
    SealShadow,
    SendMessage,
    SendPayload,
    StopLearning,
    StopMixing,
    StopReduce,
    Survey,
)
from protocol.events import (
    Applied,
    CommandFailed,
    ComputeDone,
    Event,
    Learned,
    LeasesSeen,
    LeaveAsked,
    MessageReceived,
    PayloadArrived,
    Reduced,
    SeatCreated,
    Tick,
)
from protocol.ids import PeerId, RecordId
from protocol.messages import Contact, Message, Order, PayloadHeader, ReduceHeader, Standing
from protocol.node_state import NodeState

TICKS_PER_HEARTBEAT = 4
MAX_RIVALS = 8
LOOK_UNSEATED_S = 1.0
TOMBSTONE_S = 2.0
log = logging.getLogger(__name__)


__all__ = ["Observers", "Ports", "Runtime"]


@dataclass(slots=True)
class Runtime:
    """Runs one node until it exits. `http` is what the lease tells of the node's HTTP address; `verify` checks an Order."""

    ports: Ports
    state: NodeState
    http: str = ""
    verify: Callable[[Order], bool] = lambda _: False
    observers: Observers = field(default_factory=Observers)
    exit: Exit | None = None
    _group: asyncio.TaskGroup | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _claim: PublishLease = field(default_factory=lambda: PublishLease((), 0, False))
    _publish: asyncio.Event = field(default_factory=asyncio.Event)
    _reducer: Reducer = field(init=False)
    _reducing: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _learning: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _learners: dict[int, Learner] = field(default_factory=dict)
    mixer: Mixer = field(init=False)
    savings: Savings = field(init=False)
    shadowing: Shadowing = field(init=False)
    _mixing: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _head: RecordId = ""
    _do: dict[type, Callable[[Any], object]] = field(default_factory=dict)
    _broken: bool = False
    _refused_at: float = -math.inf

    def __post_init__(self) -> None:
        ports, config = self.ports, self.state.config
        patience_s = config.manifest.timing.first_microbatch_s
        self._reducer = Reducer(config.member.peer, ports.transport, ports.executor, ports.pool, patience_s)
        self.shadowing = Shadowing(self.state, ports.donors, ports.clock, self.dispatch, self._note, self._spawn, ports.piece)
        self.mixer = Mixer(self.state, ports.executor, ports.donors, ports.clock, ports.piece, self.shadowing.part_of)
        self.savings = Savings(config.manifest, ports.executor, ports.store, ports.clock, self.dispatch, self._reducer.seat)
        self._do = self._table()

    async def run(self) -> Exit:
        """Run to the end. The ports stay open: who made them closes them. What a port raises, except `PeerError`, ends the
        node and comes out in an exception group."""
        ports, timing = self.ports, self.state.config.manifest.timing
        async with asyncio.TaskGroup() as group:
            self._group = group
            ports.transport.on_message(self._on_message)
            ports.transport.on_payload(self._on_payload)
            self._spawn(self._tick_forever(timing.heartbeat_s / TICKS_PER_HEARTBEAT), "tick")
            self._spawn(self._look_forever(), "look at the directory")
            self._spawn(self._publish_forever(timing.lease_s / 3), "publish the lease")
            await self._ended.wait()
            for task in self._tasks:
                task.cancel()
        assert self.exit, "the runtime ends only by an Exit"
        self.savings.close()
        await self._bury()
        self._reducer.close()
        return self.exit

    def leave(self, reason: str) -> None:
        """Ask the node to go."""
        self.dispatch(LeaveAsked(reason))

    def dispatch(self, event: Event) -> None:
        """One event through the decision object, and its commands out into the world. After a defect nothing is decided."""
        if self._broken:
            return
        self.observers.on_event(event)
        now = self.ports.clock.monotonic()
        commands = self.state.handle(event, now)
        self.observers.on_decided(event, now, commands)
        for command in commands:
            self.observers.on_command(command)
            self._do[type(command)](command)
        if self.state.chain.head != self._head:
            self._head = self.state.chain.head
            for learner in self._learners.values():
                learner.wake()
            self.mixer.wake()
            self.shadowing.wake()

    def _table(self) -> dict[type, Callable[[Any], object]]:
        ports = self.ports
        return {
            SendMessage: lambda c: ports.transport.send(c.peer, c.message),
            SendPayload: self._send_payload,
            Compute: self._compute,
            Release: lambda c: ports.pool.release(c.handle),
            CreateSeat: lambda c: self._spawn(self._create(c), f"create stage {c.stage}"),
            Learn: self._learn,
            Regrow: self._regrow,
            GoOn: lambda c: self._spawn(self._go_on(c), f"go on with stage {c.stage}"),
            Save: lambda c: self._spawn(self.savings.save(c), f"save stage {c.stage} after step {c.step}"),
            Survey: lambda c: self._spawn(self.savings.survey(c), "look what is saved"),
            Restore: self._restore,
            **dict.fromkeys((KeepShadow, SealShadow, DropShadow), self.shadowing.do),
            MixAhead: self._mix_ahead,
            StopMixing: lambda c: self._stop_mixing(c.stage),
            StopLearning: lambda c: self._stop_learning(c.stage),
            KeepGradients: lambda c: self._spawn(
                ports.executor.keep_gradients(c.stage, c.count), f"keep gradients of stage {c.stage}"
            ),
            DropSeat: self._drop,
            Reduce: self._reduce,
            StopReduce: self._stop_reduce,
            Apply: lambda c: self._spawn(self._apply(c), f"apply step {c.step} to stage {c.stage}"),
            Discard: self._discard,
            Introduce: lambda c: ports.transport.introduce(c.peer, c.address),
            Connect: lambda c: ports.transport.connect(c.peer),
            PublishLease: self._claim_again,
            Note: lambda c: ports.sink.note(c.type, c.fields),
            Say: lambda _: None,
            Exit: self._end,
        }

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        assert self._group, "tasks belong to the running group"
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._broken |= not task.cancelled() and task.exception() is not None

    # ---- from the world ----

    def _on_message(self, peer: PeerId, incarnation: int, message: Message) -> None:
        if self._ended.is_set():
            return
        order = message.order if isinstance(message, Standing) else message if isinstance(message, Order) else None
        if order and not self.verify(order):
            self._refuse(peer, "an order without the organiser's signature")
            return
        self.dispatch(MessageReceived(peer, incarnation, message))

    def _refuse(self, peer: PeerId, reason: str) -> None:
        """Anybody may send nonsense as often as he likes; the event log takes it once per lease."""
        now = self.ports.clock.monotonic()
        if now - self._refused_at >= self.state.config.manifest.timing.lease_s:
            self._refused_at = now
            self.ports.sink.note("refused", {"peer": peer, "reason": reason})

    def _on_payload(self, peer: PeerId, header: PayloadHeader, handle: int, num_bytes: int) -> None:
        if isinstance(header, ReduceHeader):
            if self._ended.is_set() or not self.state.takes_piece(peer, header):
                self.ports.pool.release(handle)
            else:
                self._reducer.deliver(peer, header, handle)
        elif self._ended.is_set():
            self.ports.pool.release(handle)
        else:
            self.dispatch(PayloadArrived(peer, header, handle, num_bytes))

    async def _tick_forever(self, seconds: float) -> None:
        clock = self.ports.clock
        while True:
            due = clock.monotonic() + seconds
            await clock.sleep(seconds)
            self.observers.on_lag(clock.monotonic() - due)
            self.dispatch(Tick(self.ports.transport.heard()))

    async def _look_forever(self) -> None:
        """Read the directory: often until this node has a seat, then as often as leases are renewed."""
        config = self.state.config
        while True:
            leases = [x for x in await self.ports.directory.leases() if not x.leaving]
            self.observers.on_leases(leases)
            others = [x for x in leases if x.peer != config.member.peer and x.address]
            heads = sorted((x for x in others if x.coordinator), key=lambda x: (x.ballot_term, x.peer), reverse=True)
            claims = tuple(Contact(x.peer, x.address) for x in heads[:MAX_RIVALS])
            first = claims[0] if claims else None
            self.dispatch(LeasesSeen(first, tuple(Contact(x.peer, x.address) for x in others), claims))
            seated = bool(self.state.bench.seats)
            await self.ports.clock.sleep(config.manifest.timing.lease_s / 3 if seated else LOOK_UNSEATED_S)

    # ---- the lease ----

    def _claim_again(self, command: PublishLease) -> None:
        self._claim = command
        self._publish.set()

    async def _publish_forever(self, seconds: float) -> None:
        while True:
            self._publish.clear()
            if not self._claim.leaving:
                await self.ports.directory.publish(self._lease())
                self.observers.on_published(self.ports.clock.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._publish.wait()

    def _lease(self) -> Lease:
        config, claim = self.state.config, self._claim
        return Lease(
            config.member.peer,
            config.member.incarnation,
            config.name,
            config.address,
            self.http,
            claim.stages,
            self.state.ballot.term,
            self.state.coordinator is not None,
            claim.leaving,
            self.ports.clock.wall() + config.manifest.timing.lease_s,
        )

    async def _bury(self) -> None:
        """The tombstone, if the directory takes it in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOMBSTONE_S):
                await self.ports.directory.publish(self._lease())

    # ---- commands with an outcome ----

    def _send_payload(self, command: SendPayload) -> None:
        self.ports.pool.hold(command.handle)
        self._spawn(self._deliver(command), f"send {command.header.kind} {command.header.route.microbatch}")

    async def _deliver(self, command: SendPayload) -> None:
        header = command.header
        stage = header.route.hops[header.hop].stage
        try:
            await self.ports.transport.send_payload(command.peer, header, command.handle)
        except PeerError as error:
            self._fail(stage, header.step, header.attempt, header.route.microbatch, error, command.peer, unsent=True)
        finally:
            self.ports.pool.release(command.handle)

    def _compute(self, command: Compute) -> None:
        payload = self.ports.pool.get(command.handle) if command.handle else None
        work = command.work

        async def run() -> None:
            try:
                result = await self.ports.executor.compute(work, payload)
            except PeerError as error:
                self._fail(work.stage, work.step, work.attempt, work.microbatch, error, command.peer)
                return
            out = result.payload
            handle = self.ports.pool.put(out) if out else 0
            num_bytes = out.data.nbytes if out else 0
            self.dispatch(ComputeDone(work, handle, num_bytes, result.loss_sum, result.tokens, result.seconds))

        self._spawn(run(), f"{work.op} {work.microbatch} of stage {work.stage}")

    def _fail(
        self, stage: int, step: int, attempt: int, microbatch: int, error: PeerError, peer: PeerId, unsent: bool = False
    ) -> None:
        self.observers.on_fault(error)
        self.dispatch(CommandFailed(stage, step, attempt, microbatch, error.peer or peer, error.reason, unsent))

    async def _create(self, command: CreateSeat) -> None:
        info = await self.ports.executor.create(command.stage)
        self._reducer.seat(command.stage, info.num_elements)
        self.dispatch(SeatCreated(command.stage, info.digest, info.state_bytes))

    def _learn(self, command: Learn) -> None:
        self._stop_learning(command.stage)
        self._learning[command.stage] = self._spawn(self._study(command.stage), f"learn stage {command.stage}")

    async def _study(self, stage: int) -> None:
        means = Means(self.ports.donors, self.ports.executor, ChainSyllabus(self.state), self.ports.clock)
        await self._fill(stage, means)

    async def _go_on(self, c: GoOn) -> None:
        """Nothing moves: the state is here."""
        facts = (c.stage, c.state_id, c.step, c.digest, c.optimizer_age, c.lr_factor, c.generation)
        self.dispatch(Learned(*facts, donors=(), num_bytes=0, seconds=0.0))

    def _regrow(self, command: Regrow) -> None:
        self._stop_learning(command.stage)
        self._learning[command.stage] = self._spawn(self._make(command), f"rebuild stage {command.stage}")

    async def _make(self, command: Regrow) -> None:
        """Make a lost stage of its neighbours' weights, a copy whose donors mix; or of what its keeper has; or of nobody's."""
        shadow = command.shadow
        if not command.sources and shadow is None:
            await self._draw(command)
            return
        ports, stage, state_id = self.ports, command.stage, command.state_id
        vectors = self.shadowing.vectors if shadow else self.mixer.vectors
        dtype: Dtype = self.state.config.manifest.recovery.shadow_dtype if shadow else "fp32"
        donors = MixedDonors(ports.donors, self.mixer, self.state.config.member.peer, state_id, vectors, dtype)
        keeper, digest = (shadow.keeper.peer, shadow.digest) if shadow else ("", "")
        range_elements = ports.piece(stage, COPY_ELEMENTS)
        syllabus = RebuildSyllabus(self.state, stage, state_id, command.sources, range_elements, keeper)
        state_bytes, sent_bytes = WEIGHT_BYTES * vectors, ELEMENT_BYTES[dtype] * vectors
        means = Means(donors, ports.executor, syllabus, ports.clock, True, state_bytes, syllabus.rank, digest, sent_bytes)
        await self._fill(stage, means)

    async def _draw(self, c: Regrow) -> None:
        info = await self.ports.executor.create(c.stage, c.generation)
        self._reducer.seat(c.stage, info.num_elements)
        facts = (c.stage, c.state_id, c.step, info.digest, info.optimizer_age, c.lr_factor, c.generation)
        self.dispatch(Learned(*facts, donors=(), num_bytes=0, seconds=0.0))

    def _restore(self, command: Restore) -> None:
        self._stop_learning(command.stage)
        self._learning[command.stage] = self._spawn(self.savings.restore(command), f"restore stage {command.stage}")

    def _mix_ahead(self, command: MixAhead) -> None:
        task = self._mixing.pop(command.stage, None)
        if task:
            task.cancel()
        self._mixing[command.stage] = self._spawn(self._average(command), f"mix stage {command.stage} ahead")

    async def _average(self, command: MixAhead) -> None:
        ahead, began = self.mixer.begin(command), self.ports.clock.monotonic()
        async with asyncio.TaskGroup() as both:
            both.create_task(ahead.run(), name=f"average stage {command.stage}")
            await ahead.whole.wait()
            if ahead.num_fetched:
                self._note_averaged(command, ahead, self.ports.clock.monotonic() - began)

    def _note_averaged(self, command: MixAhead, ahead: Ahead, seconds: float) -> None:
        shares = {"part": command.part, "parts": command.parts, "bytes": sum(x.num_bytes for x in ahead.ready.values())}
        self._note("averaged", {"stage": command.stage, "step": self.state.chain.step, "average_s": seconds} | shares)

    def _note(self, type_: str, fields: dict[str, Any]) -> None:
        self.observers.on_command(Note(type_, fields))
        self.ports.sink.note(type_, fields)

    def _stop_mixing(self, stage: int) -> None:
        self._mixing.pop(stage).cancel()
        self.mixer.stop(stage)

    async def _fill(self, stage: int, means: Means) -> None:
        """Donors are dialled while memory is taken: the executor does one thing after another, so the seat is there before
        anything is put in its place."""
        num_elements = sum(math.prod(shape) for _, shape in self.ports.executor.parameters(stage))
        heartbeat_s = self.state.config.manifest.timing.heartbeat_s
        range_elements = self.ports.piece(stage, COPY_ELEMENTS)
        learner = Learner(stage, num_elements, means, heartbeat_s, self.dispatch, self._on_bad_donor, range_elements)
        self._learners[stage] = learner
        async with asyncio.TaskGroup() as both:
            both.create_task(self._blank(stage), name=f"blank seat of stage {stage}")
            both.create_task(learner.run(), name=f"fill stage {stage}")

    async def _blank(self, stage: int) -> None:
        info = await self.ports.executor.blank(stage)
        self._reducer.seat(stage, info.num_elements)

    def _on_bad_donor(self, error: PeerError) -> None:
        self.observers.on_fault(error)
        log.warning("catching up: %s", error)
        self._refuse(error.peer, error.reason)

    def _stop_learning(self, stage: int) -> None:
        self._learners.pop(stage, None)
        task = self._learning.pop(stage, None)
        if task:
            task.cancel()

    def _drop(self, command: DropSeat) -> None:
        self._stop_learning(command.stage)
        self._reducer.seat(command.stage, 0)
        self._spawn(self.ports.executor.drop(command.stage), f"drop stage {command.stage}")

    def _reduce(self, command: Reduce) -> None:
        self._reducing[command.stage] = self._spawn(self._sum(command), f"reduce stage {command.stage}")

    async def _sum(self, command: Reduce) -> None:
        began = self.ports.clock.monotonic()
        try:
            digest, norm, unsent = await self._reducer.run(command)
        except PeerError as error:
            self._fail_sum(command, error)
            return
        seconds, where = self.ports.clock.monotonic() - began, (command.stage, command.step, command.attempt)
        self.dispatch(Reduced(*where, digest, norm, seconds, command.sum_number))
        for missed in unsent:
            self._fail_sum(command, missed, unsent=True)

    def _fail_sum(self, command: Reduce, error: PeerError, unsent: bool = False) -> None:
        self.observers.on_fault(error)
        where = command.stage, command.step, command.attempt, -1
        self.dispatch(CommandFailed(*where, error.peer, error.reason, unsent, command.sum_number))

    def _stop_reduce(self, command: StopReduce) -> None:
        reducing = self._reducing.pop(command.stage, None)
        if reducing:
            reducing.cancel()
        self._reducer.begin_anew(command)
        self._spawn(self.ports.executor.forget_sum(command.stage), f"sum of stage {command.stage} begins anew")

    async def _apply(self, command: Apply) -> None:
        began = self.ports.clock.monotonic()
        info = await self.ports.executor.apply(command.stage, Update(command.gradient_scale, command.learning_rate))
        seconds = self.ports.clock.monotonic() - began
        self._reducer.discard(command.stage, command.step, command.attempt)
        self.dispatch(Applied(command.stage, command.step, command.state_id, info.digest, info.optimizer_age, seconds))

    def _discard(self, command: Discard) -> None:
        reducing = self._reducing.pop(command.stage, None)
        if reducing:
            reducing.cancel()
        self._reducer.discard(command.stage, command.step, command.attempt)
        self._spawn(self.ports.executor.discard(command.stage, command.step, command.attempt), f"discard step {command.step}")

    def _end(self, command: Exit) -> None:
        self.exit = command
        self._ended.set()
