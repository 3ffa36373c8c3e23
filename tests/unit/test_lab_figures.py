"""The lab's arithmetic on curves whose answer is known, and the hours derived from it against the paper's."""

from __future__ import annotations

import math

import pytest

from node.lab.derived import (
    RATES,
    REDUNDANT_FACTOR,
    Run,
    executed_steps,
    failure_rate,
    hours,
    rollback_loss,
    rollback_steps,
)
from node.lab.figures import Mean, behind, excess, fitted, mean_of, middle_of_tail, over_cells
from node.lab.rows import Fork, arithmetic_rows, hours_of, row_of, swap_tax
from node.lab.setup import Setup

SETUP = Setup(seeds=(0, 1), warm_steps=(100, 200), fork_steps=40)


def curve(step: float, seed: int = 0) -> float:
    """Of a run that learns by the logarithm; seeds differ by a constant."""
    return 7.0 - 0.8 * math.log(step) + 0.01 * seed


def run(seed: int = 0, delay: float = 1.0) -> list[float]:
    """`delay`: how many times as many steps are needed."""
    return [curve(step / delay, seed) for step in range(1, SETUP.steps + 1)]


RUNS = {(seed, swapped): run(seed, 1.25 if swapped else 1.0) for seed in SETUP.seeds for swapped in (False, True)}


def fork(seed: int, warm: int, stage: int, late: float) -> Fork:
    """One that is `late` steps behind the run all the time."""
    steps = range(warm + 1, warm + SETUP.fork_steps + 1)
    return Fork(seed, warm, stage, [curve(step - late, seed) for step in steps])


def test_a_mean_has_the_textbook_standard_error() -> None:
    assert mean_of([1.0, 2.0, 3.0, 6.0]) == Mean(3.0, pytest.approx(math.sqrt(14 / 12)), 4)
    assert mean_of([5.0]) == Mean(5.0, None, 1)
    assert mean_of([2.0, 2.0]) == Mean(2.0, 0.0, 2)


def test_excess_is_summed_and_behind_is_the_mean_over_the_last_quarter() -> None:
    run, other = [1.0] * 8, [3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.5, 2.5]
    assert excess(other, run) == 5.0
    assert behind(other, run) == 1.0
    assert behind(run, run) == excess(run, run) == 0.0
    assert middle_of_tail(100, 8) == 107.5
    with pytest.raises(ValueError, match="longer"):
        excess(other[1:], run)


def test_a_curve_is_found_again_and_tells_how_far_back_a_loss_was_passed() -> None:
    found = fitted([run(0), run(1)], 200)
    assert (found.a, found.b) == (pytest.approx(7.005), pytest.approx(0.8))
    assert found.lost(200.0, curve(150) - curve(200)) == pytest.approx(50.0)
    assert found.lost(200.0, curve(220) - curve(200)) == pytest.approx(-20.0)
    assert found.lost(200.0, 0.0) == 0.0
    assert (found.lost(200.0, 1e9), found.lost(200.0, -1e9)) == (199.0, -200.0), "no more than there was"


def test_a_curve_that_does_not_fall_costs_all_there_was() -> None:
    rising = fitted([[1.0 + 0.001 * step for step in range(200)]], 200)
    assert (rising.lost(100.0, 0.01), rising.lost(100.0, -0.01)) == (99.0, -100.0)


@pytest.mark.parametrize("late", [0.0, 7.0, -3.0])
def test_a_fork_that_is_so_many_steps_late_has_lost_so_many(late: float) -> None:
    forks = [fork(seed, warm, stage, late) for seed in (0, 1) for warm in (100, 200) for stage in (1, 2)]
    row = row_of("any", forks, RUNS, False, SETUP)
    assert (row.lost.mean, row.lost.n) == (pytest.approx(late, rel=0.02, abs=1e-9), 4)
    assert row.excess
    assert row.excess.mean * late >= 0
    assert (row.excess.mean == 0.0) == (late == 0.0)


