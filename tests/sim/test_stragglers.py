"""A node computes five times slower for a while: within two steps it has little work, and later it has its share again.

It is believed to need half of what its last report says and half of what was believed before: after two steps of 5 s where
it was 1 s, 4 s. Of n microbatches it then has its part by these speeds, and at most one more, for they are whole. So a step
takes at most what it takes the others alone, times the dead band of the shares, and one microbatch at the slow pace; between
two replicas not even that. The step in which it happens takes as long as what the slow one has already.
"""

from __future__ import annotations

import pytest

from node.sim.straggling import Straggling, Team
from protocol.speeds import DEADBAND

NUM, FACTOR = 16, 5.0
BEFORE, SLOW_STEPS, AFTER = 3, 5, 5
SLOW = "S1b"


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
def test_it_loses_work_within_two_steps_and_has_it_back(replicas: int) -> None:
    fewer = Straggling(Team((replicas, replicas - 1, replicas), NUM))
    fewer.steps(3)
    alone_s = max(fewer.seconds[1:])
    world = Straggling(Team((replicas, replicas, replicas), NUM))
    world.steps(BEFORE)
    world.node(SLOW).slowness = FACTOR
    world.steps(SLOW_STEPS)
    assert world.node(SLOW).num_slowed > 0
    world.node(SLOW).slowness = 1.0
    world.steps(AFTER)
    hands, took = [hand[SLOW] for hand in world.hands(1)], world.seconds
    fair = hands[BEFORE - 1]
    assert fair in (NUM // replicas, NUM // replicas + 1)
    slow = hands[BEFORE + 2 : BEFORE + SLOW_STEPS]
    assert len(set(slow)) == 1, f"no flapping: {hands}"
    assert 1 <= slow[0] <= NUM / 4 / (replicas - 1 + 1 / 4) + 1, hands
    assert hands[BEFORE + SLOW_STEPS + 3] >= fair - 1, f"three steps after it is fast again: {hands}"
    one_more_s = FACTOR * 3.0 * 1.1 if replicas > 2 else 0.0
    assert max(took[BEFORE + 2 : BEFORE + SLOW_STEPS]) <= DEADBAND * alone_s + one_more_s, (took, alone_s)
    assert took[BEFORE] <= FACTOR * max(took[1:BEFORE]), "the step in which it happens"
    assert took[-1] <= 1.1 * max(took[1:BEFORE])


def test_noise_of_a_tenth_moves_no_work() -> None:
    world = Straggling(Team((2, 2, 2), NUM))
    world.steps(12)
    assert {tuple(sorted(hand.items())) for hand in world.hands(1)[3:]} == {(("S1a", NUM // 2), (SLOW, NUM // 2))}
