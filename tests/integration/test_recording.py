"""What real nodes decided is decided again, event by event, from what they recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.recording import replay
from tests.tools.command import regrow
from tests.tools.material import write_manifest
from tests.tools.swarm import swarm

LIMIT_S = 60.0


@pytest.mark.full
@pytest.mark.timeout(240)
def test_real_nodes_decide_the_same_again(tmp_path: Path) -> None:
    with swarm(tmp_path) as made:
        manifest = write_manifest(tmp_path, num_block_stages=1, max_steps=100_000, timing__heartbeat_s=0.5)
        first = made.start(manifest, "--stage", "0", "--record", name="first")
        made.join(made.running(first).invite, "--stage", "1", "--record", name="second")
        made.wait_step(5, LIMIT_S)
        assert regrow("stop", "--state-dir", first.state_dir).code == 0
        assert made.wait_ended(LIMIT_S) == [0, 0]
        for node in made.nodes:
            (path,) = node.state_dir.glob("recording-*.jsonl")
            replayed = replay(path.read_text().splitlines())
            assert replayed.events > 50
            assert replayed.state.chain.step == made.events(node, "committed")[-1]["step"]
