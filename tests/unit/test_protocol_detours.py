"""When the coordinator leads microbatches around a replica, and when it voids the attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protocol.commands import Command, Compute, Reduce, SendMessage, Work
from protocol.events import ComputeDone, Reduced
from protocol.ids import Member, bitmap
from protocol.messages import (
    Goodbye,
    Heartbeat,
    Held,
    OpenStep,
    Propose,
    ReducedReport,
    Stalled,
    StartReduce,
    Suspect,
    VoidStep,
)
from protocol.records import Commit, Roster, record_id
from protocol.replica_set import summands
from protocol.revoking import Counted, Revoke, Revoked
from tests.tools.core import BALLOT, LEAD, notes, of, sent
from tests.tools.lead import Lead, votes


def swarm() -> Lead:
    """`lead` at stage 0, a and a2 at stage 1, b and b2 at stage 2."""
    return Lead(others=("a", "b", "a2", "b2"))


def amended(commands: list[Command]) -> dict[str, OpenStep]:
    return {c.peer: c.message for c in commands if isinstance(c, SendMessage) and isinstance(c.message, OpenStep)}


def test_a_lost_replica_is_done_without_inside_the_attempt() -> None:
    c = swarm()
    out = c.tell(Goodbye(Member("b2", 1), "gone"), "b2")
    assert not sent(out, VoidStep)
    assert not sent(out, Propose)
    told = amended(out)
    assert set(told) == {"a", "a2", "b"}
    assert {step.amendment for step in told.values()} == {1}
    (note,) = notes(out, "rerouted")
    assert (note["stage"], note["peer"], note["excluded"]) == (2, "b2", True)
    (work,) = told["b"].seats
    assert bitmap([*work.microbatches, *work.taken]) == "f"
    finish_step(c, ("a", 1), ("a2", 1), ("b", 2))
    assert c.state.chain.step == 1
    leaves = [s.member.peer for p in sent(c.all, Propose) if isinstance(p.record, Roster) for s in p.record.leaves]
    assert set(leaves) == {"b2"}, "the roster follows the commit"


def finish_step(c: Lead, *replicas: tuple[str, int]) -> list[Command]:
    """Everybody on the attempt's roster sums, and the voters hold the commit."""
    ledger = c.coordinator.ledger
    out = finish_own(c)
    for peer, stage in replicas:
        out += c.ready(peer, stage, microbatches=bitmap(ledger.owned(stage, peer)))
    for stage in (1, 2):
        rows = [row.member.peer for s in sent(out, StartReduce) if s.stage == stage for row in summands(s, c.state.chain)]
        assert set(rows) == {peer for peer, at in replicas if at == stage}, "the sum is over those that are left"
    for peer, stage in replicas:
        out += c.reduced(peer, stage)
    (commit,) = sent(out, Propose, "a")
    assert isinstance(commit.record, Commit)
    c.all = votes(c, out) + c.tell(Held(BALLOT, record_id(commit.record)), "b")
    return out


def finish_own(c: Lead) -> list[Command]:
    """Stage 0 computes all that the newest ways ask for."""
    out: list[Command] = []
    ledger, last = c.coordinator.ledger, c.manifest.num_stages
    for route in ledger.plan.routes:
        work = Work("embed", 0, ledger.step, ledger.attempt, route.microbatch)
        c.do(ComputeDone(work, c.handle(), 8, 0.0, 0, 0.1))
        for kind, hop in (("forward", last), ("backward", 0)):
            header = replace(c.header(kind, route.microbatch, hop), route=route, attempt=ledger.attempt)
            for compute in of(c.arrive(header), Compute):
                tokens = c.manifest.batch.tokens_per_microbatch if compute.work.op == "head" else 0
                handle = c.handle() if compute.work.op == "head" else 0
                out += c.do(ComputeDone(compute.work, handle, 8, 2.0 if tokens else 0.0, tokens, 0.1))
    for reduce in of(out, Reduce):
        out += c.do(Reduced(0, reduce.step, reduce.attempt, "sum0", 1.0, 0.1))
    return out


