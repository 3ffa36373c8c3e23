"""The node that coordinates is killed in a swarm of real processes: another one leads, and each microbatch counts once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.ends import Ending, end_all_at_once
from tests.integration.seen import assert_counted_once
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for
from tests.tools.tally import digests, two_children

LIMIT_S = 60.0
NUM_MICROBATCHES = 8


@pytest.mark.timeout(240)
def test_another_node_leads(tmp_path: Path) -> None:
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        start_replicas=2,
        max_steps=100_000,
        batch__global_samples=2 * NUM_MICROBATCHES,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=4,
    )
    with swarm(tmp_path) as made:
        first, *others = made.launch(path, num_block_stages=1, replicas=2)
        made.wait_step(3, LIMIT_S)
        ending = Ending(first)
        ending.send(signal.SIGKILL)
        ending.check()
        before = max(event["step"] for node in others for event in made.events(node, "loss"))
        for node in others:
            made.wait_step(before + 5, LIMIT_S, node)
        leads = [node for node in others if made.events(node, "took_over")]
        assert len(leads) == 1, made.situation()
        leader = made.running(leads[0]).peer
        for node in others:
            wait_for("it follows", lambda node=node: made.status(node).get("ballot") == [2, leader], LIMIT_S, made.situation)
        assert [event["peer"] for event in made.events(leads[0], "lost")] == [made.running(first).peer]
        assert_one_history(made)
        assert end_all_at_once(others) == [0, 0, 0]
        logs = {made.running(node).peer: made.events(node) for node in made.nodes}
        assert_counted_once(logs, NUM_MICROBATCHES)


def assert_one_history(made: Swarm) -> None:
    """No two records after one parent, and one digest per state_id."""
    logs = {node.name: made.events(node) for node in made.nodes}
    digest, unequal = digests(logs)
    assert (two_children(logs), unequal) == ([], [])
    assert len(digest) > 10
