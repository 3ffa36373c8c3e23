"""What is counted from event logs finds what must not be. The schedule of a chaos run comes from its seed alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.chaos.schedule import DEPARTURES, GAP_S, KINDS, LAST_S, plan
from tests.tools import tally
from tests.tools.tally import Events

NUM_MICROBATCHES = 4


def log_of(microbatches: list[int], credited: dict[str, str], step: int = 1) -> Events:
    """A node of stage 1 in one step. An earlier attempt was voided, and does not count."""
    where = {"stage": 1, "step": step}
    voided = [{"type": "accumulated", "t": 0.5, **where, "attempt": 1, "microbatch": m} for m in (0, 1)]
    noted = [{"type": "accumulated", "t": 1.0, **where, "attempt": 2, "microbatch": m} for m in microbatches]
    ends: Events = [
        {"type": "reduced", "t": 1.5, **where, "attempt": 2, "digest": "sum"},
        {"type": "decided", "t": 1.9, "parent": "seed", "record": f"commit {step}", "step": step},
        {"type": "loss", "t": 1.9, "step": step, "value": 3.5, "tokens": 8},
        {"type": "committed", "t": 2.0, **where, "state_id": f"state {step}", "digest": "same", "contributors": credited},
    ]
    return [*voided, *noted, *ends]


def two(**changes: Any) -> dict[str, Events]:
    """The logs of a step that two share; `changes` to the last line of `b`."""
    credited = {"a": "3", "b": "c"}
    logs = {"a": log_of([0, 1], credited), "b": log_of([2, 3], credited)}
    logs["b"][-1] |= changes
    return logs


def test_all_is_well() -> None:
    found = tally.count_microbatches(two(), NUM_MICROBATCHES)
    assert (found.lost, found.doubled, found.commits) == ([], [], Counter({1: 2}))
    assert tally.two_children(two()) == []
    assert tally.digests(two()) == ({"state 1": "same"}, [])
    assert tally.losses(two()) == ({1: 3.5}, [])


@pytest.mark.parametrize(
    ("credited", "lost", "doubled"),
    [({"a": "3", "b": "8"}, 1, 1), ({"a": "7", "b": "c"}, 1, 1), ({"a": "3", "c": "c"}, 1, 0)],
    ids=["nobody has 2, which b noted", "a and b have 2, which a never noted", "c has no log"],
)
def test_credit_that_is_wrong(credited: dict[str, str], lost: int, doubled: int) -> None:
    found = tally.count_microbatches(two(contributors=credited), NUM_MICROBATCHES)
    assert (len(found.lost), len(found.doubled)) == (lost, doubled), found


def test_a_note_that_is_twice_there() -> None:
    logs = two()
    logs["a"].insert(2, {"type": "accumulated", "t": 1.0, "stage": 1, "step": 1, "attempt": 2, "microbatch": 0})
    found = tally.count_microbatches(logs, NUM_MICROBATCHES)
    assert found.lost == []
    assert "step 1, stage 1, as noted by a: [0]" in found.doubled


def test_a_log_without_room() -> None:
    logs = two()
    logs["b"] = logs["b"][-1:]
    assert tally.count_microbatches(logs, NUM_MICROBATCHES).lost != []
    assert tally.count_microbatches(logs, NUM_MICROBATCHES, {"b": [(0.9, 1.2)]}).lost == []
    assert tally.count_microbatches(logs, NUM_MICROBATCHES, {"b": [(2.1, 3.0)], "a": [(0.0, 9.0)]}).lost != []


def test_histories_that_part() -> None:
    logs = two(digest="another")
    logs["b"][-3] |= {"record": "another"}
    logs["b"][-2] |= {"value": 3.25}
    assert len(tally.two_children(logs)) == len(tally.digests(logs)[1]) == len(tally.losses(logs)[1]) == 1


def test_the_schedule_comes_from_the_seed() -> None:
    assert plan(1, 600) == plan(1, 600) != plan(2, 600)
    faults = plan(1, 600)
    count = Counter(fault.kind for fault in faults)
    assert count.keys() == KINDS.keys()
    assert max(count.values()) - min(count.values()) <= 1
    assert {fault.back for fault in faults if fault.kind in DEPARTURES} == {"same_identity", "new_identity"}
    gaps = [b.at_s - a.at_s for a, b in pairwise(faults)]
    assert GAP_S[0] - 0.1 <= min(gaps) <= max(gaps) <= GAP_S[1] + 0.1
    assert faults[-1].at_s < 600 - LAST_S
