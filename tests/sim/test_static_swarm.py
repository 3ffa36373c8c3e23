"""Static swarms under one crash, freeze or restart each, with duplicated and overtaken messages throughout.

Each seed is another swarm, link by link and fault by fault; `node.sim.invariants` is checked after every event and
`node.sim.trial` says what must come of each fault.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from node.sim.machine import BrokenError
from node.sim.scenario import STEPS_BEFORE, make_scenario
from node.sim.trial import Trial, replay_command, run_seed
from protocol.plain import to_plain

SEEDS = range(110)
MORE_SEEDS = range(1000, 1100)
MAX_TOLD = 5


def live_through(seeds: range, tally: Counter[str]) -> Counter[str]:
    """Run them all; fail at the end with what to type for each that broke."""
    mine: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        try:
            outcome = run_seed(seed)
        except BrokenError as error:
            broken.append(f"{error}\n  {'; '.join(error.__notes__)}")
            continue
        mine.update(seeds=1, commits=outcome.commits, events=outcome.events)
        mine.update({f"fired {outcome.fired}": 1, f"then {outcome.verdict}": 1})
        mine.update(outcome.counts)
    tally.update(mine)
    told = "\n".join(broken[:MAX_TOLD])
    assert not broken, f"{len(broken)} of {len(seeds)} seeds broke:\n{told}"
    return mine


@pytest.mark.timeout(150)
def test_static_swarms(tally: Counter[str]) -> None:
    counts = live_through(SEEDS, tally)
    assert counts["commits"] >= STEPS_BEFORE * len(SEEDS)
    for what in ("fired crash", "fired freeze", "fired restart", "duplicates", "reorders"):
        assert counts[what] >= 10, f"{what} happened {counts[what]} times only"
    for what in ("then went on", "then waits for stage", "then waits for coordinator"):
        assert counts[what], f"no seed after which the swarm {what.removeprefix('then ')}"
    for what in ("sums", "shares", "states", "quorums"):
        assert counts[what] > counts["commits"] // 2, f"the invariants hardly looked at {what}"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_more_static_swarms(tally: Counter[str]) -> None:
    counts = live_through(MORE_SEEDS, tally)
    assert counts["then resumed"], (
        "no seed in which the last holder of a stage was frozen, given up, and came back with its state"
    )


def test_the_seed_is_all_that_a_run_depends_on() -> None:
    first, again = run_seed(7), run_seed(7)
    assert first == again
    assert run_seed(8) != first


def test_the_seeds_are_as_different_as_they_should_be() -> None:
    scenarios = [make_scenario(seed) for seed in SEEDS]
    sizes = {len(s.nodes) for s in scenarios}
    assert min(sizes) <= 4
    assert max(sizes) == 12
    assert {s.manifest.num_block_stages for s in scenarios} == {2, 3, 4, 5}
    assert {s.manifest.recovery.policy for s in scenarios} == {"none", "checkfree", "checkfree_plus"}
    assert {s.manifest.start_replicas for s in scenarios} >= {1, 2}
    assert len({s.strike.phase for s in scenarios}) >= 8


def test_messages_are_plain_data() -> None:
    """What goes over the simulated wire serialises to JSON, numbers included."""
    sent: Counter[str] = Counter()

    def to_json_and_on(message: Any) -> Any:
        assert json.loads(json.dumps(to_plain(message), allow_nan=False))
        sent[type(message).__name__] += 1
        return message

    trial = Trial(make_scenario(2), wire=to_json_and_on)
    trial.run()
    assert {"Propose", "Decide", "OpenStep", "PipeHeader", "ReduceReady"} <= set(sent)


def test_a_broken_seed_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.proposal.is_quorum", lambda *_: True)
    with pytest.raises(BrokenError) as caught:
        run_seed(3)
    assert replay_command(3) in "\n".join(caught.value.__notes__)
