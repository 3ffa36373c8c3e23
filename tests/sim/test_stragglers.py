"""A node turns slow in the middle of a run, and fast again: what work it has, and how long steps take, in simulated swarms.

Bounds, with n microbatches and r replicas of a stage. From the step after it turned slow on, at the latest from the second, it
has what its capacity is, in whole microbatches: at most (n + r - 1) v / sum(v) by the speeds v, within their dead band, for
each goes to whom it would be done with first. So a step takes at most 1.25 times (the dead band again) what it takes the others
alone, whatever the number of replicas. The step in which it happens: two slow computations, which show it, its answer, and what
all of it takes the others; or, where what it has left is not worth that, `WORTH` times that and a lapse.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from node.sim.straggling import Straggling, Team
from protocol.speeds import DEADBAND, TRIAL_PATIENCE
from protocol.stragglers import WORTH

NUM, FACTOR = 16, 5.0
BEFORE, SLOW_STEPS = 5, 5
SLOW = "S1b"
LAPSE_S, ANSWER_S = 3.0, 1.0
FORWARD, BACKWARD = 1.0, 2.0
"""Units that a computation takes, up to a tenth more or less."""


@lru_cache
def alone_s(replicas: tuple[int, ...], stage: int = 1, unit_s: float = 1.0) -> float:
    """A step of the others, without one replica of the stage."""
    fewer = Straggling(Team([count - (at == stage) for at, count in enumerate(replicas)], NUM, unit_s))
    fewer.steps(4)
    return max(fewer.seconds[1:])


def most(replicas: int, factor: float) -> int:
    """Microbatches that the slow one may have."""
    return int((NUM + replicas - 1) / factor / (replicas - 1 + 1 / factor) * DEADBAND)


def lived(team: Team, slow: str = SLOW, factor: float = FACTOR, part: float = 0.0, steps_after: int = 4) -> Straggling:
    """After `part` of a step a node is slow for some steps, then fast again."""
    world = Straggling(team)
    world.steps(BEFORE)
    at = world.world.now + part * world.seconds[-1]
    world.world.run(lambda: world.world.now >= at, 1e3)
    world.node(slow).slowness = factor
    world.steps(SLOW_STEPS)
    assert world.node(slow).num_slowed > 0
    world.node(slow).slowness = 1.0
    world.steps(steps_after)
    return world


@pytest.mark.parametrize("replicas", [(2, 2, 2), pytest.param((3, 3, 3), marks=pytest.mark.full)])
def test_it_loses_work_at_once_and_has_it_back(replicas: tuple[int, ...]) -> None:
    world = lived(Team(replicas, NUM))
    hands, took = [hand.get(SLOW, 0) for hand in world.hands(1)], world.seconds
    fair, alone = NUM // replicas[1], alone_s(replicas)
    assert all(hand in (fair, fair + 1) for hand in hands[:BEFORE]), hands
    assert took[BEFORE] <= 2 * FACTOR * BACKWARD * 1.1 + ANSWER_S + DEADBAND * alone, "the step in which it happens"
    assert len(world.told("rerouted")) == 1
    assert not world.told("voided")
    slow = hands[BEFORE + 1 : BEFORE + SLOW_STEPS]
    assert len(set(slow)) == 1, f"flapping: {hands}"
    assert 1 <= slow[0] <= most(replicas[1], FACTOR), hands
    assert max(took[BEFORE + 1 : BEFORE + SLOW_STEPS]) <= DEADBAND * alone, (took, alone)
    assert min(hands[BEFORE + SLOW_STEPS + 2 :]) >= fair, f"two steps in which it was fast, and no more: {hands}"
    assert max(took[BEFORE + SLOW_STEPS + 2 :]) <= 1.1 * max(took[1:BEFORE])


@pytest.mark.full
@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("slow", [SLOW, "S0b"])
def test_whenever_it_happens_and_where_microbatches_are_admitted_too(slow: str, part: float) -> None:
    """No work can be taken from a replica that admits microbatches: where it is worth it, the step is begun again without."""
    stage = int(slow[1])
    world = lived(Team((2, 2, 2), NUM), slow, part=part, steps_after=5)
    alone, took = alone_s((2, 2, 2), stage), world.seconds
    whole_s = 1.1 * (took[BEFORE - 1] + WORTH * (alone + LAPSE_S))
    assert max(took[BEFORE : BEFORE + 2]) <= whole_s, (took, alone, world.told("voided"), world.told("rerouted"))
    assert max(took[BEFORE + 2 : BEFORE + SLOW_STEPS]) <= DEADBAND * alone, (took, alone)
    hands = [hand.get(slow, 0) for hand in world.hands(stage)]
    assert max(hands[BEFORE + 2 : BEFORE + SLOW_STEPS]) <= most(2, FACTOR), f"within two steps: {hands}"
    assert min(hands[BEFORE + SLOW_STEPS + 3 :]) >= NUM // 2, hands
    assert not world.told("lost") + world.told("left")


@pytest.mark.full
def test_fifty_times_slower_it_has_none_and_is_tried_from_time_to_time() -> None:
    """At the latest after ten times what one of its microbatches took."""
    unit_s, factor = 0.05, 50.0
    world = lived(Team((2, 2, 2), NUM, unit_s), factor=factor, steps_after=0)
    hands, took, alone = [hand.get(SLOW, 0) for hand in world.hands(1)], world.seconds, alone_s((2, 2, 2), unit_s=unit_s)
    assert not any(hands[BEFORE + 1 :]), hands
    assert max(took[BEFORE + 2 :]) <= DEADBAND * max(alone, factor * unit_s), "or its update, which all wait for"
    began = world.world.now
    while world.hands(1)[-1].get(SLOW, 0) < NUM // 2:
        world.steps(1)
    assert world.world.now - began <= 1.2 * TRIAL_PATIENCE * factor * (FORWARD + BACKWARD) * unit_s + 3 * alone
    world.steps(3)
    assert {hand.get(SLOW, 0) for hand in world.hands(1)[-3:]} == {NUM // 2}


@pytest.mark.full
def test_noise_moves_no_work() -> None:
    """Computations vary by a tenth all the time."""
    world = Straggling(Team((2, 3, 2), NUM, 0.2))
    world.steps(15)
    assert {tuple(sorted(hand.items())) for hand in world.hands(1)[5:]} == {(("S1a", 6), ("S1b", 5), ("S1c", 5))}
    assert not world.told("voided") + world.told("rerouted")
