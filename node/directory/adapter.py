"""The directory over hivemind's `DHTNode`, in this process and on this event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from node.directory.config import DirectoryConfig, checked_announce, checked_listen
from node.directory.daemon import CANNOT_REACH, Daemon, DaemonConfig
from node.directory.entrance import Entrance
from node.directory.library import DHTID, Belongings, attach, create_node, end, owning, p2pd_path
from node.directory.validator import LeaseValidator, peer_of
from node.leases import all_keys, following, from_record, keys_of, newest, to_record
from node.ports import Lease, UnusableError
from protocol.addresses import multiaddress, parse_multiaddress

MAX_REMEMBERED = 64
MAX_REDIALLED = 16
"""In one round, the others in the next: one that does not answer takes seconds."""
MAX_KNOWN_TRIED = 4
"""Of the peers of an earlier life, before the directory is entered: a dead one may take seconds."""
MAX_DEATHS = 4
DEATH_WINDOW_S = 60.0
RESTART_PAUSE_S = 0.2
_log = logging.getLogger(__name__)


class HivemindDirectory:
    """See `node.ports.Directory`. Counts: `failed_stores`, `failed_gets`, `malformed`, `daemon_deaths`.

    `num_stages` may be set once the manifest is known; `leases` then searches that many keys.

    The only task that outlives a call is the restart of a dead p2pd; it belongs to the `tasks` given to `start`, and an
    `UnusableError(3)` that ends it means that p2pd cannot be kept alive.
    """

    def __init__(self, config: DirectoryConfig, tasks: asyncio.TaskGroup) -> None:
        self.peer = config.identity.peer
        self.failed_stores = 0
        self.failed_gets = 0
        self.daemon_deaths = 0
        self.num_stages = config.num_stages
        self._config = config
        self._tasks = tasks
        self._listen = checked_listen(config.listen)
        self._announce = tuple(checked_announce(address) for address in config.announce)
        if config.announce_host:
            self._announce = (parse_multiaddress(multiaddress(config.announce_host, 0)),)
        self._quiet = config.quiet
        self._initial_ids = {text.rpartition("/")[2].strip() for text in config.initial_peers}
        self._validator = LeaseValidator(config.run_digest, config.identity.key, config.wall)
        self._entrance = Entrance(self.peer, config.wall, config.bootstrap_timeout_s, config.call_timeout_s)
        self._node_id = DHTID.generate()
        self._theirs = Belongings()
        self._node: Any = None
        self._p2p: Any = None
        self._daemon: Daemon | None = None
        self._up = asyncio.Event()
        self._restart_task: asyncio.Task[None] | None = None
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._failure = ""
        self._closed = False
        self._visible: list[str] = []
        self._remembered: dict[str, str] = {}
        self._last: Lease | None = None
        self._num_redialled = self._num_compared = 0
        self._known: dict[str, list[Lease]] = {}

    @classmethod
    async def start(cls, config: DirectoryConfig, tasks: asyncio.TaskGroup) -> HivemindDirectory:
        """Starts p2pd and enters the directory.

        Raises `UnusableError`: 2 for wrong addresses or a port in use; 3 if p2pd does not start, no initial peer lets us in
        within `bootstrap_timeout_s`, or this machine's clock is more than 3 s off. Nothing is left behind then.
        """
        directory = cls(config, tasks)
        try:
            await directory._bring_up()
            with owning(directory._theirs):
                await directory._enter()
            await directory._remember()
            if directory._daemon is None or not directory._daemon.alive:
                raise UnusableError(CANNOT_REACH, "p2pd, the network process of the directory, died: start again")
        except BaseException:
            await directory.close()
            raise
        directory._up.set()
        return directory

    @property
    def malformed(self) -> int:
        """Records of others that were refused or left out."""
        return self._validator.malformed

    @property
    def daemon_pid(self) -> int | None:
        """Process id of p2pd, None while there is none."""
        return self._daemon.pid if self._daemon is not None and self._daemon.alive else None

    def addresses(self) -> list[str]:
        """See `node.ports.Directory`."""
        return list(self._visible)

    @property
    def is_quiet(self) -> bool:
        """Nobody is told where to dial it; see `announce`."""
        return self._quiet

    def remembered(self) -> list[str]:
        """As `redial` returns, without dialling."""
        return list(reversed(self._remembered.values()))

    @property
    def port(self) -> int:
        """TCP port that it listens on, or will."""
        return self._listen.port

    async def announce(self, address: str) -> None:
        """From now on others are told to dial this directory at `address`: a multiaddress, or a host, with the port that it
        listens on. p2pd is started anew for that. Raises `UnusableError` where it cannot."""
        if self._restart_task is not None:
            await asyncio.wait([self._restart_task])
        told = address if address.startswith("/") else multiaddress(address, self._listen.port)
        self._announce, self._quiet = (checked_announce(told),), False
        self._up.clear()
        await self._tear_down()
        try:
            await self._bring_up()
            await self._while_alive(self._entrance.redial(self._node, self._targets()))
        except EOFError:
            raise UnusableError(CANNOT_REACH, "p2pd, the network process of the directory, died: start again") from None
        self._up.set()
        if self._last is not None and self._last.expires > self._config.wall():
            await self.publish(self._last)

    async def publish(self, lease: Lease) -> None:
        """See `node.ports.Directory`. Raises `ValueError` for a lease that its readers would refuse."""
        assert lease.peer == self.peer, "a directory publishes its own peer's leases"
        dht = self._visible[0].rpartition("/p2p/")[0] if self._visible else ""
        shown = replace(lease, ticket=self._config.ticket, dht=dht)
        self._last = following(shown, self._last.expires if self._last else None)
        await self._store(self._last)

    async def leases(self) -> list[Lease]:
        """See `node.ports.Directory`. Keys whose search fails keep what they showed last."""
        keys = all_keys(self._config.run_digest, self.num_stages)
        found = await self._search(keys)
        now = self._config.wall()
        for key, records in found.items():
            self._known[key] = list(self._readable(records, now))
        missing = len(keys) - len(found)
        if missing:
            self.failed_gets += missing
            _log.warning("%d of %d directory keys could not be read", missing, len(keys))
        found_now = newest((lease for key in keys for lease in self._known.get(key, ())), now)
        leases = self._config.on_leases(found_now)
        for lease in leases:
            if lease.dht and not lease.leaving and lease.peer != self.peer:
                self._keep(lease.peer, f"{lease.dht}/p2p/{lease.peer}")
        return leases

    async def redial(self) -> list[str]:
        """Connect again to the initial and remembered peers that are not connected (once a minute, so that split halves
        meet). Returns addresses of peers that were there, newest first, worth keeping for the next start."""
        if self._up.is_set():
            connected = await self._remember()
            missing = [text for text in self._targets() if text.rpartition("/")[2].strip() not in connected]
            with owning(self._theirs):
                await self._entrance.redial(self._node, self._turn(missing))
                if connected:
                    self._num_compared += 1
                    other = sorted(connected)[self._num_compared % len(connected)]
                    await self._entrance.compare_clocks(self._node, other)
        return self.remembered()

    @property
    def clock_offset_s(self) -> float | None:
        """This machine's clock minus that of a peer, when they were last compared: on entering and with each `redial`."""
        return self._entrance.clock_offset_s

    async def close(self) -> None:
        """See `node.ports.Directory`."""
        self._closed = True
        self._up.clear()
        if self._restart_task is not None:
            self._restart_task.cancel()
            await asyncio.wait([self._restart_task])
        await self._tear_down()

    async def _enter(self) -> None:
        """By an initial peer, or one of an earlier life; without initial peers nobody has to be there."""
        known, initial = self._config.known_peers[:MAX_KNOWN_TRIED], self._config.initial_peers
        if not initial:
            await self._entrance.redial(self._node, known)
            return
        both = [text for pair in zip_longest(initial, known) for text in pair if text is not None]
        await self._entrance.enter(self._node, list(dict.fromkeys(both)))

    def _targets(self) -> list[str]:
        """Whom to dial, each once: who was there last comes first."""
        now = [*self._config.initial_peers, *self.remembered()]
        old = [text for text in self._config.known_peers if text.rpartition("/")[2] not in self._remembered]
        return list(dict.fromkeys([*now, *old]))[:MAX_REMEMBERED]

    def _turn(self, missing: list[str]) -> list[str]:
        """Those of the missing peers that are dialled in this round."""
        at = self._num_redialled % max(len(missing), 1)
        turn = [*missing[at:], *missing[:at]][:MAX_REDIALLED]
        self._num_redialled += len(turn)
        return turn

    # ---- records

    async def _store(self, lease: Lease) -> None:
        record, keys = to_record(lease), keys_of(self._config.run_digest, lease)
        taken: dict[Any, bool] = {}
        try:
            async with asyncio.timeout(self._config.call_timeout_s):
                await self._up.wait()
                with owning(self._theirs):
                    taken = await self._node.store_many(
                        keys, [record] * len(keys), lease.expires, subkeys=[self._validator.subkey] * len(keys)
                    )
        except TimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - the library's bugs must not end a node: the directory is a hint
            _log.debug("store: %r", error)
        failed = len(keys) - sum(taken.values())
        if failed:
            self.failed_stores += failed
            _log.warning("the lease could not be stored under %d of %d directory keys", failed, len(keys))

    async def _search(self, keys: list[str]) -> dict[str, Any]:
        """Raw contents of the keys whose search ended in time.

        No expiry is sufficient (nan compares false), so that no peer can end a search early by claiming a great one.
        """
        futures: dict[str, asyncio.Future[Any]] = {}
        try:
            async with asyncio.timeout(self._config.call_timeout_s):
                await self._up.wait()
                with owning(self._theirs):
                    futures = await self._node.get_many(keys, sufficient_expiration_time=math.nan, return_futures=True)
                await asyncio.wait(futures.values())
        except TimeoutError:
            pass
        finally:
            for future in futures.values():
                future.cancel()
        return {key: future.result() for key, future in futures.items() if _is_good(future)}

    def _readable(self, found: Any, now: float) -> Iterable[Lease]:
        for subkey, (record, expires) in found.value.items() if found is not None else ():
            try:
                yield from_record(record, peer_of(subkey), expires, now)
            except ValueError:
                self._validator.malformed += 1

    # ---- p2pd and the node on it

    async def _bring_up(self) -> None:
        config = DaemonConfig(
            binary=p2pd_path(),
            identity=self._config.identity.path,
            listen=self._listen,
            announce=self._announce,
            socket_dir=self._config.runtime_dir,
            start_timeout_s=self._config.start_timeout_s,
            quiet=self._quiet,
        )
        self._daemon = await Daemon.start(config, self._on_death)
        self._listen = self._daemon.listen  # a restarted p2pd must be found where this one was
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                await self._while_alive(self._attach())
        except (OSError, EOFError, TimeoutError) as error:
            raise UnusableError(CANNOT_REACH, f"p2pd, the network process of the directory, broke: {error}") from None

    async def _while_alive(self, action: Coroutine[Any, Any, object]) -> None:
        """Await what needs the daemon. `EOFError` as soon as it dies: hivemind itself would go on waiting for its answer."""
        assert self._daemon is not None, "the daemon is started first"
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._daemon.death(), name="death of p2pd")
                with owning(self._theirs):
                    await action
                watch.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _attach(self) -> None:
        assert self._daemon is not None, "the daemon is started first"
        old = self._node
        self._p2p = await attach(self._daemon.socket)
        await self._p2p._ping_daemon()
        assert str(self._p2p.peer_id) == self.peer, "p2pd has the identity that it was given"
        self._node = await create_node(self._p2p, self._validator, self._node_id)
        if old is not None:  # what others stored with us survives p2pd
            self._node.protocol.storage = old.protocol.storage
        self._visible = [] if self._quiet else [str(address) for address in await self._p2p.get_visible_maddrs()]
        if not self._announce:
            away = [text for text in self._visible if not text.startswith(("/ip4/127.", "/ip6/::1/"))]
            self._visible = away or self._visible

    async def _tear_down(self) -> None:
        # p2pd first: it would end by itself once its client is gone, and its exit status could be reaped twice.
        if self._daemon is not None:
            await self._daemon.stop()
        if self._node is not None:
            self._node.is_alive = False
        if self._p2p is not None:
            await self._p2p.shutdown()
        await end(self._theirs)

    async def _remember(self) -> set[str]:
        """Peers that are connected now. Where those are reached who dialled us, no connection tells, but their leases."""
        try:
            async with asyncio.timeout(self._config.call_timeout_s):
                infos = await self._p2p.list_peers()
        except (OSError, EOFError, TimeoutError):
            return set()
        for info in infos:
            for address in info.addrs[:1]:
                if str(info.peer_id) in self._initial_ids - self._remembered.keys():
                    self._keep(str(info.peer_id), f"{address}/p2p/{info.peer_id}")
        return {str(info.peer_id) for info in infos}

    def _keep(self, peer: str, address: str) -> None:
        self._remembered.pop(peer, None)
        self._remembered[peer] = address
        while len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _on_death(self, last_line: str) -> None:
        if self._closed:
            return
        self.daemon_deaths += 1
        self._failure = last_line
        reason = f"p2pd died ({last_line or 'it said nothing'})"
        _log.warning("%s; restarting it", reason)
        if self._config.on_daemon_death is not None:
            self._config.on_daemon_death(reason)
        if self._up.is_set():
            self._up.clear()
            restart = self._restart()
            try:
                self._restart_task = self._tasks.create_task(restart, name="restart p2pd")
            except RuntimeError:  # the node is on its way out
                restart.close()

    async def _restart(self) -> None:
        while not await self._restarted():  # noqa: ASYNC110 - a pause, so that a sick machine is not kept busy
            await asyncio.sleep(RESTART_PAUSE_S)
        self._up.set()
        if self._last is not None and self._last.expires > self._config.wall():
            await self.publish(self._last)

    async def _restarted(self) -> bool:
        """Whether p2pd is back. Raises `UnusableError(3)` when it has died or failed too often of late."""
        self._deaths.append(time.monotonic())
        if len(self._deaths) == MAX_DEATHS and self._deaths[-1] - self._deaths[0] < DEATH_WINDOW_S:
            why = self._failure or "it said nothing"
            raise UnusableError(
                CANNOT_REACH,
                f"p2pd, the network process of the directory, died {MAX_DEATHS} times within {DEATH_WINDOW_S:g} s ({why}): "
                "look for what kills it (memory?) and start again",
            )
        await self._tear_down()
        try:
            await self._bring_up()
            await self._while_alive(self._entrance.redial(self._node, self._targets()))
        except (UnusableError, EOFError) as error:
            self._failure = str(error)
            return False
        return self._daemon is not None and self._daemon.alive


def _is_good(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
