"""Double starts: the later one ends and names file or port, the first is not disturbed; a restart at once just works.

One state directory twice, ports in use by others and broken identity files stand in `test_cli_bad_input.py`, a copied identity
in `test_trust.py`, files open to other users in tests/unit/test_identity.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from node.identity import IDENTITY_FILE, INCARNATION_FILE
from protocol.addresses import parse_multiaddress
from protocol.invite import parse
from tests.integration.seen import says
from tests.tools.command import Ended, regrow
from tests.tools.material import write_manifest
from tests.tools.own_network import in_own_network
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = pytest.mark.timeout(180)
BAD_USE = 2
ANY_PORTS = {"--listen": "127.0.0.1:0", "--dht-port": "0", "--metrics": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, no_module_orphans: str) -> Iterator[Swarm]:
    """One node, alone: it waits for others all the time."""
    folder = tmp_path_factory.mktemp("double")
    with swarm(folder) as made:
        made.running(made.start(write_manifest(folder)))
        yield made


def second(live: Swarm, state_dir: Path, **ports: str) -> Ended:
    """Another node of the run, with these options instead of any ports; the first must not notice."""
    first = live.nodes[0]
    before = live.status(first)
    options = ANY_PORTS | {f"--{name.replace('_', '-')}": value for name, value in ports.items()}
    words = [word for pair in options.items() for word in pair]
    ended = regrow("join", live.running(first).invite, "--state-dir", state_dir, *words, limit_s=120)
    after = live.status(first)
    assert {key: before[key] for key in ("pid", "incarnation", "phase")} == {
        key: after[key] for key in ("pid", "incarnation", "phase")
    }
    assert first.exit_code is None
    return ended


def assert_names(ended: Ended, *words: str) -> None:
    assert (ended.code, ended.out) == (BAD_USE, ""), ended.err
    for word in words:
        assert word in ended.verdict


def test_its_ports(live: Swarm, tmp_path: Path) -> None:
    running = live.running(live.nodes[0])
    dht = str(parse_multiaddress(parse(running.invite).addresses[0]).port)
    for option, value in (("listen", running.grpc), ("metrics", running.http), ("dht_port", dht)):
        ended = second(live, tmp_path / "state", **{option: value})
        assert_names(ended, f"--{option.replace('_', '-')}", value.rpartition(":")[2])


def test_its_identity_at_its_own_address_and_at_another(live: Swarm, tmp_path: Path) -> None:
    first = live.nodes[0]
    (tmp_path / "copy").mkdir()
    for name in (IDENTITY_FILE, INCARNATION_FILE):
        shutil.copy2(first.state_dir / name, tmp_path / "copy" / name)
    for ports in ({"listen": live.running(first).grpc}, {}):
        assert_names(second(live, tmp_path / "copy", **ports), "is in use by a running node at", str(tmp_path / "copy"))


@pytest.mark.full
def test_killed_and_started_again_at_once(tmp_path: Path) -> None:
    """On the same ports, before anybody could notice: the same peer in its next incarnation."""
    manifest = write_manifest(tmp_path)
    with swarm(tmp_path) as made:
        first = made.running(made.start(manifest))
        port = str(parse_multiaddress(parse(first.invite).addresses[0]).port)
        for number in range(2, 4):
            killed = made.nodes.pop().process
            killed.kill()
            killed.wait()
            flags = ("--listen", first.grpc, "--dht-port", port, "--metrics", first.http)
            again = made.running(made.start(manifest, *flags))
            assert (again.peer, again.grpc, again.http) == (first.peer, first.grpc, first.http)
            assert made.status(made.nodes[0])["incarnation"] == number


@pytest.mark.full
def test_two_nodes_on_one_machine_without_a_word_about_ports(tmp_path: Path) -> None:
    """The default ports are the first one's; the second takes others and says so."""

    def scenario() -> None:
        manifest = write_manifest(tmp_path, num_block_stages=1, max_steps=100_000)
        with swarm(tmp_path) as made:
            first = default_ports(made, "first", "start", str(manifest))
            running = made.running(first)
            assert running.http == "127.0.0.1:28482"
            assert running.grpc.endswith(":28480")
            assert parse_multiaddress(parse(running.invite).addresses[0]).port == 28481
            other = default_ports(made, "second", "join", running.invite)
            assert not {made.running(other).http, made.running(other).grpc} & {running.http, running.grpc}
            for port in (28480, 28481, 28482):
                assert says(other, f"port {port} is taken"), made.situation()
            made.wait_step(2, 120, other)

    in_own_network(scenario, tmp_path / "log", 170, ("127.0.0.1", "10.0.0.5"))


def default_ports(made: Swarm, name: str, *args: str) -> NodeProcess:
    node = NodeProcess.start(name, args, made.folder / name, own_ports=False)
    made.nodes.append(node)
    return node


@pytest.mark.full
def test_it_still_lets_somebody_in(live: Swarm) -> None:
    """The node that all of the above left undisturbed does its work."""
    first = live.nodes[0]
    live.join(live.running(first).invite, name="late")
    wait_for("it is seen", lambda: len(live.status(first).get("view", ())) == 1, 90, live.situation)
