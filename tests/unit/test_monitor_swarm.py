"""What is made of what nodes say: they agree, lag, disagree, lie, come and go."""

from __future__ import annotations

from typing import Any

import pytest

from node.monitor.picture import Picture, Sighting
from node.monitor.swarm import FRESH_S, MAX_REMEMBERED, Swarm, labels_of
from tests.tools.told import RUN_ID, STEP_TOKENS, lease, metrics, sighting, status

ROSTER = ((0, "aa", "active"), (1, "bb", "active"), (2, "cc", "active"), (2, "dd", "active"), (0, "bb", "passive"))
HELD = {"aa": (0,), "bb": (0, 1), "cc": (2,), "dd": (2,)}


def members(step: int = 10, at: float = 0.0, **by_peer: dict[str, Any]) -> list[Sighting]:
    """The four members, `by_peer` telling something else."""
    told = {peer: status(peer, step, ROSTER) for peer in HELD}
    for peer, changes in by_peer.items():
        told[peer] |= changes
    return [sighting(told[peer], *HELD[peer], at=at) for peer in HELD]


def test_when_all_agree_it_is_that() -> None:
    picture = Swarm(RUN_ID).look(members(), 1.0)
    assert (picture.step, picture.last_step, picture.tokens) == (10, 1000, 10 * STEP_TOKENS)
    assert (picture.loss, picture.witnesses, picture.phase) == (3.9, 4, "training")
    none = {"active": 0, "passive": 0, "learner": 0, "parked": 0}
    assert [dict(stage.replicas) for stage in picture.stages] == [
        none | {"active": 1, "passive": 1},
        none | {"active": 1},
        none | {"active": 2},
    ]
    assert not any(stage.lost for stage in picture.stages)
    assert {(node.state, node.lease) for node in picture.nodes} == {("live", "seated")}
    assert picture.roster == tuple(sorted(ROSTER))


def test_nothing_is_known_of_a_run_that_nobody_tells_of() -> None:
    picture = Swarm(RUN_ID).look([Sighting(lease("aa", 0))], 1.0)
    assert (picture.step, picture.loss, picture.tokens, picture.stages) == (None, None, None, ())
    assert [(node.state, node.lease) for node in picture.nodes] == [("unreachable", "claimed")]


@pytest.mark.parametrize("step", [2**53, 11, 0])
def test_one_of_four_that_lies_about_the_step_is_not_believed(step: int) -> None:
    lie = {"step": step, "tokens": 2**53, "loss": -1e9, "head": "lie"}
    picture = Swarm(RUN_ID).look(members(dd=lie), 1.0)
    assert (picture.step, picture.tokens, picture.loss) == (10, 10 * STEP_TOKENS, 3.9)
    assert {node.peer: node.step for node in picture.nodes} == {"aa": 10, "bb": 10, "cc": 10, "dd": step}


def test_one_that_lies_about_numbers_alone_is_outvoted_by_the_median() -> None:
    picture = Swarm(RUN_ID).look(members(aa={"tokens": 2**53, "loss": 1e9, "roster": []}), 1.0)
    assert (picture.tokens, picture.loss) == (10 * STEP_TOKENS, 3.9)
    assert picture.roster == tuple(sorted(ROSTER))


def test_who_lags_does_not_hold_back_the_step() -> None:
    swarm = Swarm(RUN_ID)
    ahead = {"step": 11, "head": "h11", "tokens": 11 * STEP_TOKENS, "loss": 3.5}
    assert swarm.look(members(aa=ahead), 1.0).step == 10, "the first to know of a commit may be wrong"
    assert swarm.look(members(aa=ahead, bb=ahead), 2.0).step == 11
    assert swarm.look(members(aa=ahead, bb=ahead), 3.0).loss == 3.5


