"""A real node refuses real strangers, and a second start of an identity that runs already is found out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.certificates import papers_of
from node.identity import IDENTITY_FILE, INCARNATION_FILE, load_or_create
from node.ports import PeerError
from node.transport.channel import Plaintext, Security
from node.transport.fetch import Asking, describe
from node.transport.tls import Tls
from tests.tools.command import regrow
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm

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
    ended = regrow("join", invite, "--state-dir", tmp_path, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", limit_s=120)
    assert ended.code == 2, ended.err
    assert "is in use by a running node at" in ended.err
    step = live.status(first)["step"]
    live.wait_step(step + 2, 120)
