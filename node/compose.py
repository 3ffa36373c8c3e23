"""How a node is put together: the one place that knows all adapters. `run_node` is a node's whole life.

Order: state directory, manifest or invite, sockets (so that a port in use is told at once), directory, manifest from a peer,
data, executor, decisions. Closing goes the other way round, each part within a bound. All streams are mutual TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from node.admission import judge_of, shown, shown_by_founder
from node.checkpoints.places import open_place
from node.checkpoints.store import CheckpointStore
from node.clock import SystemClock
from node.config import NodeSettings
from node.contribution import Contribution, Keeper
from node.data.files import BlobFiles
from node.data.lazy import LazyTokens
from node.data.remote import only_by_path
from node.desk import Desk
from node.dry_run import look
from node.event_log import EventLog
from node.facts import MachineWatch
from node.identity import StateLock, load_or_create, next_incarnation
from node.keys import OrganiserKey
from node.limits import Limits, parse_size
from node.log_lines import JsonLog, set_logging, write_line
from node.machine import free_disk
from node.manifest_file import load
from node.network import Home, Network, Opening, Run, bounded, settle
from node.newcomer import Newcomer
from node.past import Past
from node.payloads import HandlePool
from node.ports import Lease, UnusableError
from node.proofs import Proofs
from node.recording import Recording
from node.reduce import PIECE_ELEMENTS
from node.running import FILE_NAME as RUNNING_FILE
from node.running import Running
from node.runtime import Observers, Ports, Runtime
from node.screen import TICK_S, Introduction, Screen
from node.serving import Shelf
from node.shards import ShardBringer
from node.signals import Signals
from node.state_store import DirectoryStore
from protocol.commands import Command, Note
from protocol.events import Event
from protocol.forecast import Machine
from protocol.ids import Member
from protocol.invite import Invite, parse
from protocol.manifest import Manifest, from_mapping
from protocol.node_state import NodeConfig, NodeState

if TYPE_CHECKING:
    from node.directory import HivemindDirectory
    from node.transport.fetch import Asker

ORGANISER_FILE = "organiser.key"
NO_OWNER = (
    "note: the training data are only on this machine: whoever comes to hold stage 0 fetches them from here; keep this node up"
    " until others hold copies, or give URLs under data.train[].sources"
)
NO_COPY = (
    "note: recovery.embedding_copies is 0: when the last node of stage 0 is lost the run is over, and its nodes end with exit"
    " code 5; 2 keeps copies of stage 0 on two other nodes"
)
REMEMBER_S, REDIAL_EVERY = 5.0, 12
"""Once a minute peers are dialled again."""
KEEP_TOTALS_TICKS = 60
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the run's description comes from: a manifest file (its organiser starts it) or an invite."""

    manifest_file: Path | None = None
    invite: str = ""
    dry_run: bool = False
    """Only tell what joining would mean."""
    defaults: frozenset[str] = frozenset()
    """Settings that nobody set: their ports may give way."""


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handler of the event loop. A connection is dropped as soon as the peer's certificate is seen; if the peer says more just
    then, uvloop answers on the dropped one and calls it fatal: nothing that people should read a traceback for."""
    if context.get("message") == "Fatal error on SSL protocol":
        log.debug("a handshake was dropped: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)


def run_node(settings: NodeSettings, source: Source) -> int:
    """Run a node until it leaves; returns the exit code. Raises `UnusableError` for what its user must change."""
    with Signals() as signals, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(on_loop_error)
        node = _Node(settings, source, signals)
        try:
            return runner.run(node.run())
        except asyncio.CancelledError:
            return signals.exit_code
        except BaseExceptionGroup as group:
            raise _usable(group) from None


def _usable(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The `UnusableError` in the group, or else the group: a defect of ours shows its traceback."""
    error: BaseException | None = group.subgroup(UnusableError)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or group