def test_of_two_lineages_at_one_step_it_is_the_larger() -> None:
    other = {"head": "other", "loss": 1.0}
    assert Swarm(RUN_ID).look(members(dd=other), 1.0).loss == 3.9
    assert Swarm(RUN_ID).look(members(bb=other, cc=other, dd=other), 1.0).loss == 1.0


def test_strangers_with_leases_do_not_outvote_the_members() -> None:
    """Once a roster is believed; a lease costs a stranger nothing."""
    swarm = Swarm(RUN_ID)
    swarm.look(members(), 1.0)
    lies = [sighting(status(f"x{n}", 500, ((0, f"x{n}", "active"),), head="lie", tokens=7), 0, 1, 2, at=2.0) for n in range(40)]
    picture = swarm.look([*members(11, at=2.0), *lies], 2.0)
    assert (picture.step, picture.witnesses) == (11, 4)
    assert {node.lease for node in picture.nodes if node.peer.startswith("x")} == {"claimed"}
    assert {node.lease for node in picture.nodes if node.peer in HELD} == {"seated"}


def test_whom_the_members_do_not_hear_is_suspected_and_a_lost_stage_is_said() -> None:
    lapsed = {"view": [{"peer": "dd", "phase": "lapsed"}]}
    swarm = Swarm(RUN_ID)
    picture = swarm.look(members(aa=lapsed, bb=lapsed, cc={"view": [{"peer": "aa", "phase": "lapsed"}]}), 1.0)
    states = {node.peer: node.state for node in picture.nodes}
    assert states == {"aa": "suspected", "bb": "live", "cc": "live", "dd": "suspected"}
    without = [{"stage": s, "peer": p, "role": r} for s, p, r in ROSTER if s != 1]
    picture = swarm.look(members(**{peer: {"roster": without} for peer in HELD}), 2.0)
    assert [stage.lost for stage in picture.stages] == [False, True, False]


def test_what_was_told_too_long_ago_says_nothing() -> None:
    swarm = Swarm(RUN_ID)
    swarm.look(members(), 1.0)
    later = swarm.look(members(), FRESH_S + 1.0)
    assert later.step is None
    assert {node.state for node in later.nodes} == {"unreachable"}
    assert {node.step for node in later.nodes} == {None}


def test_tokens_never_fall_and_their_rate_is_that_of_the_last_minute() -> None:
    swarm = Swarm(RUN_ID)
    pictures = [swarm.look(members(step, at=float(at)), float(at)) for at, step in enumerate([10, 11, 12, 5, 12, 13])]
    told = [picture.tokens or 0 for picture in pictures]
    assert told == [step * STEP_TOKENS for step in (10, 11, 12, 12, 12, 13)]
    assert pictures[0].tokens_per_second is None, "nothing was seen to be done yet"
    assert pictures[2].tokens_per_second == STEP_TOKENS
    for at in range(6, 200):
        last = swarm.look(members(13, at=float(at)), float(at))
    assert (last.tokens_per_second, last.commit_age_s) == (0.0, 199.0 - 5.0)


def with_metrics(at: float, computed: float, slow: str = "", **changes: Any) -> list[Sighting]:
    found = []
    for peer, stages in HELD.items():
        text = metrics(computed, 0.2 if peer == slow else 0.1, **changes)
        found.append(sighting(status(peer, 10 + int(computed), ROSTER), *stages, at=at, text=text))
    return found


def test_throughput_bottleneck_and_seconds_per_step() -> None:
    """0.1 s for each pass: a block stage takes 0.2 s a microbatch, the embedding stage 0.3 s; stage 2 has two replicas."""
    swarm = Swarm(RUN_ID)
    first = swarm.look(with_metrics(0.0, 5.0), 0.0)
    assert [stage.throughput for stage in first.stages] == [None, None, None]
    assert first.bottleneck is None
    picture = swarm.look(with_metrics(5.0, 15.0), 5.0)
    assert [stage.throughput for stage in picture.stages] == pytest.approx([1 / 0.3, 1 / 0.2, 2 / 0.2])
    assert picture.bottleneck == 0
    assert [node.step_seconds for node in picture.nodes] == pytest.approx([0.5] * 4)