def test_rows_are_told_apart_by_stage_and_warm_step() -> None:
    late = {(100, 1): 2.0, (100, 2): 4.0, (200, 1): 6.0, (200, 2): 12.0}
    forks = [fork(seed, warm, stage, steps) for seed in (0, 1) for (warm, stage), steps in late.items()]
    row = row_of("any", forks, RUNS, False, SETUP)
    assert row.lost.mean == pytest.approx(6.0, rel=0.02)
    assert {stage: mean.mean for stage, mean in row.by_stage.items()} == pytest.approx({1: 4.0, 2: 8.0}, rel=0.02)
    assert {warm: mean.mean for warm, mean in row.by_warm.items()} == pytest.approx({100: 3.0, 200: 9.0}, rel=0.03)
    assert row.by_warm[100].n == 2


def test_cells_count_and_not_stages() -> None:
    values = {((0, 100), 1): 1.0, ((0, 100), 2): 3.0, ((1, 100), 1): 4.0}
    assert over_cells(values) == mean_of([2.0, 4.0])


def test_the_tax_of_swapping_is_found_again() -> None:
    tax = swap_tax(RUNS, SETUP)
    assert (tax.mean, tax.stderr, tax.n) == (pytest.approx(0.25), pytest.approx(0.0, abs=1e-9), 2)
    level = {key: [5.0 + swapped] * SETUP.steps for key, swapped in ((key, key[1]) for key in RUNS)}
    assert swap_tax(level, SETUP).mean > 100, "runs that learn nothing tell nothing, and nothing breaks"


# ---- derived ----


def test_the_papers_failures_and_rollbacks() -> None:
    """A failure every 186, 84, 42 steps; 10,000 useful steps at 10 % with a checkpoint every 10 and every 100."""
    every = {name: 1 / failure_rate(p, 6) for name, p in RATES.items()}
    assert [round(every[name]) for name in ("5", "10", "16")] == [186, 84, 42]
    rate = failure_rate(RATES["10"], 6)
    assert rollback_steps(10_000, rate, 10) == pytest.approx(10_689, abs=2)
    assert rollback_steps(10_000, rate, 100) == pytest.approx(19_465, abs=5)
    assert rollback_steps(10_000, 1e-9, 100) == pytest.approx(10_000, rel=1e-6)
    assert rollback_steps(10_000, 0.0, 100) == 10_000


def test_a_rollback_costs_what_is_known_where_failures_are_rare() -> None:
    rate = 1e-7
    for every in (10, 100):
        lost = (rollback_steps(1.0, rate, every) - 1.0) / rate
        assert lost == pytest.approx(rollback_loss(every) + 1, rel=1e-2), "the failed step, and those before it"


def test_hours_of_the_papers_run() -> None:
    run = Run()
    assert hours(run, "checkfree", 0.0, 99.0) == pytest.approx(253.6, abs=0.1)
    assert hours(run, "redundant", 0.5, 0.0) == pytest.approx(419.4, abs=0.1)
    assert hours(Run(redundant_factor=1.2), "redundant", 0.5, 0.0) == pytest.approx(1.2 * 253.6, abs=0.1)
    assert hours(run, "checkfree_plus", 0.0, 0.0, tax=0.25) == pytest.approx(1.25 * 253.6, abs=0.1)
    assert REDUNDANT_FACTOR > 1
    assert hours(run, "copy", 0.01, 49.0) == pytest.approx(2 * 253.6, abs=0.1), "half of all steps are lost"
    assert hours(run, "copy", 0.01, 99.0) == math.inf
    assert executed_steps(100.0, 0.0, 1e9) == 100.0
    assert rollback_steps(100.0, 0.9, 1000) == math.inf


def test_every_policy_gets_hours_at_every_rate() -> None:
    rows = [row_of("copy", [fork(0, 100, 1, 3.0)], RUNS, False, SETUP), *arithmetic_rows()]
    told = hours_of(rows, Mean(0.3, None, 1), Run())
    assert list(told) == ["copy", "checkpoint_10", "checkpoint_100", "redundant"]
    for by_rate in told.values():
        assert list(by_rate) == ["0", *RATES]
        assert list(by_rate.values()) == sorted(by_rate.values())
    assert [row.lost.mean for row in rows[1:]] == [4.5, 49.5, 0.0]
