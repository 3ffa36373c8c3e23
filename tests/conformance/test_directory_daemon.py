"""What only the real directory has: p2pd, bootstraps, clocks, ports. All of it on loopback."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from node.leases import stage_key
from node.ports import UnusableError
from tests.conformance.directory_worlds import RUN_DIGEST, RealSwarm, lease

PEER = "QmZ5y8Tb1L6cZKhHcxxJwzjnWFe6GGq9V4gkm7pBRNiVbG"
LIFE_S = 30.0


@pytest.fixture
async def swarm(tmp_path: Path, no_orphans: str) -> AsyncIterator[RealSwarm]:
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        yield RealSwarm(tmp_path, tasks, stack)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{PEER}"


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def dead() -> str:
    return f"/ip4/127.0.0.1/tcp/{unused_port()}/p2p/{PEER}"


def daemons() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - processes tell nobody
        await asyncio.sleep(0.01)


async def refused(swarm: RealSwarm, **settings: Any) -> UnusableError:
    """Why the node did not start; it left nothing behind."""
    before, tasks = daemons(), asyncio.all_tasks()
    with pytest.raises(UnusableError) as caught:
        await swarm.start("late", **settings)
    assert "\n" not in str(caught.value)
    assert daemons() == before
    assert asyncio.all_tasks() == tasks
    assert not list((swarm.folder / "late").glob("*.sock"))
    return caught.value


async def test_p2pd_has_our_identity_and_listens_on_loopback_only(swarm: RealSwarm) -> None:
    a = await swarm.join("a")
    process = psutil.Process(a.daemon_pid)  # type: ignore[attr-defined]
    assert {connection.laddr.ip for connection in process.net_connections("inet")} == {"127.0.0.1"}
    assert a.addresses()[0].endswith(a.peer), "the peer id computed from the key file is p2pd's"
    assert os.getsid(process.pid) != os.getsid(0), "a Ctrl-C on our terminal does not reach it"


async def test_one_good_bootstrap_among_bad_ones(swarm: RealSwarm, silent: str, caplog: pytest.LogCaptureFixture) -> None:
    a = await swarm.join("a")
    good = a.addresses()[0]
    mistaken = good.rpartition("/")[0] + "/" + PEER
    bad = [dead(), mistaken, "", "/ip4/127.0.0.1/tcp/4000", "nonsense", silent]
    b = await swarm.start("b", initial_peers=(*bad, f" {good} \n"), call_timeout_s=1.0)
    await a.publish(lease(a, time.time() + LIFE_S, 1))
    assert [one.peer for one in await b.leases()] == [a.peer]
    for why in ("connection refused", f"another peer answers there ({a.peer})", "no answer within 1 s"):
        assert why in caplog.text


async def test_no_bootstrap_works(swarm: RealSwarm, silent: str) -> None:
    error = await refused(swarm, initial_peers=(dead(),), bootstrap_timeout_s=0.1)
    assert error.code == 3
    assert "connection refused" in str(error)
    assert "fresh invite" in str(error)
    error = await refused(swarm, initial_peers=(silent,), bootstrap_timeout_s=0.1, call_timeout_s=0.5)
    assert "no answer within 0.5 s" in str(error)


async def test_hopeless_bootstraps_are_not_waited_for(swarm: RealSwarm) -> None:
    bad = ("", "/ip4/127.0.0.1/tcp/4000", f"/ip4/127.0.0.1/tcp/0/p2p/{PEER}", "127.0.0.1:4000")
    error = await refused(swarm, initial_peers=bad, bootstrap_timeout_s=60)
    for why in ("(empty): the address is empty", "has no /p2p/PEER", "port 0 cannot be dialled", "and 1 more"):
        assert why in str(error)


async def test_a_late_bootstrap_is_waited_for(swarm: RealSwarm) -> None:
    port, founder = unused_port(), swarm.identity("a").peer
    async with asyncio.TaskGroup() as group:
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{founder}"
        early = group.create_task(swarm.start("b", initial_peers=(address,), bootstrap_timeout_s=30))
        await until(daemons)  # the early one is up and alone
        a = await swarm.start("a", listen=f"/ip4/127.0.0.1/tcp/{port}")
    await a.publish(lease(a, time.time() + LIFE_S, 1))
    assert [one.peer for one in await early.result().leases()] == [a.peer]


async def test_a_node_may_be_its_own_bootstrap(swarm: RealSwarm) -> None:
    own = swarm.identity("a").peer
    a = await swarm.start("a", initial_peers=(f"/ip4/127.0.0.1/tcp/4000/p2p/{own}",))
    assert a.peer == own


@pytest.mark.parametrize(("offset", "side"), [(60.0, "ahead of"), (-7.0, "behind")])
async def test_a_wrong_clock_is_named(swarm: RealSwarm, offset: float, side: str) -> None:
    a = await swarm.join("a")
    error = await refused(swarm, initial_peers=tuple(a.addresses()), wall=lambda: time.time() + offset)
    assert error.code == 3
    assert f"this machine's clock is {abs(offset):.1f} s {side} that of the swarm" in str(error)
    assert "timedatectl" in str(error)


async def test_a_port_in_use_is_named(swarm: RealSwarm) -> None:
    """p2pd itself would share it silently."""
    a = await swarm.join("a")
    port = int(a.addresses()[0].split("/")[4])
    error = await refused(swarm, listen=f"/ip4/127.0.0.1/tcp/{port}")
    assert error.code == 2
    assert f"127.0.0.1 port {port}" in str(error)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"announce": ("/ip4/0.0.0.0/tcp/4000",)}, "--announce"),
        ({"announce": ("/ip4/127.0.0.1/tcp/0",)}, "--announce.*port 0"),
        ({"listen": "/dns/localhost/tcp/0"}, "cannot listen"),
        ({"listen": "127.0.0.1:0"}, "cannot listen"),
    ],
)
async def test_wrong_addresses_of_our_own(swarm: RealSwarm, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UnusableError, match=why) as caught:
        await swarm.start("a", **settings)
    assert caught.value.code == 2


async def test_announced_addresses_are_told(swarm: RealSwarm) -> None:
    a = await swarm.start("a", announce=("/ip4/127.0.0.1/tcp/4321",))
    assert a.addresses() == [f"/ip4/127.0.0.1/tcp/4321/p2p/{a.peer}"]


async def test_a_quiet_node_takes_part_and_is_dialled_only_once_it_announces(swarm: RealSwarm) -> None:
    """It knows no address of itself at first; it must not tell the private ones that it has."""
    a = await swarm.join("a")
    b = await swarm.start("b", quiet=True)
    process, port = psutil.Process(b.daemon_pid), b.port
    assert not [found for found in process.net_connections("inet") if found.status == psutil.CONN_LISTEN]
    expires = time.time() + LIFE_S
    await b.publish(lease(b, expires, 1))
    assert [(one.peer, one.dht) for one in await a.leases()] == [(b.peer, "")]
    assert (b.is_quiet, b.addresses(), a.remembered()) == (True, [], [])
    await b.announce("127.0.0.1")
    address = f"/ip4/127.0.0.1/tcp/{port}"
    assert (b.is_quiet, b.addresses()) == (False, [f"{address}/p2p/{b.peer}"])
    assert [(one.peer, one.dht) for one in await a.leases()] == [(b.peer, address)]
    assert a.remembered() == b.addresses()
    c = await swarm.start("c", initial_peers=tuple(b.addresses()))
    assert [one.peer for one in await c.leases()] == [b.peer]


async def test_peers_of_an_earlier_life_are_tried_too(swarm: RealSwarm) -> None:
    a = await swarm.join("a")
    await a.publish(lease(a, time.time() + LIFE_S, 1))
    known = (dead(), a.addresses()[0])
    b = await swarm.start("b", initial_peers=(dead(),), known_peers=known)
    assert [one.peer for one in await b.leases()] == [a.peer]
    c = await swarm.start("c", initial_peers=(), known_peers=known)
    assert [one.peer for one in await c.leases()] == [a.peer]
    alone = await swarm.start("d", initial_peers=(), known_peers=(dead(),))
    assert await alone.leases() == []


async def test_a_port_is_one_daemons_alone(swarm: RealSwarm) -> None:
    """Asked for at the same moment, it goes to one of two: p2pd itself would share it."""
    listen = f"/ip4/127.0.0.1/tcp/{unused_port()}"
    found = await asyncio.gather(*(swarm.start(name, listen=listen) for name in "ab"), return_exceptions=True)
    [refused] = [one for one in found if isinstance(one, UnusableError)]
    assert refused.code == 2
    assert "choose another --dht-port" in str(refused)


async def test_a_long_state_directory(swarm: RealSwarm) -> None:
    """A unix socket's path has room for 107 bytes."""
    swarm.folder = swarm.folder / ("x" * 100)
    swarm.folder.mkdir()
    a = await swarm.join("a")
    assert a.addresses()