def stalled(peer: str, **more: Any) -> Stalled:
    return Stalled(BALLOT, 1, 1, 0, peer, "broken", **{"unsent": True, **more})


def test_who_cannot_be_reached_is_asked_and_keeps_what_it_has() -> None:
    c = swarm()
    out = c.tell(stalled("b2"), "a")
    assert sent(out, Revoke, "b2") == [Revoke(BALLOT, 1, 1)]
    assert not sent(out, VoidStep)
    assert not sent(c.tell(stalled("b2"), "a"), Revoke), "one question is enough"
    had = c.coordinator.ledger.owned(2, "b2")
    out = c.tell(Revoked(BALLOT, 1, 1, 0, (Counted(2, bitmap(had[:1])),)), "b2")
    told = amended(out)
    assert told["b2"].seats[0].microbatches == had[:1]
    assert set(told["b"].seats[0].taken) == set(had[1:])
    assert told["b"].seats[0].helped == had[:1], "it goes on another way, and counts where it is"
    assert all(step.without == ("b2",) for step in told.values())
    assert not sent(c.tell(stalled("b2"), "a"), VoidStep), "a late complaint"
    finish_step(c, ("a", 1), ("a2", 1), ("b", 2), ("b2", 2))
    assert c.state.chain.step == 1
    assert not [p for p in sent(c.all, Propose) if isinstance(p.record, Roster)], "everybody stays"


def test_who_does_not_answer_is_done_without() -> None:
    c = swarm()
    c.tell(stalled("b2"), "a")
    out = c.pass_time(1.5)
    assert sent(out, Revoke, "b2"), "asked again"
    out = c.pass_time(2.0)
    assert [n["excluded"] for n in notes(out, "rerouted")] == [True]
    out = c.tell(replace(stalled("x"), unsent=False), "b2") + c.ready("b2", 2, microbatches="f")
    assert not sent(out, VoidStep), "nobody listens to it any more in this attempt"
    assert not notes(out, "refused")
    beat = Heartbeat(1, BALLOT, c.state.chain.head, 1, 1)
    assert not sent(c.tell(beat, "b2", after_s=5.0), OpenStep)
    assert sent(c.tell(beat, "b"), OpenStep, "b"), "who does not know the amendment is told again"


def test_where_one_end_of_a_link_is_needed_the_other_one_gives_way() -> None:
    c = Lead(others=("a", "b", "a2"))
    out = c.tell(stalled("b"), "a")
    assert sent(out, Revoke, "a"), "b alone holds its stage"
    c = Lead(others=("a", "b"))
    assert sent(c.tell(stalled("b"), "a"), VoidStep), "both do"
    c = swarm()
    assert sent(c.tell(stalled("b2", unsent=False), "a"), VoidStep), "a bad tensor is worse"


def test_a_neighbour_that_does_not_hear_the_next_one_is_enough() -> None:
    c = swarm()
    far = next(p for p in ("a", "a2") if p not in c.coordinator.ledger.plan.neighbours("b2"))
    near = "a2" if far == "a" else "a"
    assert not sent(c.tell(Suspect(Member("b2", 1), "x"), far), Revoke)
    assert sent(c.tell(Suspect(Member("b2", 1), "x"), near), Revoke, "b2")


def test_while_somebody_is_silent_an_overdue_microbatch_waits_for_what_comes_of_that() -> None:
    c = swarm()
    c.pass_time(2.0, silent=("b2",))
    late = stalled("", unsent=False)
    assert not sent(c.tell(late, LEAD.peer), VoidStep)
    c.beats(0.1)
    assert sent(c.tell(late, LEAD.peer), VoidStep), "it is heard again: the attempt is at fault"


