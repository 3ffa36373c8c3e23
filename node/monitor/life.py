"""A monitor's life: enters the run's directory as a quiet visitor with a key of its own, and serves what it sees."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from node.clock import SystemClock
from node.monitor.metrics import MonitorMetrics
from node.monitor.observer import Observer, probe_status
from node.monitor.server import MonitorSources, open_server
from node.page.outside import Outside
from node.ports import Lease
from node.signals import Signals
from protocol.invite import Invite

if TYPE_CHECKING:
    from node.directory import HivemindDirectory

ENTER_TIMEOUT_S = 60.0
SHOW_EVERY_S = 0.5
REDIAL_EVERY_S = 60.0
Up = Callable[[Mapping[str, int | str]], None]
"""Told pid, peer, run_id and http (HOST:PORT)."""
Draw = Callable[[Outside], None]
"""Called about twice a second with the page."""


def run_monitor(invite: Invite, host: str, port: int, up: Up, draw: Draw = lambda _: None) -> int:
    """Serve until a signal comes; the exit code. `up` is called once it serves. Raises `UnusableError` for users' faults."""
    with Signals() as signals, tempfile.TemporaryDirectory(prefix="regrow-monitor-") as folder:
        try:
            return asyncio.run(_Monitor(invite, Path(folder), signals, up, draw).run(host, port))
        except asyncio.CancelledError:
            return signals.exit_code


class _Monitor:
    def __init__(self, invite: Invite, folder: Path, signals: Signals, up: Up, draw: Draw) -> None:
        self._invite, self._folder, self._signals, self._up, self._draw = invite, folder, signals, up, draw
        self._clock = SystemClock()
        self._asked_to_go = asyncio.Event()
        self._num_stages = 0

    async def run(self, host: str, port: int) -> int:
        """See `run_monitor`."""
        from node.certificates import papers_of
        from node.directory import DirectoryConfig, HivemindDirectory
        from node.identity import load_or_create
        from node.transport.sight import Sight
        from node.transport.tls import Tls

        self._signals.watch(asyncio.get_running_loop())
        invite, identity = self._invite, load_or_create(self._folder)
        metrics = MonitorMetrics(invite.run_id)
        async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
            directory_config = DirectoryConfig(
                run_digest=invite.manifest_digest,
                identity=identity,
                runtime_dir=self._folder,
                quiet=True,
                initial_peers=invite.addresses,
                bootstrap_timeout_s=ENTER_TIMEOUT_S,
            )
            sight = Sight(Tls(papers_of(identity.key), _nobody))
            stack.push_async_callback(sight.close)
            observer = Observer(
                (invite.run_id, invite.manifest_digest), self._leases, sight, self._clock, metrics, probe_status
            )
            page = Outside(self._clock, lambda: observer.picture, lambda: observer.chronicle)
            answers = MonitorSources(metrics, observer.status, observer.targets, observer.node_text, page)
            server = open_server(host, port, answers)
            stack.callback(server.close)
            self._signals.abrupt = False
            self._observer = observer
            self._directory: HivemindDirectory = await HivemindDirectory.start(directory_config, group)
            stack.push_async_callback(self._directory.close)
            self._signals.on_leave = lambda _why: self._asked_to_go.set()
            habits = (observer.run(), server.serve(), self._redial(), self._show(page))
            tasks = [group.create_task(habit, name="monitor") for habit in habits]
            self._up({"pid": os.getpid(), "peer": identity.peer, "run_id": invite.run_id, "http": server.address})
            await self._asked_to_go.wait()
            self._signals.left = True
            for task in tasks:
                task.cancel()
        return 0

    async def _show(self, page: Outside) -> None:
        while True:
            await self._clock.sleep(SHOW_EVERY_S)
            page.tick()
            self._draw(page)

    async def _leases(self) -> list[Lease]:
        """A quiet visitor does not know the manifest: how many stages to look for, the nodes tell."""
        self._directory.num_stages = self._observer.picture.num_stages or self._directory.num_stages
        return await self._directory.leases()

    async def _redial(self) -> None:
        while True:
            await self._clock.sleep(REDIAL_EVERY_S)
            await self._directory.redial()


async def _nobody(_peer: str) -> bool:
    """Nobody calls an observer."""
    return False