async def test_a_dead_p2pd_is_replaced(swarm: RealSwarm) -> None:
    told: list[str] = []
    a = await swarm.start("a", on_daemon_death=told.append)
    swarm.entrance = tuple(a.addresses())
    b = await swarm.start("b")
    expires = time.time() + LIFE_S
    await a.publish(lease(a, expires, 1))
    await b.publish(lease(b, expires, 2))
    before, old_pid = a.addresses(), a.daemon_pid
    os.kill(old_pid, signal.SIGKILL)
    await until(lambda: a.daemon_deaths)
    assert {one.peer for one in await a.leases()} == {a.peer, b.peer}, "a search waits for the new one"
    assert a.addresses() == before, "same port, same identity"
    assert a.daemon_pid not in (None, old_pid)
    assert told == ["p2pd died (it said nothing)"]
    c = await swarm.start("c", initial_peers=tuple(before))
    await a.publish(lease(a, expires + 5, 1))
    assert {one.peer for one in await c.leases()} == {a.peer, b.peer}


async def test_a_p2pd_that_keeps_dying_ends_the_node(tmp_path: Path, no_orphans: str) -> None:
    async def kill_whatever_comes() -> None:
        async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
            a = await RealSwarm(tmp_path, tasks, stack).start("a")
            while True:
                await until(lambda: a.daemon_pid)
                with suppress(ProcessLookupError):  # it is gone, and its end not yet told
                    os.kill(a.daemon_pid, signal.SIGKILL)
                await asyncio.sleep(0.02)

    with pytest.raises(ExceptionGroup) as caught:
        await kill_whatever_comes()
    (error,) = caught.value.exceptions
    assert isinstance(error, UnusableError)
    assert error.code == 3
    assert "died 4 times within 60 s" in str(error)
    del error, caught
    gc.collect()  # a connection that was left open would be an error here: warnings are


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
async def test_cancelled_while_starting(swarm: RealSwarm, silent: str, after_s: float) -> None:
    """Wherever the cancellation strikes, nothing is left: no process, no task, no socket."""
    tasks, before = asyncio.all_tasks(), daemons()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await swarm.start("a", initial_peers=(silent,))
    assert daemons() == before
    assert asyncio.all_tasks() == tasks
    assert not list((swarm.folder / "a").glob("*.sock"))