def test_a_sum_begins_anew_without_one_that_is_lost() -> None:
    c = swarm()
    for peer in ("b", "b2"):
        out = c.ready(peer, 2)
    assert sent(out, StartReduce)
    out = c.tell(Goodbye(Member("b2", 1), "gone"), "b2")
    assert not sent(out, VoidStep)
    (work,) = amended(out)["b"].seats
    assert work.sum_number == 1
    before = {peer: len(step.detours) for peer, step in amended(out).items()}
    assert before["a"] + before["a2"] > 0, "those before it send once more what it had"
    old = ReducedReport(BALLOT, 1, 1, 2, "sum2", 1.0)
    assert notes(c.tell(old, "b"), "refused"), "what was summed with it counts for nothing"
    out = c.ready("b", 2, microbatches="f")
    (start,) = sent(out, StartReduce, "b")
    assert (start.sum_number, start.without) == (1, ("b2",))
    assert not notes(c.tell(replace(old, sum_number=1), "b"), "refused")


def failed_sum(peer: str, **more: Any) -> Stalled:
    return Stalled(BALLOT, 1, 1, -1, peer, "its part did not come", **{"summing": 2, **more})


def test_who_does_not_do_its_part_in_a_sum_is_asked_whether_it_lives() -> None:
    c = swarm()
    for peer in ("b", "b2"):
        c.ready(peer, 2)
    out = c.tell(failed_sum("b2"), "b")
    assert sent(out, Revoke, "b2")
    assert not sent(out, VoidStep)
    assert not sent(c.tell(failed_sum("b2"), "b"), Revoke), "one question is enough"
    had = bitmap(c.coordinator.ledger.owned(2, "b2"))
    out = c.tell(Revoked(BALLOT, 1, 1, 0, (Counted(2, had),)), "b2")
    assert "its part did not come" in sent(out, VoidStep)[0].reason, "it lives, and the two do not reach each other"
    assert not notes(out, "rerouted")


def test_who_does_not_do_its_part_in_a_sum_and_does_not_answer_is_done_without() -> None:
    c = swarm()
    for peer in ("b", "b2"):
        c.ready(peer, 2)
    c.tell(failed_sum("b2"), "b")
    c.pass_time(1.5)
    out = c.pass_time(2.0)
    assert [n["excluded"] for n in notes(out, "rerouted")] == [True]
    assert c.coordinator.ledger.sum_numbers == {2: 1}
    for late in (failed_sum("b2"), failed_sum("b2", sum_number=1), failed_sum("nobody")):
        assert not sent(c.tell(late, "b"), VoidStep), "a complaint about the sum before, or about one that is out of it"


def test_who_is_asked_for_a_broken_link_and_then_for_a_sum_is_no_more_use_alive() -> None:
    c = swarm()
    c.tell(stalled("b2"), "a")
    for peer in ("b", "b2"):
        c.ready(peer, 2)
    c.tell(failed_sum("b2"), "b")
    out = c.tell(Revoked(BALLOT, 1, 1, 0, (Counted(2, bitmap(c.coordinator.ledger.owned(2, "b2"))),)), "b2")
    assert sent(out, VoidStep)


def test_a_sum_that_needs_whom_it_waits_for_is_given_up() -> None:
    c = Lead(others=("a", "b", "a2"))
    c.ready("b", 2, microbatches="f")
    assert sent(c.tell(failed_sum("b", summing=2), "a"), VoidStep)


def test_one_loss_after_another_leaves_one_replica_and_then_voids() -> None:
    c = Lead(others=("a", "b", "a2", "b2", "a3", "b3"))
    assert not sent(c.tell(Goodbye(Member("b2", 1), "gone"), "b2"), VoidStep)
    assert not sent(c.tell(Goodbye(Member("b3", 1), "gone"), "b3"), VoidStep)
    ledger = c.coordinator.ledger
    assert bitmap(ledger.owned(2, "b")) == "f"
    assert sent(c.tell(Goodbye(Member("b", 1), "gone"), "b"), VoidStep)
