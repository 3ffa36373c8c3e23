"""Stage 0 is lost and nobody has a copy: the nodes that remain say so in one line and end with exit code 5. Real processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from node.demo.process import STDERR_FILE
from tests.integration.ends import Ending
from tests.integration.test_regrow import a_run
from tests.tools.swarm import swarm, wait_for

LIMIT_S = 90.0


@pytest.mark.full
@pytest.mark.timeout(180)
def test_stage_0_without_a_copy_ends_the_run_for_everybody(tmp_path: Path) -> None:
    path = a_run(tmp_path, 3, recovery__policy="checkfree", recovery__embedding_copies=0)
    with swarm(tmp_path) as made:
        first, *others = made.launch(path, num_block_stages=3)
        made.wait_step(3, LIMIT_S)
        assert "recovery.embedding_copies is 0" in (first.state_dir / STDERR_FILE).read_text(), "warned at the start"
        ending = Ending(first)
        ending.send(signal.SIGKILL)
        ending.check()
        for node in others:
            wait_for(f"{node.name} ends", lambda node=node: node.exit_code is not None, LIMIT_S, made.situation)
            last = node.last_words(1)[0]
            assert node.exit_code == 5, made.situation()
            assert "stage 0 is lost, and recovery.embedding_copies is 0" in last
            assert "Traceback" not in (node.state_dir / STDERR_FILE).read_text()
