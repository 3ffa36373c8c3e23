"""A real node refuses real strangers and the uninvited, and a second start of an identity that runs already is found out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.certificates import papers_of
from node.identity import IDENTITY_FILE, INCARNATION_FILE, load_or_create
from node.keys import OrganiserKey, sign_ticket
from node.ports import PeerError
from node.transport.channel import Plaintext, Security
from node.transport.fetch import Asking, describe
from node.transport.tls import Tls
from protocol.invite import parse
from tests.tools.command import regrow
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, no_module_orphans: str) -> Iterator[Swarm]:
    folder = tmp_path_factory.mktemp("trust")
    with swarm(folder) as made:
        made.launch(write_manifest(folder, max_steps=100_000), num_block_stages=2)
        made.wait_step(2, 120)
        yield made


async def anybody(_peer: str) -> bool:
    return True


def identity_in(folder: Path) -> Security:
    return Tls(papers_of(load_or_create(folder).key), anybody)


async def test_only_peers_of_the_run_are_answered(live: Swarm, tmp_path: Path) -> None:
    (tmp_path / "stranger").mkdir()
    stranger, insider = identity_in(tmp_path / "stranger"), identity_in(live.nodes[2].state_dir)
    for node in live.nodes:
        running = live.running(node)
        assert (await describe(running.grpc, Asking(security=insider, peer=running.peer))).peer == running.peer
        with pytest.raises(PeerError, match="has no lease in this run's directory"):
            await describe(running.grpc, Asking(security=stranger, peer=running.peer))
        with pytest.raises(PeerError, match="unavailable"):
            await describe(running.grpc, Asking(security=Plaintext()))


def test_an_identity_runs_once(live: Swarm, tmp_path: Path) -> None:
    """A copied state directory, started while the original runs: refused before it does anything in the original's name."""
    first, original = live.nodes[0], live.nodes[1]
    for name in (IDENTITY_FILE, INCARNATION_FILE):
        shutil.copy2(original.state_dir / name, tmp_path / name)
    invite = live.running(first).invite
    ports = ("--listen", "127.0.0.1:0", "--dht-port", "0", "--metrics", "127.0.0.1:0")
    ended = regrow("join", invite, "--state-dir", tmp_path, *ports, limit_s=120)
    assert ended.code == 2, ended.err
    assert "is in use by a running node at" in ended.err
    step = live.status(first)["step"]
    live.wait_step(step + 2, 120)


def test_a_run_by_invitation(tmp_path: Path) -> None:
    """With its organiser's ticket, named or for the bearer, a node is let in; without one, or with one that somebody else
    signed, it ends with exit code 4 and one line that says whom to ask. The organiser's node needs none."""
    with swarm(tmp_path) as made:
        path = write_manifest(tmp_path, max_steps=100_000, num_block_stages=2, admission="invited")
        first = made.start(path, "--stage", "0")
        invite = made.running(first).invite
        uninvited = [
            made.join(invite, name="uninvited"),
            made.join(invite, "--ticket", forged(tmp_path, invite), name="forger"),
        ]
        for node, told in zip(
            uninvited, ("ask its organiser for a ticket for", "is not signed by the run's organiser"), strict=True
        ):
            wait_for(f"{node.name} ends", lambda node=node: node.exit_code is not None, 60, made.situation)
            assert node.exit_code == 4, made.situation()
            lines = [line for line in node.last_words() if line.startswith("regrow: ")]
            assert len(lines) == 1, lines
            assert lines[0].startswith("regrow: this run is by invitation"), lines
            assert told in lines[0]
            assert f"regrow ticket --peer {own_peer(node.state_dir)}" in lines[0]
        (tmp_path / "named").mkdir(mode=0o700)
        named = regrow("ticket", "--state-dir", first.state_dir, "--peer", own_peer(tmp_path / "named")).out.strip()
        bearer = regrow(
            "ticket", invite, "--key", first.state_dir / "organiser.key", "--bearer", "--valid-days", "1"
        ).out.strip()
        made.nodes = [first]
        made.join(invite, "--stage", "1", "--ticket", named, name="named")
        made.join(invite, "--stage", "2", "--ticket", bearer, name="bearer")
        made.wait_step(2, 120)


def forged(folder: Path, invite: str) -> str:
    key = OrganiserKey.create(folder / "forger.key")
    (folder / "forger").mkdir(mode=0o700)
    return sign_ticket(key, parse(invite).run_id, own_peer(folder / "forger"), 1, 2**40)


def own_peer(state_dir: Path) -> str:
    return load_or_create(state_dir).peer
