"""Who is slow gets less, who is fast again gets it back: the rules alone. Whole swarms: tests/sim/test_stragglers.py."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.assignment import quotas
from protocol.ids import Member
from protocol.messages import Stalled, VoidStep
from protocol.pace import TELL_FACTOR, Pace
from protocol.records import Seating
from protocol.reroute import MAX_AMENDMENTS
from protocol.revoking import Counted, Revoke, Revoked
from protocol.speeds import DEADBAND, JUMP, TRIAL_PATIENCE, Speeds
from protocol.stragglers import WORTH
from tests.tools.core import BALLOT, notes, sent
from tests.tools.lead import Lead

NUM = 16


class Stage:
    """Replicas of one stage that report once a step; `pace[i]`: seconds of a microbatch."""

    def __init__(self, paces: list[float], num_microbatches: int = NUM) -> None:
        self.pace, self.num, self.now = paces, num_microbatches, 0.0
        self.speeds = Speeds()
        self.row = [Seating(1, Member(f"r{i}", 1), "active") for i in range(len(paces))]

    def step(self, noise: Random | None = None) -> list[int]:
        """One step; returns how the next one is dealt."""
        counts = self.speeds.deal(self.row, self.num, self.now)
        self.now += max(n * pace for n, pace in zip(counts, self.pace, strict=True))
        for seating, count, pace in zip(self.row, counts, self.pace, strict=True):
            factor = noise.uniform(0.9, 1.1) if noise else 1.0
            self.speeds.measured(1, seating.member, pace * factor if count else 0.0)
        return counts

    def steps(self, count: int) -> list[list[int]]:
        return [self.step() for _ in range(count)]


@given(st.integers(1, 60), st.lists(st.floats(0.01, 10), min_size=1, max_size=6))
def test_nobody_makes_a_stage_slower_than_the_others_alone_are(count: int, speeds: list[float]) -> None:
    """The bound: as early as it can be with whole microbatches; so never later than without any one of them."""

    def ends(speeds: list[float]) -> float:
        return max(n / speed for n, speed in zip(quotas(count, speeds), speeds, strict=True))

    assert sum(quotas(count, speeds)) == count
    for gone in range(len(speeds)):
        others = speeds[:gone] + speeds[gone + 1 :]
        assert not others or ends(speeds) <= ends(others) * (1 + 1e-9)
    most = (count + len(speeds) - 1) / sum(speeds) * (1 + 1e-9)
    assert all(n <= most * speed for n, speed in zip(quotas(count, speeds), speeds, strict=True)), "capacity, rounded up"


def test_who_may_get_nothing_gets_nothing() -> None:
    assert quotas(5, [0.0, 1.0, 0.0]) == [0, 5, 0]


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("factor", [2.0, 5.0, 20.0, 50.0])
def test_a_slow_replica_loses_at_the_next_step_and_has_its_share_back_two_after_it_is_fast(others: int, factor: float) -> None:
    stage = Stage([1.0] * (others + 1))
    fair = stage.steps(3)[-1]
    stage.pace[-1] = factor
    assert stage.step() == fair, "nobody can know before"
    counts = stage.steps(5)
    assert all(c == counts[0] for c in counts), "no flapping"
    assert counts[0][-1] <= (NUM + others) / factor / (others + 1 / factor)
    stage.pace[-1] = 1.0
    if counts[0][-1]:
        assert stage.steps(3) == [counts[0], counts[0], fair]


def test_who_gets_nothing_is_tried_again_and_is_back_three_steps_later() -> None:
    stage = Stage([1.0, 50.0])
    stage.steps(2)
    assert stage.step() == [NUM, 0]
    stage.pace[1] = 1.0
    began, counts = stage.now, stage.step()
    while counts == [NUM, 0]:
        counts = stage.step()
    assert stage.now - began <= TRIAL_PATIENCE * 50.0 + 2 * NUM
    assert counts == [NUM - 1, 1]
    assert stage.steps(2) == [[NUM - 1, 1], [NUM / 2, NUM / 2]]


def test_trials_that_show_nothing_new_cost_a_tenth_of_the_time() -> None:
    stage = Stage([1.0, 50.0])
    stage.steps(3)
    began = stage.now
    counts = stage.steps(300)
    tried = sum(c[1] for c in counts)
    assert tried >= 3
    assert tried * 50.0 <= (stage.now - began) * 0.11


def test_noise_of_a_tenth_moves_nothing() -> None:
    """1.1 / 0.9 is within the dead band, and so no report is a jump."""
    assert 1.1 / 0.9 < DEADBAND < JUMP
    for seed in range(20):
        noise, stage = Random(seed), Stage([1.0, 1.0, 5.0])
        stage.steps(2)
        counts = {tuple(stage.step(noise)) for _ in range(50)}
        assert len(counts) == 1, seed


def test_one_fast_step_between_slow_ones_brings_nothing_back() -> None:
    stage = Stage([1.0, 5.0])
    counts = stage.steps(2)[-1]
    for pace in (1.0, 5.0, 1.0, 5.0, 5.0, 1.0, 5.0):
        stage.pace[1] = pace
        assert stage.step() == counts


# ---- what a node says of itself in the middle of a step ----


def worked(pace: Pace, *seconds: float) -> None:
    """Forward and backward passes of stage 1 by turns."""
    for i, took in enumerate(seconds):
        pace.ended(1, ("forward", "backward")[i % 2], took)


def used_to(*seconds: float) -> Pace:
    pace = Pace()
    worked(pace, *seconds)
    pace.opened()
    return pace


def test_a_node_that_becomes_slow_says_so_after_two_computations_and_again_when_it_is_slower_still() -> None:
    pace = used_to(1.0, 2.0)
    worked(pace, 5.0)
    assert pace.news(1) == 0.0, "once may be chance"
    worked(pace, 6.0)
    assert pace.news(1) == pytest.approx(15.0, rel=0.05)
    worked(pace, 5.0, 10.0)
    assert pace.news(1) == 0.0, "told already"
    worked(pace, 6.0 * TELL_FACTOR, 12.0 * TELL_FACTOR)
    assert pace.news(1) == pytest.approx(18.0 * TELL_FACTOR, rel=0.1)


def test_noise_single_outliers_and_other_stages_are_no_news() -> None:
    pace = used_to(1.0, 2.0)
    for _ in range(20):
        worked(pace, 1.2, 50.0, 1.1, 2.2)
        assert pace.news(1) == 0.0
    pace.ended(2, "forward", 90.0)
    pace.ended(2, "forward", 90.0)
    assert pace.news(1) == pace.news(2) == 0.0


def test_slow_for_long_is_told_once_in_each_attempt_and_usual_some_day() -> None:
    """Whoever coordinates by then has to hear of it."""
    pace, told = used_to(1.0, 2.0), []
    for _ in range(50):
        pace.opened()
        worked(pace, 5.0, 10.0, 5.0, 10.0)
        told.append(pace.news(1))
    assert min(told[:3]) >= 10.0
    assert not any(told[-3:])


# ---- what the coordinator makes of it ----


def measured(*others: str) -> Lead:
    """`lead` at stage 0, the others at stages 1, 2, 1, 2; all are known to need 0.1 s for a microbatch."""
    c = Lead(others=others)
    for seating in c.state.chain.seatings:
        c.coordinator.members.speeds.measured(seating.stage, seating.member, 0.1)
    return c


LEAST_S = WORTH * (4 * 0.1 + 3.0)
"""The rest of two microbatches of which b2 is relieved: more than all four take the others, and a lapse."""


def test_a_slow_replica_is_relieved_of_its_rest_and_has_less_in_the_next_attempt() -> None:
    c = measured("a", "b", "a2", "b2")
    assert not c.ready("b2", 2, microbatches="0", seconds_per_microbatch=0.9 * LEAST_S / 2)
    assert sent(c.ready("b2", 2, microbatches="0", seconds_per_microbatch=1.1 * LEAST_S / 2), Revoke, "b2")
    assert not c.ready("b2", 2, microbatches="0", seconds_per_microbatch=9.0), "once is enough"
    out = c.tell(Revoked(BALLOT, 1, 1, 0, (Counted(2, "0"),)), "b2")
    (note,) = notes(out, "rerouted")
    assert (note["peer"], note["excluded"]) == ("b2", False)
    assert "for its rest of stage 2" in note["reason"]
    assert len(c.coordinator.ledger.owned(2, "b")) == 4
    c.tell(Stalled(BALLOT, 1, 1, 0, "a", "broken", False), "b")
    c.pass_time(2.0)
    assert c.coordinator.ledger.attempt == 2
    assert [len(c.coordinator.ledger.owned(2, peer)) for peer in ("b", "b2")] == [4, 0]


def test_a_slow_replica_that_does_not_answer_has_as_long_as_one_that_is_silent() -> None:
    c = measured("a", "b", "a2", "b2")
    c.ready("b2", 2, microbatches="0", seconds_per_microbatch=LEAST_S)
    assert not notes(c.pass_time(4.5), "rerouted")
    assert [n["excluded"] for n in notes(c.pass_time(1.0), "rerouted")] == [True]


def test_the_step_is_begun_again_where_work_cannot_change_hands() -> None:
    c = measured("a", "b", "a2", "b2", "a3")
    for peer in ("b", "b2"):
        c.ready(peer, 2)
    c.coordinator.ledger.amendment = MAX_AMENDMENTS
    assert sent(c.ready("a2", 1, microbatches="0", seconds_per_microbatch=9.0), VoidStep)


def test_nobody_is_relieved_where_nobody_else_is_there() -> None:
    c = measured("a", "b")
    assert not c.ready("a", 1, microbatches="0", seconds_per_microbatch=1e9)
    assert not c.ready("b", 2, microbatches="7", seconds_per_microbatch=1e9)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_what_is_no_pace_moves_nothing(seconds: float) -> None:
    c = measured("a", "b", "a2", "b2")
    assert not sent(c.ready("b2", 2, microbatches="0", seconds_per_microbatch=seconds), Revoke)
    assert c.coordinator.members.speeds.speed(2, Member("b2", 1)) == pytest.approx(10.0)