async def test_closing_leaves_nothing(swarm: RealSwarm) -> None:
    tasks, before = asyncio.all_tasks(), daemons()
    a = await swarm.join("a")
    b = await swarm.join("b")
    await a.publish(lease(a, time.time() + LIFE_S, 1))
    searching = swarm.tasks.create_task(b.leases())
    await asyncio.sleep(0)
    for directory in (b, a):
        await directory.close()
        await directory.close()
    searching.cancel()
    await asyncio.wait([searching])
    assert daemons() == before
    assert asyncio.all_tasks() == tasks
    assert not list(swarm.folder.glob("*/*.sock"))


CHILD = """
import asyncio, sys, time
from pathlib import Path
from node.directory import DirectoryConfig, HivemindDirectory
from node.identity import load_or_create

async def main():
    async with asyncio.TaskGroup() as tasks:
        folder = Path(sys.argv[1])
        directory = await HivemindDirectory.start(DirectoryConfig("ab" * 32, load_or_create(folder), folder), tasks)
        print(directory.daemon_pid, flush=True)
        await asyncio.sleep(60)

if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_p2pd_dies_with_a_killed_node(tmp_path: Path, no_orphans: str, loop: str) -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path, loop], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with node, closing(node.stderr):  # type: ignore[type-var]
        assert node.stdout is not None
        daemon = psutil.Process(int(node.stdout.readline()))
        assert daemon.name() == "p2pd"
        daemon.suspend()  # it would also end when it notices that its client is gone: do not count on that
        node.kill()
        assert node.stderr is not None
        assert node.stderr.read() == "", "the library is quiet"
    _, alive = psutil.wait_procs([daemon], timeout=3)
    assert not alive or alive[0].status() == psutil.STATUS_ZOMBIE


LIFE = """
import asyncio, os, signal, sys, time, uvloop
from pathlib import Path
from node.directory import DirectoryConfig, HivemindDirectory
from node.identity import load_or_create
from tests.conformance.directory_worlds import lease

