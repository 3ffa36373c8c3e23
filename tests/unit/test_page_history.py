"""Curves of a whole run in bounded room."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.page.history import MAX_MARKS, MAX_POINTS, Curve, History


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=300), st.sampled_from((2, 4, 10)))
def test_a_curve_keeps_its_bound_its_end_and_its_mean(values: list[float], limit: int) -> None:
    curve = Curve(limit)
    for step, value in enumerate(values, start=1):
        curve.add(step, value)
        assert len(curve.points()) <= limit
        assert curve.points()[-1][0] == step
    steps = [step for step, _ in curve.points()]
    assert steps == sorted(set(steps))
    widths = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    assert len(set(widths[:-1])) <= 1, "each is of equally many, the last of fewer"
    assert widths[-1] <= widths[0]
    mean = sum(width * value for width, (_, value) in zip(widths, curve.points(), strict=True)) / len(values)
    assert mean == pytest.approx(sum(values) / len(values))


def test_a_whole_run_fits() -> None:
    curve = Curve()
    for step in range(1, 100_001):
        curve.add(step, step)
    assert MAX_POINTS / 2 <= len(curve.points()) <= MAX_POINTS
    assert all(abs(step - value) <= 256 for step, value in curve.points())


def test_what_is_not_finite_or_is_drawn_already_is_left_out() -> None:
    curve = Curve()
    for step, value, weight in (
        (1, math.nan, 1.0),
        (2, math.inf, 1.0),
        (3, 5.0, 0.0),
        (4, 5.0, 1.0),
        (4, 6.0, 1.0),
        (3, 6.0, 1.0),
    ):
        curve.add(step, value, weight)
    assert curve.points() == [(4, 5.0)]


def test_speed_is_tokens_by_time_between_commits() -> None:
    past = History()
    for step, wall in ((1, 100.0), (2, 102.0), (3, 106.0)):
        past.note("loss", {"step": step, "value": 5.0, "tokens": 1000}, wall)
    past.note("loss", {"step": 4, "value": 5.0, "tokens": 1000}, 105.0)  # the wall clock was set back
    assert past.as_json()["tokens_per_s"] == [[2, 500.0], [3, 250.0]]
    assert past.as_json()["loss"] == [[step, 5.0] for step in (1, 2, 3, 4)]


def test_a_run_that_goes_back_is_drawn_again() -> None:
    past = History()
    for step in range(1, 8):
        past.note("loss", {"step": step, "value": 5.0, "tokens": 10}, float(step))
    past.note("rolled_back", {"epoch": 1, "from_step": 7, "step": 4, "stages": [2], "sources": []}, 8.0)
    past.note("loss", {"step": 5, "value": 4.0, "tokens": 10}, 9.0)
    told = past.as_json()
    assert told["loss"] == [[1, 5.0], [2, 5.0], [3, 5.0], [4, 5.0], [5, 4.0]]
    assert told["marks"] == [[4, "rolled_back", None]]


def test_marks_are_bounded_and_told_once() -> None:
    past = History()
    for step in range(200):
        for _ in range(2):
            past.note("rebuild", {"step": step, "stage": 2}, 1.0)
    assert past.as_json()["marks"] == [[step, "rebuild", 2] for step in range(200 - MAX_MARKS, 200)]
