"""First contact: whatever is odd about addresses and the order of starts, there is one network, or one line that says why not.

Announced addresses with port 0 or 0.0.0.0, tokens that are no invites, and an invite whose peer is gone stand in
`test_cli_bad_input.py`; whom a peer dials back, and what is told of private addresses, in tests/unit.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from node.ports import Lease
from node.reach import host_of, is_private
from protocol.invite import PREFIX, parse
from tests.integration.ends import claimed, end_all_at_once, observer
from tests.integration.seen import says
from tests.tools.command import refused, regrow
from tests.tools.invitation import STRANGER, dead_address, invitation, unused_port
from tests.tools.material import write_manifest
from tests.tools.own_network import in_own_network
from tests.tools.swarm import Swarm, swarm, wait_for

BAD_USE, UNREACHABLE = 2, 3
LIMIT_S = 240.0
ANY_PORTS = ("--dht-port", "0", "--metrics", "127.0.0.1:0")
HOME, NEIGHBOUR, PUBLIC = "10.0.0.5", "10.0.0.6", "8.8.4.4"


def raw_invite(address: str) -> str:
    """An invite as nobody can mint it, with this address."""
    import protocol.invite as module

    body = b"".join(module._fields(module.Invite((address,), "ab" * 32, "run", "")))
    data = len(body).to_bytes(2, "big") + body
    return PREFIX + module._encode(data + module.zlib.crc32(data).to_bytes(4, "big"))


# ---- addresses, one command each


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/ip4/127.0.0.1/tcp/4000", "/p2p/"),
        ("", "empty"),
        ("127.0.0.1:4000", "/ip4/"),
        (f"/ip4/127.0.0.1/tcp/x/p2p/{STRANGER}", "port"),
    ],
    ids=["no-peer", "empty", "host-port", "no-port"],
)
def test_an_invite_with_a_bad_address(address: str, words: str, tmp_path: Path) -> None:
    line = refused(BAD_USE, "join", raw_invite(address), "--state-dir", tmp_path / "state")
    assert words in line
    assert "regrow invite" in line


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        (["--announce", "10.1.2.3:4000"], "--announce 10.1.2.3:4000"),
        (["--announce", "203.0.113.5:4000"], "--announce 203.0.113.5:4000"),
        (["--announce", "8.8.4.4:4000", "--dht-announce", "/ip4/192.168.0.7/tcp/4000"], "--dht-announce /ip4/192.168.0.7"),
    ],
    ids=["private", "unroutable", "directory"],
)
def test_a_public_run_with_a_private_address_announced(flags: list[str], option: str, tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, local=False)
    command = ("start", manifest, "--state-dir", tmp_path / "state", "--listen", "127.0.0.1:0", *ANY_PORTS, *flags)
    ended = regrow(*command)
    assert (ended.code, ended.out) == (BAD_USE, ""), ended.err
    assert option in ended.verdict
    assert "--lan" in ended.verdict


def test_a_public_run_at_a_private_address(tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path, local=False)
    ended = regrow("start", manifest, "--state-dir", tmp_path / "state", "--listen", "127.0.0.1:0", *ANY_PORTS)
    assert (ended.code, ended.out) == (UNREACHABLE, ""), ended.err
    for words in ("127.0.0.1:", "--announce", "--lan"):
        assert words in ended.verdict


# ---- the order of starts


@pytest.mark.full
@pytest.mark.timeout(2 * LIMIT_S)
def test_nodes_before_the_bootstrap_whose_companion_is_dead(tmp_path: Path) -> None:
    """Two nodes wait for a bootstrap that starts when both have been refused; the first address of their invite stays dead."""
    manifest, port = write_manifest(tmp_path, max_steps=100_000), unused_port()
    with swarm(tmp_path) as made:
        invite = invitation(manifest, tmp_path / "first", "127.0.0.1", port, dead_address())
        others = [made.join(invite, "--stage", str(stage), name=f"stage{stage}") for stage in (1, 2)]
        for node in others:
            wait_for(f"{node.name} is refused", lambda node=node: says(node, "connection refused"), 90, made.situation)
        first = made.start(manifest, "--stage", "0", "--dht-port", str(port))
        for node in (first, *others):
            made.wait_step(2, LIMIT_S, node)
        end_all_at_once(made.nodes)


@pytest.mark.full
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_wrong_peer_and_a_trailing_blank(tmp_path: Path) -> None:
    manifest, port = write_manifest(tmp_path, max_steps=100_000), unused_port()
    with swarm(tmp_path) as made:
        good = invitation(manifest, tmp_path / "first", "127.0.0.1", port)
        first = made.start(manifest, "--dht-port", str(port))
        address = parse(made.running(first).invite).addresses[0]
        wrong = raw_invite(address.rpartition("/")[0] + "/" + STRANGER)
        flags = ("--state-dir", tmp_path / "wrong", "--listen", "127.0.0.1:0", *ANY_PORTS)
        ended = regrow("join", wrong, *flags, "--bootstrap-timeout-s", "30", limit_s=90)
        assert (ended.code, ended.out) == (UNREACHABLE, ""), ended.err
        assert "another peer answers there" in ended.verdict
        blank = made.join(f" {good}\n", name="blank")
        wait_for("it is known", lambda: len(made.status(first).get("view", ())) == 1, LIMIT_S, made.situation)
        end_all_at_once([first, blank])


@pytest.mark.full
@pytest.mark.field(10)
@pytest.mark.timeout(2 * LIMIT_S)
def test_seven_at_the_same_second_on_one_core(tmp_path: Path, times: int) -> None:
    """Bootstrap and six more, started together, all on one core: one network, and it trains."""
    for number in range(times):
        seven_at_once(tmp_path / str(number))


def seven_at_once(folder: Path) -> None:
    manifest, port = write_manifest(folder, max_steps=100_000, start_replicas=2, timing__heartbeat_s=2.0), unused_port()
    cores = os.sched_getaffinity(0)
    with swarm(folder) as made:
        invite = invitation(manifest, folder / "first", "127.0.0.1", port)
        os.sched_setaffinity(0, {min(cores)})
        try:
            first = made.start(manifest, "--dht-port", str(port))
            others = [made.join(invite, name=f"node{number}") for number in range(6)]
        finally:
            os.sched_setaffinity(0, cores)
        for node in made.nodes:
            made.running(node)
        peers = {made.running(node).peer for node in made.nodes}
        assert asyncio.run(seen(made.running(others[0]).invite, folder / "observer", peers)) == peers
        made.wait_step(1, LIMIT_S, first)
        end_all_at_once(made.nodes)


async def seen(invite: str, folder: Path, expected: set[str]) -> set[str]:
    """Who has a lease; waits up to a minute for those expected."""
    found: set[str] = set()
    async with observer(invite, folder) as directory:
        for _ in range(60):
            found = await claimed(directory)
            if expected <= found:
                break
            await asyncio.sleep(1.0)
    return found


# ---- networks


@pytest.mark.full
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_machine_with_ipv6_only(tmp_path: Path) -> None:
    def scenario() -> None:
        manifest = write_manifest(tmp_path, num_block_stages=1, max_steps=100_000)
        ipv6 = ("--listen", "[::1]:0", "--metrics", "[::1]:0")
        with swarm(tmp_path) as made:
            first = made.start(manifest, "--stage", "0", *ipv6)
            second = made.join(made.running(first).invite, *ipv6, name="second")
            made.wait_step(2, LIMIT_S, second)
            assert made.running(second).grpc.startswith("[::1]:")

    in_own_network(scenario, tmp_path / "log", 1.5 * LIMIT_S, ())


def all_told(invite: str, folder: Path) -> list[Lease]:
    """The leases, once each node has told where its directory is reached: a lease of before that may still be there."""

    looks = itertools.count()

    def looked() -> list[Lease]:
        leases = asyncio.run(everything(invite, folder.with_name(f"{folder.name}-{next(looks)}")))
        return leases if all(lease.dht for lease in leases) else []

    found: list[Lease] = wait_for("every lease names the node's directory", looked, LIMIT_S)
    return found


@pytest.mark.full
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_public_run_and_a_node_behind_a_router(tmp_path: Path) -> None:
    """Its own address is private. Where the router does not forward, it is told so and ends; where it does, it takes part, and
    nothing private ever stands in the directory."""
    from tests.tools.relay import relay

    def scenario() -> None:
        manifest = write_manifest(tmp_path, num_block_stages=1, max_steps=100_000, local=False)
        with swarm(tmp_path) as made:
            first = made.start(manifest, "--stage", "0", "--listen", f"{PUBLIC}:40000", "--dht-port", "40001")
            invite = made.running(first).invite
            assert [host_of(address) for address in parse(invite).addresses] == [PUBLIC]
            unforwarded(made, invite)
            with relay(f"{HOME}:41000", f"{PUBLIC}:41000"), relay(f"{HOME}:41001", f"{PUBLIC}:41001"):
                home = made.join(invite, "--listen", f"{HOME}:41000", "--dht-port", "41001", name="home")
                assert made.running(home).grpc == f"{PUBLIC}:41000"
                made.wait_step(2, LIMIT_S, home)
                for node in (first, home):
                    leases = all_told(made.running(node).invite, tmp_path / f"look-{node.name}")
                    assert {lease.address for lease in leases} == {f"{PUBLIC}:40000", f"{PUBLIC}:41000"}
                    assert {lease.dht for lease in leases} == {f"/ip4/{PUBLIC}/tcp/40001", f"/ip4/{PUBLIC}/tcp/41001"}
                    assert {lease.http for lease in leases} == {""}, "a loopback address is of use to nobody"
                    assert not any(is_private(host_of(text)) for text in parse(made.running(node).invite).addresses)

    in_own_network(scenario, tmp_path / "log", 1.5 * LIMIT_S, (PUBLIC, HOME))


@pytest.mark.full
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_run_inside_one_network(tmp_path: Path) -> None:
    """Private addresses and `--lan`: who gives it too takes part, who does not is told of it."""

    def scenario() -> None:
        manifest = write_manifest(tmp_path, num_block_stages=1, max_steps=100_000, local=False)
        with swarm(tmp_path) as made:
            first = made.start(manifest, "--stage", "0", "--lan", "--listen", f"{HOME}:0")
            invite = made.running(first).invite
            assert [host_of(address) for address in parse(invite).addresses] == [HOME]
            stranger = ("--state-dir", tmp_path / "stranger", "--listen", f"{NEIGHBOUR}:0", *ANY_PORTS)
            ended = regrow("join", invite, *stranger, limit_s=120)
            assert (ended.code, ended.out) == (UNREACHABLE, ""), ended.err
            assert "--lan" in ended.verdict
            second = made.join(invite, "--lan", "--listen", f"{NEIGHBOUR}:0", name="second")
            assert made.running(second).grpc.startswith(NEIGHBOUR)
            made.wait_step(2, LIMIT_S, second)

    in_own_network(scenario, tmp_path / "log", 1.5 * LIMIT_S, (HOME, NEIGHBOUR))


def unforwarded(made: Swarm, invite: str) -> None:
    node: NodeProcess = made.join(invite, "--listen", f"{HOME}:41000", "--dht-port", "41001", name="unforwarded")
    wait_for("it gives up", lambda: node.exit_code is not None, 120, made.situation)
    assert node.exit_code == UNREACHABLE, made.situation()
    [line] = [line for line in node.last_words() if line.startswith("regrow: ")]
    for words in (f"{PUBLIC}:41000", "41001", "--announce", "--lan"):
        assert words in line
    made.nodes.remove(node)


async def everything(invite: str, folder: Path) -> list[Lease]:
    async with observer(invite, folder) as directory:
        return [lease for lease in await directory.leases() if not lease.leaving]
