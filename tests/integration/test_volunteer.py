"""What a volunteer sees and allows, with real processes: the dry run, the cap on bytes, the last line."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.demo.process import STDERR_FILE, NodeProcess
from node.manifest_file import load
from protocol.manifest import Manifest
from protocol.sizes import need_bytes
from tests.tools.command import regrow
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Two replicas of each of two stages; the last one may use 2 MB of traffic."""
    folder = tmp_path_factory.mktemp("swarm")
    path = write_manifest(folder, num_block_stages=1, start_replicas=2, max_steps=100_000, recovery__policy="none")
    with swarm(folder) as made:
        first = made.start(path, "--stage", "0", name="s0r0")
        invite = made.running(first).invite
        made.join(invite, "--stage", "0", name="s0r1")
        made.join(invite, "--stage", "1", name="s1r0")
        made.join(invite, "--stage", "1", "--max-gb", "0.002", "--max-upload-mbit", "400", name="s1r1")
        made.wait_step(3, LIMIT_S)
        yield made
        for node in made.nodes:
            node.send(signal.SIGKILL)


@pytest.fixture
def manifest(made: Swarm) -> Manifest:
    return load(made.folder / "run.yaml")


def test_a_node_leaves_in_order_when_its_bytes_are_spent(made: Swarm) -> None:
    [node] = [node for node in made.nodes if node.name == "s1r1"]
    wait_for("the capped node has left", lambda: node.exit_code is not None, LIMIT_S, made.situation)
    assert node.exit_code == 0
    said = "\n".join(node.last_words())
    assert "the limit of 2.0 MB (--max-gb) is reached" in said
    step = last_step(made)
    wait_for("the others go on", lambda: last_step(made) > step, LIMIT_S, made.situation)


def last_step(made: Swarm) -> int:
    return int(made.status(made.nodes[0])["step"])


def test_a_dry_run_tells_and_claims_nothing(made: Swarm, manifest: Manifest, tmp_path: Path) -> None:
    invite = made.running(made.nodes[0]).invite
    flags = ("--listen", "127.0.0.1:0", "--dht-port", "0", "--metrics", "127.0.0.1:0", "--state-dir", tmp_path / "state")
    ended = regrow("join", invite, *flags, "--dry-run", "--json", "--memory-limit", "4GB")
    assert ended.code == 0, ended.err
    assert ended.out.count("\n") == 1
    told = json.loads(ended.out)
    assert told["run_id"].startswith("test-")
    assert told["stage"] in (0, 1)
    assert told["need_bytes"] == need_bytes(manifest, told["stage"], told["replicas"])
    assert told["memory_bytes"] == 4 * 10**9
    assert told["step"] >= 3
    assert told["step_s"] > 0
    assert told["hour_bytes"]["in"] == pytest.approx(told["step_bytes"]["in"] * 3600 / told["step_s"], rel=0.01)
    seated = {row["peer"] for row in made.status(made.nodes[0])["roster"]}
    assert len(seated) in (3, 4), "somebody was seated"


def test_a_dry_run_on_a_machine_that_is_too_small(made: Swarm, tmp_path: Path) -> None:
    invite = made.running(made.nodes[0]).invite
    flags = ("--listen", "127.0.0.1:0", "--dht-port", "0", "--metrics", "127.0.0.1:0", "--state-dir", tmp_path / "state")
    ended = regrow("join", invite, *flags, "--dry-run", "--memory-limit", "100MB")
    assert ended.code == 4
    assert "stage: none: even the smallest stage" in ended.out
    assert "regrow: this run has no stage for this machine: " in ended.err
    assert " and the node may use 100 MB; see --memory-limit" in ended.err


def said(node: NodeProcess) -> str:
    return (node.state_dir / STDERR_FILE).read_text(errors="replace")


def test_a_volunteer_comes_goes_and_comes_back(made: Swarm) -> None:
    """What a first and a second visit to a running swarm show, in order."""
    invite = made.running(made.nodes[0]).invite
    node = made.join(invite, name="visitor")
    wait_for("its work counts", lambda: "training since step" in said(node), LIMIT_S, made.situation)
    told = made.status(node)["contribution"]
    assert told["steps"] >= 1 and told["tokens"] > 0 and 0 < told["share"] < 1
    node.send(signal.SIGINT)
    wait_for("it has left", lambda: node.exit_code is not None, LIMIT_S, made.situation)
    assert node.exit_code == 0
    shown = said(node)
    in_order = (
        r"entering the directory",
        r"run: test-",
        r"device: cpu, 1 thread",
        r"stage: none yet \(the swarm decides\)",
        r"the run gives this node stage [01]: [12] others? holds? it",
        r"copying stage [01]: \d+ kB to download",
        r"stage [01] is here as of step \d+: \d+ kB from \d peers? in ",
        r"training since step \d+: this node's work is in the run's weights",
        r"ended: step \d+, loss \d\.\d+, \d+ steps? and [\d,]+ tokens computed here, \d+% of the swarm's work, up \d+s, ",
    )
    found = re.search(".*".join(in_order), shown, re.DOTALL)
    assert found, shown
    again = made.join(invite, name="visitor")
    wait_for("it is up again", again.check_ready, LIMIT_S, made.situation)
    assert re.search(r"^welcome back: \d+ steps? and [\d,]+ tokens in 1 start, up \d+s so far$", said(again), re.MULTILINE)
    assert made.running(again).peer == made.running(node).peer
    again.send(signal.SIGINT)
    wait_for("it has left", lambda: again.exit_code is not None, LIMIT_S, made.situation)
    assert re.search(r"^ended: .*; altogether .* in 2 starts, up \d+s$", said(again), re.MULTILINE), said(again)
