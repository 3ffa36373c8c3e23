"""Real processes: one of two replicas runs a fifth of the time for a while. It loses work within two steps, and has it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from protocol.ids import members_of
from tests.integration.ends import end_all_at_once
from tests.integration.seen import assert_counted_once
from tests.tools.duty_cycle import DutyCycle
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

NUM_MICROBATCHES = 16
LITTLE, MUCH = 5, 6
"""Of 16: its capacity is that of a sixth, 2; among equals it has 8. Other work on the machine makes it more or less."""
LIMIT_S = 60.0


def hands(made: Swarm, node: NodeProcess) -> dict[int, int]:
    """How many microbatches of stage 1 the node had, by step."""
    peer = made.running(node).peer
    told = [event for event in made.events(made.nodes[1], "committed") if event["stage"] == 1]
    return {event["step"]: len(members_of(event["contributors"].get(peer, "0"))) for event in told}


def steady(made: Swarm, node: NodeProcess) -> bool:
    """It has had much three times in a row."""
    last = [hand for _, hand in sorted(hands(made, node).items())][-3:]
    return len(last) == 3 and min(last) >= MUCH and max(last) <= NUM_MICROBATCHES - MUCH


@pytest.mark.full
@pytest.mark.timeout(180)
def test_a_replica_that_is_stopped_most_of_the_time(tmp_path: Path) -> None:
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        start_replicas=1,
        max_steps=100_000,
        model__hidden_size=192,
        model__intermediate_size=512,
        batch__global_samples=2 * NUM_MICROBATCHES,
        evaluation__every_steps=0,
        recovery__policy="none",
    )
    with swarm(tmp_path) as made:
        invite = made.running(made.start(path, "--stage", "0")).invite
        for name in ("steady", "slow"):
            made.running(made.join(invite, "--stage", "1", name=name))
        slow = made.nodes[2]
        wait_for("both have their share", lambda: steady(made, slow), LIMIT_S, made.situation)
        with DutyCycle(slow.send) as cycle:
            began = max(hands(made, made.nodes[1]))
            wait_for("some steps", lambda: max(hands(made, slow)) >= began + 8, LIMIT_S, made.situation)
        slowed = {step: hand for step, hand in hands(made, slow).items() if step > began}
        print(f"stopped {cycle.num_stops} times; microbatches by step: {slowed}")
        assert min(hand for step, hand in slowed.items() if step <= began + 3) <= LITTLE, slowed
        wait_for("it has its share back", lambda: steady(made, slow), LIMIT_S, made.situation)
        assert made.events(made.nodes[0], "lost") == []
        assert end_all_at_once(made.nodes) == [0, 0, 0]
        logs = {made.running(node).peer: made.events(node) for node in made.nodes}
        assert_counted_once(logs, NUM_MICROBATCHES)