class _Node:
    def __init__(self, settings: NodeSettings, source: Source, signals: Signals) -> None:
        self._settings, self._source, self._signals = settings, source, signals
        self._clock = SystemClock()
        log = JsonLog(self._clock, write_line) if settings.log_json else None
        self._screen = Screen(self._clock, as_json=settings.json, log=log)
        self._pool = HandlePool()
        self._limits = Limits(self._clock, settings.max_upload_mbit, settings.max_gb)
        file = source.manifest_file
        self._blobs = BlobFiles(settings.state_dir / "data", [file.parent, Path()] if file else [Path()])
        self._shelf = Shelf(self._blobs)
        self._desk = Desk(self._clock, self._shelf)
        self._refused: asyncio.Future[None] | None = None
        self._helpers: list[asyncio.Task[None]] = []
        self._needs_data = asyncio.Event()

    async def run(self) -> int:
        """From the state directory to the last closed socket."""
        self._signals.watch(asyncio.get_running_loop())
        set_logging(self._screen.log_handler(getattr(logging, self._settings.log_level.upper())))
        self._refused = asyncio.get_running_loop().create_future()
        invite = parse(self._source.invite) if self._source.invite else None
        with self._screen, StateLock.take(self._settings.state_dir):
            store = DirectoryStore.open(self._settings.state_dir)
            identity = load_or_create(self._settings.state_dir)
            home = Home(store, identity, Member(identity.peer, next_incarnation(self._settings.state_dir)))
            if self._source.dry_run:
                return await self._run(home, invite)
            keeper = Keeper(store)
            if keeper.welcome:
                self._screen.line(keeper.welcome)
            try:
                code = await self._run(home, invite, keeper)
            finally:
                altogether = keeper.keep(self._screen.contribution, self._screen.uptime_s)
            self._screen.summary(self._limits.allowance.received, self._limits.allowance.sent, altogether)
        return code

    async def _run(self, home: Home, invite: Invite | None, keeper: Keeper | None = None) -> int:
        async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
            self._spawn(group, self._tick_screen(keeper), "screen")
            try:
                return await (self._join(home, invite, group, stack) if invite else self._start(home, group, stack))
            finally:
                for task in self._helpers:
                    task.cancel()

    async def _tick_screen(self, keeper: Keeper | None) -> None:
        """What people see goes on; once a minute the totals are kept, for a node that is killed."""
        for tick in count(1):
            await self._clock.sleep(TICK_S)
            self._screen.tick()
            if keeper and tick % KEEP_TOTALS_TICKS == 0:
                keeper.keep(self._screen.contribution, self._screen.uptime_s)

    # ---- the run's description ----

    async def _start(self, home: Home, group: asyncio.TaskGroup, stack: AsyncExitStack) -> int:
        manifest, key = self._own_manifest()
        _store_of(manifest)  # what is wrong with it is told at once
        _checked_stage(self._settings.stage, manifest)
        ticket = shown_by_founder(self._settings.ticket, manifest, key, home.member.peer, self._clock.wall()).text
        tokens = LazyTokens(manifest, self._blobs)
        tokens.open()
        if not manifest.local and only_by_path(manifest.data):
            self._screen.line(NO_OWNER)
        kept = manifest.recovery.embedding_copies or manifest.copies_stages or manifest.keeps_shadows
        if manifest.recovery.rebuilds and not kept:
            self._screen.line(NO_COPY)
        past = Past(home.store, manifest.digest)
        run = Run(manifest.run_id, manifest.digest, past, ticket, (), manifest.local, founder=not past.has_begun())
        network = await self._opening().open(home, run, group, stack)
        if not run.founder:
            network = await self._come_back(home, manifest, network, group)
        return await self._live(home, manifest, network, tokens, group, stack)

    async def _come_back(self, home: Home, manifest: Manifest, network: Network, group: asyncio.TaskGroup) -> Network:
        """Whoever founded the run once joins it now, as an ordinary node, through the peers that it remembers."""
        newcomer = self._newcomer(home.member, network)
        lease = group.create_task(newcomer.show(), name="the newcomer's lease")
        run_id = manifest.run_id
        why = f"run {run_id} has begun and is not founded again (that takes a new --state-dir); waiting for one of its nodes"
        leases = await newcomer.peers(why, network.directory.redial)
        network = await settle(network, newcomer, leases, manifest.local, self._clock, self._screen.say)
        lease.cancel()
        return network

    def _own_manifest(self) -> tuple[Manifest, OrganiserKey | None]:
        """The organiser's manifest, with the organiser's key in it, and the key if it is here."""
        assert self._source.manifest_file, "only the organiser has a manifest file"
        manifest, path = load(self._source.manifest_file), self._settings.state_dir / ORGANISER_FILE
        if manifest.organiser:
            return manifest, OrganiserKey.load(path) if path.exists() else None
        key = OrganiserKey.load(path) if path.exists() else OrganiserKey.create(path)
        return from_mapping(manifest.model_dump() | {"organiser": key.public}), key

    async def _join(self, home: Home, invite: Invite, group: asyncio.TaskGroup, stack: AsyncExitStack) -> int:
        run_id, peer = invite.run_id, home.member.peer
        own = shown(self._settings.ticket, run_id, invite.organiser, peer, self._clock.wall())
        run = Run(run_id, invite.manifest_digest, Past(home.store, invite.manifest_digest), own.text, invite.addresses)
        network = await self._opening().open(home, run, group, stack)
        newcomer = self._newcomer(home.member, network, own.flaw)
        lease = group.create_task(newcomer.show(), name="the newcomer's lease")
        self._screen.say("asking for the run's manifest")
        manifest, leases = await newcomer.manifest(invite)
        if own.flaw and manifest.admission == "invited":
            raise UnusableError(4, own.flaw)
        if self._source.dry_run:
            try:
                return await self._dry_run(manifest, leases, network.asker)
            finally:
                lease.cancel()
                await newcomer.hide()
        network = await settle(network, newcomer, leases, manifest.local, self._clock, self._screen.say)
        tokens = LazyTokens(manifest, self._blobs)
        if self._settings.stage == 0:
            await self._bringer(tokens, network).bring(network.directory.leases)
            tokens.open()
        lease.cancel()
        return await self._live(home, manifest, network, tokens, group, stack)

    async def _dry_run(self, manifest: Manifest, leases: list[Lease], asker: Asker) -> int:
        """Look around, tell, and go. Raises `UnusableError(4)` where the run has no stage for this machine."""
        self._screen.say("asking the peers, and watching them for their pace")
        missing = await asyncio.to_thread(self._blobs.missing, manifest)
        machine = Machine(self._memory_bytes(), free_disk(self._settings.state_dir), not missing)
        wished = _checked_stage(self._settings.stage, manifest)
        report = await look(manifest, leases, asker, self._clock, machine, wished)
        self._screen.report(report.rows(), report.as_json())
        if report.obstacle:
            raise UnusableError(4, report.obstacle)
        return 0

    def _memory_bytes(self) -> int:
        """What the user allows, or what the device has free; 0 = not known."""
        from node.stage.memory import free_bytes

        settings = self._settings
        return parse_size(settings.memory_limit) if settings.memory_limit else free_bytes(settings.device)

    def _opening(self) -> Opening:
        return Opening(
            settings=self._settings,
            defaults=self._source.defaults,
            clock=self._clock,
            say=self._screen.say,
            pool=self._pool,
            desk=self._desk,
            library=replace(self._shelf.library(), observe=self._desk.observe),
            limits=self._limits,
            signals=self._signals,
            on_bytes=self._on_bytes,
            on_refused=self._on_refused,
        )

    def _newcomer(self, member: Member, network: Network, flaw: str = "") -> Newcomer:
        where = network.where
        http = where.http(network.http.address)
        claim = Lease(member.peer, member.incarnation, self._settings.name, where.told, http, (), 0, False, False, expires=0.0)
        return Newcomer(claim, network.directory, network.asker, self._clock, self._screen.say, flaw)

    def _on_bytes(self, kind: str, direction: str, num_bytes: int) -> None:
        self._desk.on_bytes(kind, direction, num_bytes)
        self._limits.allowance.note(direction, num_bytes)

    def _on_refused(self, peer: str, sentence: str) -> None:
        """A node that holds nothing yet and is refused has no place in the run."""
        self._screen.say(f"peer {peer[-8:]} refuses this node: {sentence}")
        if self._refused and not self._refused.done() and not self._desk.is_seated:
            self._refused.set_exception(UnusableError(4, f"peer {peer[-8:]} refuses this node: {sentence}"))

    # ---- life ----

    async def _live(
        self,
        home: Home,
        manifest: Manifest,
        network: Network,
        tokens: LazyTokens,
        group: asyncio.TaskGroup,
        stack: AsyncExitStack,
    ) -> int:
        self._screen.say("preparing the computation")
        await asyncio.to_thread(import_module, "node.stage.executor")  # takes seconds, in which the lease is renewed
        from node.stage.executor import TorchExecutor

        settings = self._settings
        executor = TorchExecutor(manifest, tokens, settings.device, settings.threads)
        stack.push_async_callback(bounded, executor.close, "the computation")
        sink = EventLog.open(settings.state_dir / "events.jsonl", self._clock, self._screen.say)
        stack.callback(sink.close)
        stage = _checked_stage(settings.stage, manifest)
        past, where = Past(home.store, manifest.digest), network.where
        founder = self._source.manifest_file is not None and not past.has_begun()
        config = NodeConfig(manifest, home.member, settings.name, where.told, founder, stage, self._memory_bytes())
        state = NodeState(config)
        store, donors = _store_of(manifest), network.donors
        ports = Ports(self._clock, network.directory, network.transport, executor, self._pool, sink, donors, store)
        proofs = Proofs.open(settings.state_dir / f"counted-{manifest.digest[:16]}.jsonl", manifest.run_id, home.member.peer)
        stack.callback(proofs.close)
        self._desk.proofs = proofs
        observers = self._observers(tokens, past, state)
        if settings.record:
            recording = stack.enter_context(Recording(settings.state_dir, config, self._screen.say))
            observers = replace(observers, on_decided=recording.note)
        runtime = Runtime(ports, state, where.http(network.http.address), self._desk.verify, observers)
        network.transport.announce(where.told)
        chunk_bytes = self._limits.chunk_bytes(manifest.wire.chunk_bytes)
        network.transport.tune(chunk_bytes=chunk_bytes, max_payload_bytes=_max_payload_bytes(manifest))
        network.directory.num_stages = manifest.num_stages
        network.guests.judge_by(judge_of(manifest, self._clock))
        self._shelf.fill(state, executor, runtime.mixer)
        self._desk.open(state, runtime, network.directory, network.transport)
        self._watch_machine(network.directory)
        for server in network.http, *network.published:
            self._spawn(group, server.serve(), "http")
        self._spawn(group, self._raise_refusal(), "refusals")
        self._spawn(group, self._redial(network.directory, past), "redial")
        self._spawn(group, self._bring_data(tokens, network), "token shards")
        self._spawn(group, self._leave_when_spent(runtime), "allowance")
        self._announce(home, state, network)
        self._screen.say("listening for the run")
        self._signals.on_leave = runtime.leave
        end = await runtime.run()
        self._signals.left = not end.code
        self._screen.say(end.sentence)
        if end.code:
            raise UnusableError(end.code, end.sentence)
        return end.code

    def _watch_machine(self, directory: HivemindDirectory) -> None:
        from node.stage.memory import gpu_memory

        self._desk.machine = MachineWatch(self._settings.state_dir, gpu_memory(self._settings.device))
        self._desk.upload_limit = self._limits.upload_bytes_per_s
        self._desk.clock_offset = lambda: directory.clock_offset_s

    def _observers(self, tokens: LazyTokens, past: Past, state: NodeState) -> Observers:
        metrics = self._desk.metrics

        def on_command(command: Command) -> None:
            metrics.observe_command(command)
            self._desk.page.observe_command(command)
            self._screen.observe_command(command)
            if isinstance(command, Note) and self._desk.proofs:
                self._desk.proofs.observe(command.type, command.fields)
            if isinstance(command, Note) and command.type == "granted":
                stage = command.fields["stage"]
                self._screen.granted(stage, len({s.member for s in state.chain.seated(stage)} - {state.config.member}))
                if stage == 0:
                    tokens.expect()
                    self._needs_data.set()
            if isinstance(command, Note) and command.type == "decided":
                past.note_begun()

        def on_lag(seconds: float) -> None:
            metrics.loop_lag(seconds)
            metrics.payload_bytes(self._pool.num_bytes, self._pool.peak_bytes)
            self._desk.measure()
            self._signals.allow(state.departure.seconds_left(self._clock.monotonic()))

        def on_event(event: Event) -> None:
            metrics.observe_event(event)
            self._desk.page.observe_event(event)
            self._shelf.observe(event)
            self._screen.observe_event(event)

        leases = self._desk.page.observe_leases
        return Observers(on_event, on_command, on_lag, self._desk.on_published, metrics.observe_fault, leases)

    def _announce(self, home: Home, state: NodeState, network: Network) -> None:
        from node.stage.memory import describe

        settings, manifest = self._settings, state.config.manifest
        stages = () if settings.stage is None else (settings.stage,)
        why = "asked for" if stages else "the swarm decides"
        device = describe(settings.device, settings.threads)
        who = Introduction(manifest.run_id, settings.name, home.member.peer, device, stages, why, manifest.local)
        self._screen.contribution = self._desk.contribution = Contribution(manifest, home.member.peer)
        self._screen.introduce(who, manifest.last_step)
        running = Running(
            pid=os.getpid(),
            peer=home.member.peer,
            invite=self._desk.invite(),
            grpc=state.config.address,
            http=network.http.address,
            state_dir=str(settings.state_dir.absolute()),
        )
        home.store.write(RUNNING_FILE, running.line().encode())
        self._screen.up(running)

    # ---- tasks beside the runtime ----

    def _spawn(self, group: asyncio.TaskGroup, work: Awaitable[None], name: str) -> None:
        async def run() -> None:
            await work

        self._helpers.append(group.create_task(run(), name=name))

    async def _raise_refusal(self) -> None:
        assert self._refused, "made at the start"
        await self._refused

    async def _leave_when_spent(self, runtime: Runtime) -> None:
        runtime.leave(await self._limits.spent())

    async def _bring_data(self, tokens: LazyTokens, network: Network) -> None:
        """Whoever holds stage 0, or may have to, gets the data from peers where no path of the manifest has them."""
        await self._needs_data.wait()
        await self._bringer(tokens, network).bring(network.directory.leases)

    def _bringer(self, tokens: LazyTokens, network: Network) -> ShardBringer:
        return ShardBringer(tokens, network.asker, self._clock, self._screen)

    async def _redial(self, directory: HivemindDirectory, past: Past) -> None:
        """Split halves of the directory meet again by this, and the next start finds the run by what is remembered."""
        for round_ in count(1):
            await self._clock.sleep(REMEMBER_S)
            if round_ % REDIAL_EVERY == 0:
                await directory.redial()
            past.remember(directory.remembered())


def _checked_stage(stage: int | None, manifest: Manifest) -> int:
    if stage is None:
        return -1
    if stage > manifest.num_block_stages:
        raise UnusableError(2, f"--stage {stage}: the run has stages 0 to {manifest.num_block_stages}; name one of them")
    return stage


def _store_of(manifest: Manifest) -> CheckpointStore | None:
    """Where stages are saved, if they are."""
    if manifest.recovery.policy != "checkpoint":
        return None
    try:
        return CheckpointStore(open_place(manifest.recovery.checkpoint_store, manifest.run_id), manifest.run_id)
    except ValueError as error:
        raise UnusableError(2, f"recovery.checkpoint_store: {error}") from None


def _max_payload_bytes(manifest: Manifest) -> int:
    """The largest payload of the run in f32: an activation, or a piece of a gradient."""
    activation = manifest.batch.microbatch_samples * manifest.batch.context_tokens * manifest.model.hidden_size
    return 4 * max(activation, PIECE_ELEMENTS)
