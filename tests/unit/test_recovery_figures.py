"""From event logs to the figures of `make bench-recovery`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.bench_recovery.figures import Seen, figures_of, goals, moments_of

KILLED_AT = 1000.0


def event(type_: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"type": type_, "wall": KILLED_AT + at} | fields


LOSSES = [event("loss", at, step=step) for step, at in ((1, -20.0), (2, -9.0), (3, -6.0), (4, -4.0), (5, -1.0), (6, 17.5))]
LEAD = [
    *LOSSES,
    event("committed", -1.0, stage=0),
    event("suspected", 3.1, peer="p"),
    event("lost", 3.2, stage=2),
    event("rebuild", 3.4, stage=2),
]
NEWCOMER = [
    *[event("loss", -0.9, step=step) for step in range(1, 6)],
    event("transfer", 3.3, what="stage 0"),
    event("granted", 3.5, stage=2),
    event("transfer", 13.5, what="stage 2"),
    event("committed", 18.0, stage=2),
]
HOLDER = [event("committed", 0.01, stage=2)]
SEEN = Seen(
    lost=2,
    heartbeat_s=1.0,
    lapse_s=3.0,
    killed_at=KILLED_AT,
    holder="s2",
    newcomer="new",
    logs={"s0": LEAD, "s2": HOLDER, "new": NEWCOMER},
    stage_bytes=100_000_000,
    link_rate=12.5e6,
    link_mbit=96.0,
    downloaded=104_000_000,
)


def test_figures_are_what_the_logs_say() -> None:
    found = figures_of(SEEN)
    assert found.detect_s == pytest.approx(3.2)
    assert found.step_s == pytest.approx(3.0), "the median, without the first step"
    assert found.kill_to_commit_s == pytest.approx(18.0), "not what the killed holder still wrote"
    assert found.transfer_s == pytest.approx(10.0)
    assert found.link_share == pytest.approx(10e6 / 12e6)
    assert found.download_over_stage == pytest.approx(1.04)


def test_goals_are_met_and_missed() -> None:
    met = {goal.name: goal.is_met for goal in goals(SEEN, figures_of(SEEN))}
    assert met == dict.fromkeys(("detect_s", "kill_to_commit_s", "link_share", "download_over_stage"), True)
    slow = replace(SEEN, downloaded=120_000_000, link_mbit=None, lapse_s=2.0)
    words = [str(goal).rpartition(" ")[2] for goal in goals(slow, figures_of(slow))]
    assert words == ["MISSED", "met", "measured", "MISSED"]
    assert goals(SEEN, figures_of(SEEN))[1].bound == pytest.approx(3.2 + 2.0 + 3.0 + 100 / (0.75 * 12.5))


def test_a_stage_that_is_promoted_has_no_transfer() -> None:
    logs = {"s0": [event("lost", 3.2, stage=2), event("promoted", 3.2, stage=2), event("committed", 5.0, stage=2), *LOSSES]}
    found = figures_of(replace(SEEN, holder="gone", logs=logs, downloaded=None))
    assert (found.transfer_s, found.link_share, found.download_over_stage) == (None, None, None)
    assert found.kill_to_commit_s == pytest.approx(5.0)


def test_what_did_not_happen_has_no_figure() -> None:
    with pytest.raises(ValueError, match="nobody noticed"):
        moments_of(replace(SEEN, logs={"s0": LOSSES}))
    with pytest.raises(ValueError, match="nothing was committed"):
        moments_of(replace(SEEN, logs={"s0": LEAD}))
    with pytest.raises(ValueError, match="no step to compare"):
        figures_of(replace(SEEN, logs={"s0": LEAD[4:], "new": NEWCOMER[5:]}))