def test_a_node_whose_counters_fall_is_measured_anew() -> None:
    swarm = Swarm(RUN_ID)
    swarm.look(with_metrics(0.0, 50.0), 0.0)
    fallen = swarm.look(with_metrics(5.0, 1.0), 5.0)
    assert [stage.throughput for stage in fallen.stages] == [None, None, None]


def test_goodput_is_what_counts_of_what_was_computed() -> None:
    assert Swarm(RUN_ID).look(with_metrics(0.0, 5.0, counted=(8, 6)), 0.0).goodput == 0.75
    assert Swarm(RUN_ID).look(with_metrics(0.0, 5.0, counted=(0, 0)), 0.0).goodput is None
    assert Swarm(RUN_ID).look(with_metrics(0.0, 5.0, counted=(1, 2**60)), 0.0).goodput == 1.0


def recoveries(swarm: Swarm, at: float, **told: float) -> int:
    seen = [
        sighting(status(peer, 10, ROSTER), *HELD[peer], at=at, text=metrics(recoveries=count)) for peer, count in told.items()
    ]
    return swarm.look(seen, at).recoveries["recovery"]


def test_recoveries_add_up_and_stay_when_who_counted_them_goes() -> None:
    swarm = Swarm(RUN_ID)
    assert recoveries(swarm, 0.0, aa=1, bb=0, cc=0) == 1
    assert recoveries(swarm, 1.0, aa=1, bb=0, cc=0) == 1
    assert recoveries(swarm, 2.0, bb=2, cc=0) == 3
    assert recoveries(swarm, 3.0, aa=1, bb=2, cc=1) == 4, "who comes back is not counted twice"
    assert recoveries(swarm, 4.0, aa=0, bb=2, cc=1) == 4
    assert recoveries(swarm, 5.0, aa=1e300, bb=2, cc=1) < 1000, "no more than steps and stages"
    assert len(swarm._recoveries._counted) <= MAX_REMEMBERED


def test_of_what_a_stage_was_rebuilt() -> None:
    parts = [{"stage": 0, "coefficient": 0.44}, {"stage": 2, "coefficient": 0.56}]
    seat = {"stage": 1, "role": "active", "provenance": {"rung": "recovery", "step": 7, "sources": parts}}
    picture = Swarm(RUN_ID).look(members(bb={"seats": [seat]}), 1.0)
    assert [dict(stage.coefficients) for stage in picture.stages] == [{}, {0: 0.44, 2: 0.56}, {}]


def test_validation_is_the_newest_that_more_than_one_has_heard_of() -> None:
    def said(step: int, loss: float) -> dict[str, Any]:
        return {"validation": {"step": step, "loss": loss}}

    told = {"aa": said(5, 2.0), "bb": said(5, 2.0), "cc": said(10, 1.5), "dd": said(5, 2.0)}
    assert Swarm(RUN_ID).look(members(**told), 1.0).validation == (5, 2.0)
    assert Swarm(RUN_ID).look(members(**(told | {"dd": said(10, 1.5)})), 1.0).validation == (10, 1.5)


def test_peers_are_called_by_their_ends_unless_these_clash() -> None:
    a, b, c = "1" + "x" * 12, "2" + "x" * 12, "3" + "y" * 12
    assert labels_of([a, b, c]) == {a: a, b: b, c: "y" * 12}


def test_a_picture_as_json_has_the_names_of_a_nodes_status() -> None:
    told = Swarm(RUN_ID).look(members(), 1.0).as_json()
    same = {"run_id", "step", "last_step", "phase", "sentence", "loss", "validation", "tokens", "num_stages", "roster", "view"}
    assert same <= told.keys()
    assert told["view"][0] == {"peer": "aa", "stages": [0], "phase": "live", "seen_s": 1.0}
    assert Picture(RUN_ID).as_json()["validation"] is None
