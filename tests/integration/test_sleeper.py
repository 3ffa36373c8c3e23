"""A node that was asleep for longer than a lapse finds itself off the roster when it wakes, and joins again by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import end_all_at_once
from tests.integration.seen import assert_counted_once
from tests.integration.test_takeover import assert_one_history
from tests.tools.crowd import Crowd
from tests.tools.material import write_manifest
from tests.tools.swarm import swarm, wait_for

LIMIT_S = 60.0
MORE_THAN_ANYBODY_KEEPS = 70
"""Decided records: who has missed so many gets a summary in place of them."""


@pytest.mark.full
@pytest.mark.timeout(300)
def test_who_slept_joins_again(tmp_path: Path) -> None:
    """A member that misses a few records, then the coordinator, which misses more than are kept."""
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        start_replicas=2,
        max_steps=100_000,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=6,
    )
    with swarm(tmp_path) as made:
        nodes = made.launch(path, 1, 2)
        crowd = Crowd(made)
        crowd.wait_step(5)
        sleeps_and_comes_back(crowd, nodes[3], stage=1, steps=3)
        lead = crowd.coordinator(crowd.whole())
        assert lead is nodes[0]
        sleeps_and_comes_back(crowd, lead, stage=0, steps=MORE_THAN_ANYBODY_KEEPS)
        assert crowd.coordinator(crowd.whole()) is not lead, "its ballot is outdated"
        assert end_all_at_once(made.nodes) == [0] * 4
        assert_counted_once(crowd.logs(), num_microbatches=4)
        assert_one_history(made)


def sleeps_and_comes_back(crowd: Crowd, node: NodeProcess, stage: int, steps: int) -> None:
    """Off the roster while it sleeps; then of the same incarnation, with a state that it copied, at work."""
    made, peer = crowd.made, crowd.made.running(node).peer
    before = made.status(node)
    crowd.sleep(node)

    def is_off() -> bool:
        return all(peer not in {row["peer"] for row in status["roster"]} for status in crowd.look().values())

    wait_for(f"{node.name} is off the roster", is_off, LIMIT_S, crowd.situation)
    crowd.go_on(steps)
    crowd.wake(node)
    step = crowd.step()
    after = crowd.whole()[node.name]
    assert after["incarnation"] == before["incarnation"]
    seat = next(seat for seat in after["seats"] if seat["stage"] == stage)
    assert (seat["role"], seat["provenance"]["rung"]) == ("active", "copy")
    assert seat["provenance"]["step"] >= step
    crowd.go_on(3)
    last = [event for event in made.events(node, "committed") if event["stage"] == stage][-1]
    assert peer in last["contributors"]
