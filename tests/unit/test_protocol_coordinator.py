"""The coordinator against slow, lying and silent members. Facts go in through NodeState, as peers would send them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from protocol.coordinator import REDUCE_PATIENCE
from protocol.events import Applied, Tick
from protocol.ids import Ballot, Member
from protocol.messages import (
    AppliedReport,
    Decide,
    Evaluated,
    Goodbye,
    Heartbeat,
    Held,
    Message,
    OpenStep,
    Order,
    Probe,
    Propose,
    RecordsWanted,
    ReduceReady,
    Stalled,
    Standing,
    StartReduce,
    Suspect,
    VoidStep,
    Wish,
)
from protocol.records import Commit, Roster, Seating, record_id
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, notes, sent
from tests.tools.lead import Lead, embed_all, lead, votes, whole_step


def test_a_step_is_committed() -> None:
    c = lead()
    out = whole_step(c)
    assert isinstance(sent(out, Propose, "a")[0].record, Commit)
    assert c.state.chain.step == 0, "two of three voters are a quorum, one is not"
    out = votes(c, out)
    assert c.state.chain.step == 1
    assert {x.peer for x in out if isinstance(getattr(x, "message", None), Decide)} == {"a", "b"}
    assert c.num_held == 0


# ---- lies ----


LIES: dict[str, dict[str, Any]] = {
    "infinite norm": {"squared_norm": math.inf},
    "no number": {"squared_norm": math.nan},
    "negative norm": {"squared_norm": -1.0},
    "a stage that does not exist": {"stage": 9},
    "a negative stage": {"stage": -1},
    "somebody else's stage": {"stage": 2},
}


@pytest.mark.parametrize("name", LIES)
def test_an_impossible_result_is_refused_and_never_proposed(name: str) -> None:
    c = lead()
    embed_all(c)
    c.own_stage()
    c.ready("a", 1)
    c.ready("b", 2)
    c.reduced("b", 2)
    out = c.reduced("a", 1, **LIES[name])
    assert not sent(out, Propose)
    assert len(notes(out, "refused")) == 1
    assert sent(c.reduced("a", 1), Propose), "the true result still counts"


READY_LIES: dict[str, dict[str, Any]] = {
    "others": {"microbatches": "17"},
    "huge": {"microbatches": "f" * 1024},
    "no stage": {"stage": 77},
    "negative stage": {"stage": -1},
    "tokens at a block stage": {"tokens": 8},
    "infinite loss": {"loss_sum": math.inf},
    "no loss": {"loss_sum": math.nan},
}


@pytest.mark.parametrize("name", READY_LIES)
def test_an_impossible_accumulation_is_refused(name: str) -> None:
    c = lead()
    out = c.ready("a", 1, **READY_LIES[name])
    assert not sent(out, StartReduce)
    assert len(notes(out, "refused")) == 1
    assert sent(c.ready("a", 1), StartReduce, "a")


@pytest.mark.parametrize("part", ["7", "0"])
def test_a_part_of_the_work_starts_no_sum(part: str) -> None:
    c = lead()
    assert not sent(c.ready("a", 1, microbatches=part), StartReduce)
    assert sent(c.ready("a", 1), StartReduce, "a")


def test_stage_0_must_count_the_tokens_of_its_microbatches() -> None:
    ledger = lead().coordinator.ledger
    mine = ReduceReady(BALLOT, 1, 1, 0, "f", 1.0, 0, 0.1)
    assert "tokens" in ledger.enter_ready(LEAD, mine, 1.0)
    assert "finite" in ledger.enter_ready(LEAD, replace(mine, tokens=32, loss_sum=math.nan), 1.0)
    assert ledger.enter_ready(LEAD, replace(mine, tokens=32), 1.0) == ""


def test_norms_that_together_overflow_void_the_step() -> None:
    c = lead()
    embed_all(c)
    c.own_stage()
    c.ready("a", 1)
    c.ready("b", 2)
    c.reduced("a", 1, squared_norm=1.5e308)
    out = c.reduced("b", 2, squared_norm=1.5e308)
    assert not sent(out, Propose)
    assert "not finite" in sent(out, VoidStep)[0].reason


@pytest.mark.parametrize("changes", [{"digest": "other"}, {"squared_norm": 2.0}], ids=str)
def test_siblings_that_differ_void_the_step(changes: dict[str, Any]) -> None:
    c = Lead(others=("a", "b", "a2", "b2"))
    c.ready("a", 1)
    c.ready("a2", 1)
    c.reduced("a", 1)
    out = c.reduced("a2", 1, **changes)
    assert "its gradient sum of stage 1" in sent(out, VoidStep)[0].reason


@pytest.mark.parametrize("message", ["reduced", "stalled"])
def test_nothing_voids_a_step_that_is_proposed(message: str) -> None:
    """A void after a proposal would make every replica miss the commit."""
    c = lead()
    proposal = whole_step(c)
    if message == "reduced":
        out = c.reduced("b", 2, digest="a late lie")
    else:
        out = c.tell(Stalled(BALLOT, 1, 1, 0, "a", "a late complaint"), "b")
    assert not sent(out, VoidStep)
    votes(c, proposal)
    assert c.state.chain.step == 1


def test_only_the_one_who_was_asked_reports_a_validation_loss() -> None:
    evaluation = {"every_steps": 1, "num_microbatches": 2}
    c = lead(evaluation=evaluation)
    votes(c, whole_step(c))
    out = c.do(Applied(0, 1, c.state.chain.state_ids[0], "d", 1, 0.1))
    head, tokens = c.state.chain.head, c.manifest.batch.tokens_per_microbatch
    assert c.coordinator.herald.phase == "evaluating", out
    lies: list[tuple[str, int, int]] = [("a", 0, tokens), ("b", 1, tokens)]
    for peer, microbatch, count in [*lies, ("a", 1 << 60, tokens), ("a", -1, tokens)]:
        c.tell(Evaluated(BALLOT, head, microbatch, 1e9, count), peer)
    assert c.coordinator._polls.open.losses == {}
    c.coordinator.on_evaluated(LEAD.peer, Evaluated(BALLOT, head, 0, 8.0, tokens + 1))
    assert c.coordinator._polls.open.losses == {}
    for microbatch in (0, 1, 1, 0):
        if c.coordinator._polls.open:
            c.coordinator.on_evaluated(LEAD.peer, Evaluated(BALLOT, head, microbatch, 8.0 + 8 * microbatch, tokens))
    c.do(Tick())
    assert c.state.outlook.validation == (1, 1.5)


# ---- identities ----


def test_goodbyes_and_wishes_count_for_their_own_life_only() -> None:
    c = lead()
    c.tell(Goodbye(Member("a", 7), "not my life"), "a")
    c.tell(Goodbye(Member("b", 1), "not me"), "a")
    c.tell(Wish(Member("zz", 3), 1, "n", "evil:1", 0), "a")
    c.do(Tick())
    assert c.coordinator.ledger, "nobody left"
    assert "zz" not in c.coordinator.members.gathering.wishes
    out = c.tell(Goodbye(Member("a", 1), "really"), "a")
    assert [s.member.peer for s in sent(out, Propose)[0].record.leaves] == ["a"]


@pytest.mark.parametrize("peer", ["stranger", "a"])
def test_suspicions_count_from_members_about_members(peer: str) -> None:
    c = lead()
    for n in range(100):
        c.tell(Suspect(Member(f"nobody{n}", 1), "x"), peer)
    assert not c.coordinator._losses._opinions
    c.tell(Suspect(Member("b", 1), "x"), peer, incarnation=1 if peer == "stranger" else 2)
    assert not c.coordinator._losses._opinions


def test_a_loss_needs_a_second_opinion() -> None:
    c = lead()
    lapse = c.manifest.timing.lapse_s
    out = c.pass_time(2 * lapse, silent=("b",))
    assert not sent(out, Propose), "nobody else has said so"
    assert {p.member.peer for p in sent(out, Probe)} == {"b"}
    out = c.tell(Suspect(Member("b", 1), "x"), "a") + c.pass_time(1.0, silent=("b",))
    assert [s.member.peer for s in sent(out, Propose)[0].record.leaves] == ["b"]


def test_a_loss_is_declared_once() -> None:
    c = lead()
    out = c.tell(Goodbye(Member("b", 1), "x"), "b")
    roster = sent(out, Propose)[0].record
    c.tell(Goodbye(Member("b", 1), "x"), "b")
    c.tell(Held(BALLOT, record_id(roster)), "a")
    out = c.pass_time(5.0)
    assert c.state.chain.head == record_id(roster)
    assert not sent(out, Propose)


# ---- what may get lost ----


def test_a_passive_replica_is_told_again_to_reduce() -> None:
    c = Lead(num_block_stages=4, others=("a", "b", "c", "d"), policy="checkfree")
    passive = {s.member.peer for s in c.state.chain.seated(0) if s.role == "passive"}
    assert passive == {"a", "d"}
    embed_all(c)
    first = c.own_stage()
    assert {p for p in passive if sent(first, StartReduce, p)} == passive
    out = c.pass_time(3.0)
    assert {p for p in passive if sent(out, StartReduce, p)} == passive
    for peer in passive:
        c.reduced(peer, 0)
    assert not sent(c.pass_time(5.0), StartReduce)


def test_a_member_that_never_reports_its_sum_voids_the_attempt() -> None:
    c = lead()
    embed_all(c)
    c.own_stage()
    c.ready("a", 1)
    c.ready("b", 2)
    c.reduced("b", 2)
    patience = REDUCE_PATIENCE * c.manifest.timing.first_microbatch_s
    assert not sent(c.pass_time(patience - 5), VoidStep)
    assert "does not have the sum of stage 1" in sent(c.pass_time(10), VoidStep)[0].reason


def test_who_still_works_on_a_voided_attempt_is_told_again() -> None:
    c = lead()
    c.tell(Stalled(BALLOT, 1, 1, 0, "", "test"), "a")
    c.state.orders.take(Order("pause", 1, ""))
    c.pass_time(5.0)
    out = c.tell(Heartbeat(1, BALLOT, c.state.chain.head, 1, 1), "b", after_s=3.0)
    assert [(m.step, m.attempt, m.reason) for m in sent(out, VoidStep, "b")] == [(1, 1, "peer a: test")]


# ---- strangers and memory ----


def sizes(c: Lead) -> dict[str, int]:
    k = c.coordinator
    return {
        "told": len(k._teller._told_at),
        "asked": len(k._teller._asked_at),
        "standing": len(k.herald.known()),
        "addresses": len(k.addresses),
        "wishes": len(k.members.gathering.wishes),
        "heard": len(c.state.view.known()),
        "news": len(c.state.view.news),
        "watch": len(list(c.state._watch)),
        "probed": len(k._losses._probed),
    }


def test_strangers_that_come_and_go_leave_nothing() -> None:
    c = lead()
    before = sizes(c)
    for n in range(300):
        peer = f"stranger{n}"
        messages: list[Message] = [
            Wish(Member(peer, 1), -1, peer, f"{peer}:1", 0),
            Heartbeat(1, Ballot(999, peer), "nowhere", 5, 5),
            RecordsWanted("nowhere"),
            Suspect(Member("a", 1), "x"),
            AppliedReport(BALLOT, 0, 1, "x", "y"),
        ]
        for message in messages:
            c.tell(message, peer)
        c.beats(0.25)
    c.pass_time(3 * c.manifest.timing.lapse_s)
    after = sizes(c)
    assert {k: v for k, v in after.items() if v > before[k]} == {}


def test_records_are_sent_once_per_heartbeat() -> None:
    c = lead()
    genesis = c.state.chain._kept[0][1].record.parent
    out = [x for _ in range(50) for x in c.tell(RecordsWanted(genesis), "stranger")]
    assert len(sent(out, Decide)) == 1
    assert len(sent(c.tell(RecordsWanted(genesis), "stranger", after_s=1.1), Decide)) == 1


def test_wishes_have_a_bound() -> None:
    c = Core(a_manifest(), LEAD.peer, founder=True)
    assert c.state.coordinator
    for n in range(5000):
        c.state.coordinator.on_wish(Wish(Member(f"s{n}", 1), 1, "n", "x:1", 0), c.now)
    assert len(c.state.coordinator.members.gathering.wishes) == 4096
    assert len(c.state.coordinator.addresses) == 4096


def test_a_latecomer_is_told_how_the_run_stands() -> None:
    c = lead()
    out = c.tell(Wish(Member("late", 1), 1, "late", "late:1", 0), "late")
    out += c.beats(1.0)
    assert sent(out, Standing, "late")


def test_only_who_lacks_the_open_step_is_told_again() -> None:
    c = lead()
    c.do(Tick(), 3.0)
    assert not sent(c.tell(Heartbeat(1, BALLOT, c.state.chain.head, 1, 1), "a"), OpenStep)
    again = c.tell(Heartbeat(1, BALLOT, c.state.chain.head, 0, 0), "b")
    assert [m.attempt for m in sent(again, OpenStep, "b")] == [1]
    assert not sent(c.tell(Heartbeat(1, BALLOT, c.state.chain.head, 0, 0), "b"), OpenStep), "not at once again"


def test_who_leaves_and_gives_up_one_of_two_seats_still_leads() -> None:
    c = lead()
    c.coordinator._void("test", c.now)
    chain = c.state.chain
    c.coordinator._propose(Roster(chain.head, 0, (Seating(1, LEAD, "active"),), (), chain.voters), (), c.now)
    out = votes(c, c.do(Tick()))
    assert [s.stage for s in chain.seats_of(LEAD)] == [0, 1]
    assert sent(out, Propose)[0].record.leaves == (Seating(1, LEAD, "active"),), "somebody else serves stage 1"
    c.coordinator.members.on_leave(LEAD, "test", c.now)
    out = votes(c, out)
    assert [s.stage for s in chain.seats_of(LEAD)] == [0]
    assert sent(out, Propose)[0].record.joins[0].stage == 0, "nobody hands over the seat that it still has"