async def main():
    async with asyncio.TaskGroup() as tasks:
        folder = Path(sys.argv[1])
        directory = await HivemindDirectory.start(DirectoryConfig("ab" * 32, load_or_create(folder), folder), tasks)
        await directory.publish(lease(directory, time.time() + 30, 1))
        os.kill(directory.daemon_pid, signal.SIGKILL)
        while not directory.daemon_deaths:
            await asyncio.sleep(0.01)
        assert [one.peer for one in await directory.leases()] == [directory.peer]
        await directory.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, asyncio.all_tasks()

uvloop.run(main())
"""


def test_a_whole_life_on_uvloop(tmp_path: Path, no_orphans: str) -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", LIFE, tmp_path]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.splitlines() == ["p2pd died (it said nothing); restarting it"]
    assert not list(tmp_path.glob("*.sock"))


async def test_a_bad_record_does_not_hide_those_beside_it(swarm: RealSwarm) -> None:
    """Here the only one left to ask is a stranger who serves our records and junk under one key."""
    a = await swarm.join("a")
    claim = lease(a, time.time() + LIFE_S, 1)
    stranger = await swarm.lawless_address()
    await a.publish(claim)
    await swarm.plant(stage_key(RUN_DIGEST, 1), [("junk", {"no": "lease"})], claim.expires + 5)
    await a.close()
    b = await swarm.start("b", initial_peers=(stranger,))
    assert [replace(one, dht="") for one in await b.leases()] == [claim]
    assert b.malformed in (1, 2), "met by the search, and once more where the stranger hands its records to a newcomer"


async def test_split_halves_meet_by_redialling(swarm: RealSwarm) -> None:
    a = await swarm.start("a")
    b = await swarm.start("b")  # alone: it knew nobody
    swarm.entrance = tuple(a.addresses())
    c = await swarm.start("c", initial_peers=tuple(b.addresses()))
    expires = time.time() + LIFE_S
    await a.publish(lease(a, expires, 1))
    assert await c.leases() == []
    kept = await c.redial()
    assert c.clock_offset_s is not None and abs(c.clock_offset_s) < 3, "one clock here, however slow the machine"
    assert [address.rpartition("/")[2] for address in kept] == [b.peer]
    d = await swarm.start("d", initial_peers=(kept[0], a.addresses()[0]))
    await d.redial()
    await a.publish(lease(a, expires + 1, 1))
    assert [one.peer for one in await d.leases()] == [a.peer]
    assert [one.peer for one in await c.leases()] == [a.peer]


@pytest.mark.full
async def test_seven_nodes_at_the_same_second(swarm: RealSwarm) -> None:
    port, founder = unused_port(), swarm.identity("0").peer
    address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{founder}"
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(swarm.start(str(n), initial_peers=(address,))) for n in range(1, 7)]
        first = group.create_task(swarm.start("0", listen=f"/ip4/127.0.0.1/tcp/{port}"))
    peers = [first.result(), *(task.result() for task in others)]
    expires = time.time() + LIFE_S
    await asyncio.gather(*(peer.publish(lease(peer, expires, n % 3)) for n, peer in enumerate(peers)))
    for peer in peers:
        assert {one.peer for one in await peer.leases()} == {other.peer for other in peers}
