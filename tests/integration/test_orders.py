"""What the organiser may order, that nobody else may, and how a run ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.keys import OrganiserKey
from tests.integration.ends import Ending
from tests.tools.command import regrow
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = pytest.mark.timeout(240)
LIMIT_S = 60.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Swarm]:
    """Two nodes, in training."""
    with swarm(tmp_path) as made:
        made.launch(write_manifest(tmp_path, num_block_stages=1, max_steps=100_000, timing__heartbeat_s=0.5), 1)
        made.wait_step(2, LIMIT_S)
        yield made


def wait_phases(made: Swarm, phase: str) -> None:
    """Until every node says so."""

    def told() -> bool:
        return all(made.status(node).get("phase") == phase for node in made.nodes)

    wait_for(f"all are {phase}", told, LIMIT_S, made.situation)


def test_pause_resume_stop(pair: Swarm, tmp_path: Path) -> None:
    first, second = pair.nodes
    wrong_keys_do_nothing(pair, tmp_path / "stranger.key")

    key = first.state_dir / "organiser.key"
    # Any node takes an order; the coordinator obeys it.
    assert regrow("pause", "--key", key, "--state-dir", second.state_dir).code == 0
    wait_phases(pair, "paused")
    step = pair.status(first)["step"]
    assert pair.status(second)["step"] == step

    assert regrow("resume", "--key", key, "--state-dir", second.state_dir).code == 0
    pair.wait_step(step + 2, LIMIT_S)

    endings = [Ending(node) for node in pair.nodes]
    assert regrow("stop", "--state-dir", first.state_dir).code == 0
    assert pair.wait_ended(LIMIT_S) == [0, 0]
    for ending in endings:
        ending.check()
    steps = [pair.events(node, "committed")[-1]["step"] for node in pair.nodes]
    assert steps[0] == steps[1]
    assert_summaries(pair, f"finished at step {steps[0]}: stopped by the organiser")


def wrong_keys_do_nothing(made: Swarm, stranger: Path) -> None:
    OrganiserKey.create(stranger)
    for action in ("stop", "pause"):
        refused = regrow(action, "--key", stranger, "--state-dir", made.nodes[0].state_dir)
        assert refused.code == 4, refused.err
        assert "organiser" in refused.line
    assert regrow("stop", "--state-dir", made.nodes[1].state_dir).code == 2  # it has no key at all
    made.wait_step(made.status(made.nodes[0])["step"] + 3, LIMIT_S)
    assert made.status(made.nodes[0])["phase"] == "training"


def assert_summaries(made: Swarm, why: str) -> None:
    for node in made.nodes:
        *_, reason, summary = node.last_words()
        assert reason.startswith(why), made.situation()
        assert summary.startswith("ended: step "), made.situation()


def test_end_of_a_run(tmp_path: Path) -> None:
    """At max_steps everybody commits, lingers, exits 0 with a summary; nothing is left."""
    with swarm(tmp_path) as made:
        path = write_manifest(tmp_path, num_block_stages=1, max_steps=4, timing__heartbeat_s=0.5, timing__linger_s=2.0)
        made.launch(path, 1)
        endings = [Ending(node) for node in made.nodes]
        assert made.wait_ended(LIMIT_S) == [0, 0]
        for ending in endings:
            ending.check()
        assert [made.events(node, "committed")[-1]["step"] for node in made.nodes] == [4, 4]
        assert_summaries(made, "finished at step 4: max_steps or max_tokens reached")
