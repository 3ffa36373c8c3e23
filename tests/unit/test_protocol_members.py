"""Who joins, leaves and moves: the pure parts behind the coordinator's Roster records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chain import Chain
from protocol.copies import copy_candidates
from protocol.departure import DRAIN_S, Departure
from protocol.digests import KEPT_STATES, Digests
from protocol.ids import Member
from protocol.learners import PATIENCE, Learners
from protocol.manifest import Manifest
from protocol.membership import COPY_HEARTBEATS, MAX_STRIKES, MOVE_HEARTBEATS, Changes, Membership
from protocol.messages import AppliedReport, Learning, Wish
from protocol.records import Commit, Roster, Seating, StageResult
from protocol.sizes import need_bytes
from protocol.speeds import DEADBAND, Speeds
from tests.tools.core import BALLOT, LEAD, a_manifest, holders

NEW = Member("new", 1)


def a_chain(manifest: Manifest, *more: Seating, replicas: int = 1, steps: int = 1) -> Chain:
    """A run after some steps, with all stages held and `more`."""
    chain = Chain(manifest, LEAD)
    chain.append(Roster(chain.head, 0, (*holders(manifest, replicas), *more), (), (LEAD,)), ())
    for _ in range(steps):
        commit(chain, manifest)
    return chain


def commit(chain: Chain, manifest: Manifest) -> None:
    results = tuple(StageResult(stage, "d", 1.0) for stage in range(manifest.num_stages))
    chain.append(Commit(chain.head, chain.step + 1, 1, results, 1.0, manifest.batch.tokens_per_step), ())


def apply(chain: Chain, changes: Changes, members: Membership) -> None:
    chain.append(members.roster(changes, LEAD), ())


def wish(member: Member = NEW, stage: int = -1, memory_bytes: int = 0) -> Wish:
    return Wish(member, stage, "n", "x:1", memory_bytes)


def learning(chain: Chain, stage: int, digest: str = "d", seconds_left: float = 0.0) -> Learning:
    return Learning(BALLOT, stage, chain.state_ids[stage] if digest else "", digest, seconds_left, chain.head)


def applied(chain: Chain, stage: int, digest: str = "d") -> AppliedReport:
    return AppliedReport(BALLOT, stage, chain.step, chain.state_ids[stage], digest)


# ---- joining ----


def test_a_newcomer_learns_then_proves_itself_then_computes() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    members.on_wish(wish(stage=2))
    granted = members.changes(1.0)
    assert granted.joins == (Seating(2, NEW, "learner", pinned=True),)
    members.gathering.leave(NEW)
    apply(chain, granted, members)
    assert not members.changes(2.0), "it has copied nothing yet"
    members.on_learning(NEW, learning(chain, 2), 3.0)
    commit(chain, manifest)
    assert not members.changes(4.0), "what it holds is old by now"
    members.on_learning(NEW, learning(chain, 2), 5.0)
    raised = members.changes(5.0)
    assert [(s.stage, s.member, s.role) for s in raised.joins] == [(2, NEW, "passive")]
    apply(chain, raised, members)
    assert chain.holders(2)[1].member == NEW
    assert not members.changes(6.0), "passive until it has applied an update as its sibling did"
    commit(chain, manifest)
    members.on_applied(NEW, applied(chain, 2))
    assert not members.changes(7.0), "its sibling has not said anything"
    members.on_applied(Member("p2.0", 1), applied(chain, 2))
    apply(chain, members.changes(8.0), members)
    assert [s.member.peer for s in chain.active(2)] == ["p2.0", "new"]


def test_a_learner_with_another_digest_than_its_siblings_is_not_let_in() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, Seating(1, NEW, "learner"))
    members = Membership(manifest, chain)
    members.changes(1.0)
    members.on_applied(Member("p1.0", 1), applied(chain, 1, "right"))
    members.on_learning(NEW, learning(chain, 1, "wrong"), 2.0)
    changes = members.changes(3.0)
    assert changes.leaves == (Seating(1, NEW, "learner"),)
    assert changes.joins == ()
    assert [(n.type, n.fields["peer"]) for n in changes.notes] == [("digest_mismatch", "new")]


def test_one_that_is_wrong_again_and_again_gets_no_seat() -> None:
    manifest = a_manifest()
    members = Membership(manifest, a_chain(manifest))
    for _ in range(MAX_STRIKES):
        assert members.on_wish(wish())
        members.strike(NEW.peer)
    assert not members.on_wish(wish())


def test_a_newcomer_goes_where_the_run_is_slowest() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    for stage, seconds in ((0, 0.1), (1, 0.3), (2, 0.2)):
        members.speeds.measured(stage, chain.active(stage)[0].member, seconds)
    members.on_wish(wish())
    changes = members.changes(1.0)
    assert changes.joins[0].stage == 1
    [why] = changes.notes
    assert (why.type, why.fields["stage"], why.fields["peer"], why.fields["asked"]) == ("placed", 1, "new", -1)
    assert why.fields["per_second"] == pytest.approx([10.0, 1 / 0.3, 5.0], abs=1e-3)
    assert why.fields["replicas"] == [1, 1, 1]


def test_several_newcomers_are_spread_and_those_without_room_wait() -> None:
    manifest = a_manifest(microbatches=2)
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    for n in range(5):
        members.on_wish(wish(Member(f"n{n}", 1)))
    joins = members.changes(1.0).joins
    assert sorted(s.stage for s in joins) == [0, 1, 2], "two microbatches feed two replicas"


def test_memory_decides_where_a_newcomer_fits() -> None:
    manifest = a_manifest(
        model={
            "vocab_size": 1 << 16,
            "hidden_size": 256,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 8,
        }
    )
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    members.speeds.measured(0, LEAD, 100.0)
    for stage in (1, 2):
        members.speeds.measured(stage, chain.active(stage)[0].member, 1.0)
    small = need_bytes(manifest, 1, 2)
    assert small < need_bytes(manifest, 0, 2)
    members.on_wish(wish(memory_bytes=small))
    assert members.changes(1.0).joins[0].stage == 1, "stage 0 is slower, and too large"
    members.gathering.leave(NEW)
    members.on_wish(wish(Member("tiny", 1), memory_bytes=1))
    assert not members.changes(1.0)


def test_a_stage_lost_before_the_first_commit_is_made_again_from_the_seed() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, steps=0)
    lost = chain.active(1)[0]
    chain.append(Roster(chain.head, 0, (), (lost,), (LEAD,)), ())
    members = Membership(manifest, chain)
    members.on_wish(wish())
    assert members.changes(1.0).joins == (Seating(1, NEW, "active"),)
    later = a_chain(manifest, steps=1)
    later.append(Roster(later.head, 1, (), (lost,), (LEAD,)), ())
    members = Membership(manifest, later)
    members.on_wish(wish())
    assert not members.changes(1.0), "nobody has its state, and weights are never invented"


# ---- how long a step waits ----


def test_a_step_waits_for_a_newcomer_no_longer_than_a_tenth_of_its_time() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, Seating(1, NEW, "learner"))
    learners = Learners(chain, heartbeat_s=1.0, most_s=60.0)
    learners.look(0.0)
    assert learners.hold(0.0) == "", "nothing is known of it"
    learners.enter(NEW, learning(chain, 1, "", seconds_left=10.0))
    assert learners.hold(50.0) == "", "10 s are more than a tenth of 50"
    assert "stage 1" in learners.hold(100.0)
    assert learners.hold(111.9), "patience and two heartbeats"
    assert learners.hold(112.1) == ""
    assert learners.hold(112.1 + 12.0 / PATIENCE) == "", "it has been waited for, and may not be again so soon"
    assert learners.hold(113.0 + 12.2 / PATIENCE)


def test_who_is_in_ends_the_wait() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, Seating(1, NEW, "learner"))
    learners = Learners(chain, heartbeat_s=1.0, most_s=60.0)
    learners.look(0.0)
    learners.enter(NEW, learning(chain, 1, "", seconds_left=0.5))
    assert learners.hold(1.0)
    learners.enter(NEW, learning(chain, 1))
    assert learners.caught_up() == [(1, NEW, "d")]
    learners.go_on(1.5)
    assert learners.hold(1.5) == "", "what it cost is not to be had at once again"


def test_nobody_is_waited_for_who_does_not_learn_any_more() -> None:
    chain = a_chain(a_manifest(), Seating(1, NEW, "learner"))
    learners = Learners(chain, heartbeat_s=1.0, most_s=60.0)
    learners.look(0.0)
    learners.enter(NEW, learning(chain, 1, "", seconds_left=0.5))
    assert "stage 1" in learners.hold(1.0)
    chain.append(Roster(chain.head, chain.step, (Seating(1, NEW, "passive"),), (), (LEAD,)), ())
    learners.look(1.1)
    assert learners.hold(1.1) == ""


def test_a_slow_copy_is_never_waited_for_longer_than_the_manifest_says() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, Seating(1, NEW, "learner"))
    learners = Learners(chain, heartbeat_s=1.0, most_s=60.0)
    learners.look(0.0)
    learners.enter(NEW, learning(chain, 1, "", seconds_left=61.0))
    assert learners.hold(1e6) == ""


# ---- leaving ----


def leaving(chain: Chain, manifest: Manifest, *who: str) -> Membership:
    members = Membership(manifest, chain)
    for peer in who:
        members.on_leave(Member(peer, 1), "test", 10.0)
    return members


def test_a_leaver_goes_when_others_hold_its_stage() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, replicas=2)
    assert [s.member.peer for s in leaving(chain, manifest, "p1.0").changes(10.0).leaves] == ["p1.0"]
    both = leaving(chain, manifest, "p1.0", "p1.1")
    assert [s.member.peer for s in both.changes(10.0).leaves] == ["p1.0"], "one of the two stays"
    alone = a_chain(manifest)
    heir = leaving(alone, manifest, "p1.0").changes(10.0)
    assert not heir.leaves
    assert [(s.stage, s.role) for s in heir.joins] == [(1, "learner")], "its stage is handed over first"
    assert not leaving(chain, manifest, "stranger").changes(10.0)


def test_a_passive_replica_takes_over_when_the_last_active_one_goes() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, Seating(1, NEW, "passive"))
    changes = leaving(chain, manifest, "p1.0").changes(10.0)
    assert changes.joins == (Seating(1, NEW, "active"),)
    learner = a_chain(manifest, Seating(1, NEW, "learner"))
    assert not leaving(learner, manifest, "p1.0").changes(10.0), "a learner holds nothing yet"


def test_the_coordinator_that_goes_names_its_successor_first() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, replicas=2)
    members = leaving(chain, manifest, LEAD.peer)
    record = members.roster(members.changes(20.0), LEAD)
    assert LEAD not in record.voters
    assert record.voters[0] == Member("p0.1", 1), "the other holder of stage 0"


def test_a_copy_of_the_embedding_waits_for_its_successor_but_not_for_ever() -> None:
    manifest = a_manifest(num_block_stages=3, policy="checkfree")
    chain = a_chain(manifest, Seating(0, Member("p1.0", 1), "passive"), Seating(0, Member("p3.0", 1), "passive"), replicas=2)
    members = leaving(chain, manifest, "p1.0")
    successor = members.changes(10.0)
    assert [(s.stage, s.role) for s in successor.joins] == [(0, "learner")], "somebody else starts to copy it"
    assert not successor.leaves
    apply(chain, successor, members)
    assert not members.changes(11.0)
    gone = members.changes(10.1 + COPY_HEARTBEATS * manifest.timing.heartbeat_s)
    assert {s.member.peer for s in gone.leaves} == {"p1.0"}


def test_departure_is_at_once_where_waiting_is_of_no_use() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, replicas=2)
    assert Departure(NEW, chain, 120.0).begin("x", 0.0) == "", "it has no seat"
    assert "handing over stage 0, within 120 s" in Departure(LEAD, a_chain(manifest), 120.0).begin("x", 0.0)
    going = Departure(LEAD, chain, 120.0)
    assert going.seconds_left(0.0) == 0.0, "nobody has asked it to go"
    assert "within 6 s" in going.begin("x", 0.0)
    assert not going.is_due(True, DRAIN_S - 0.1)
    assert going.is_due(False, DRAIN_S)
    chain.append(Roster(chain.head, 1, (), tuple(s for s in chain.seatings if s.member == LEAD), (Member("p0.1", 1),)), ())
    assert going.is_due(True, 1.0)
    assert not going.is_due(False, 1.0)


def test_a_leaver_that_is_the_last_holder_by_now_stays_longer_while_somebody_is_there_to_hand_over_to() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, replicas=2)
    hears = [True]
    going = Departure(LEAD, chain, 120.0, lambda: hears[0])
    assert going.begin("x", 0.0)
    others = tuple(s for s in chain.holders(0) if s.member != LEAD)
    chain.append(Roster(chain.head, chain.step, (), others, (LEAD,)), ())
    assert not going.is_due(False, DRAIN_S + 1.0), "it hands stage 0 over first"
    assert going.is_due(False, 120.0)
    hears[0] = False
    assert going.is_due(False, 0.1), "nobody is there any more"


def test_who_has_handed_over_its_stage_at_last_still_waits_for_the_boundary() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest)
    going = Departure(LEAD, chain, 120.0)
    assert going.begin("x", 0.0)
    assert not going.is_due(False, 50.0), "nobody has stage 0 yet"
    chain.append(Roster(chain.head, chain.step, (Seating(0, NEW, "parked"),), (), (LEAD,)), ())
    assert not going.is_due(False, 50.0 + DRAIN_S - 0.1)
    assert going.is_due(False, 50.0 + DRAIN_S)
    late = Departure(LEAD, a_chain(manifest), 120.0)
    late.begin("x", 0.0)
    assert not late.is_due(False, 119.9)
    assert late.is_due(False, 120.0)


# ---- moving ----


def starved(manifest: Manifest, pinned: bool = False) -> tuple[Chain, Membership]:
    more = [Seating(2, Member(f"m{n}", 1), "active", pinned=pinned) for n in range(2)]
    chain = a_chain(manifest, *more)
    members = Membership(manifest, chain)
    for s in chain.seatings:
        members.speeds.measured(s.stage, s.member, 1.0 if s.stage == 1 else 0.4 if s.stage == 0 else 0.6)
    return chain, members


def test_a_replica_moves_to_a_starved_stage_after_a_while() -> None:
    manifest = a_manifest()
    chain, members = starved(manifest)
    assert not members.changes(100.0)
    changes = members.changes(100.1 + MOVE_HEARTBEATS * manifest.timing.heartbeat_s)
    assert changes.leaves == (Seating(2, Member("m1", 1), "active"),)
    assert [(s.stage, s.member.peer, s.role) for s in changes.joins] == [(1, "m1", "learner")]
    apply(chain, changes, members)
    assert len(chain.active(2)) == 2
    assert not members.changes(1e6), "one at a time"


def test_who_asked_for_a_stage_stays_there() -> None:
    manifest = a_manifest()
    _, members = starved(manifest, pinned=True)
    members.changes(100.0)
    changes = members.changes(1000.0)
    assert {s.member.peer for s in changes.leaves} <= {"p2.0"}


def test_no_move_for_a_small_gain_and_none_that_empties_a_stage() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    members.speeds.measured(1, chain.active(1)[0].member, 100.0)
    members.changes(0.0)
    assert not members.changes(1e6), "every other stage has one replica"


# ---- speeds and digests ----


def seats(*names: str) -> list[Seating]:
    return [Seating(1, Member(name, 1), "active") for name in names]


def test_equal_machines_share_equally_whatever_the_noise() -> None:
    speeds = Speeds()
    row = seats("a", "b", "c")
    for n, s in enumerate(row):
        speeds.measured(1, s.member, 1.0 + 0.08 * n)
    assert len(set(speeds.shares(row))) == 1


@given(st.floats(1.3, 50.0))
def test_a_slow_machine_gets_less(factor: float) -> None:
    speeds = Speeds()
    row = seats("a", "b")
    speeds.measured(1, row[0].member, 1.0)
    speeds.measured(1, row[1].member, factor)
    fast, slow = speeds.shares(row)
    assert fast / slow == pytest.approx(factor)


def test_shares_stay_until_a_speed_differs_enough() -> None:
    speeds = Speeds()
    row = seats("a", "b")
    speeds.measured(1, row[0].member, 1.0)
    speeds.measured(1, row[1].member, 2.0)
    before = speeds.shares(row)
    speeds.measured(1, row[1].member, 2.0 * (2 * DEADBAND * 0.99 - 1))
    assert speeds.shares(row) == before
    speeds.measured(1, row[1].member, 8.0)
    assert speeds.shares(row) != before
    speeds.keep([])
    assert speeds.shares(row) == [1.0, 1.0]


def test_most_are_believed_and_the_eldest_where_two_disagree() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, replicas=3)
    digests = Digests(chain)
    for n, digest in enumerate(("x", "y", "y")):
        digests.enter(1, "s", Member(f"p1.{n}", 1), digest)
    assert digests.odd(1) == [(Member("p1.0", 1), "x", "y")]
    digests.enter(1, "s", NEW, "z")
    assert digests.odd(1) == [(Member("p1.0", 1), "x", "y")], "of no member nothing is believed"
    two = Digests(a_chain(manifest, replicas=2))
    two.enter(1, "s", Member("p1.1", 1), "y")
    two.enter(1, "s", Member("p1.0", 1), "x")
    assert two.odd(1) == [(Member("p1.1", 1), "y", "x")]


def test_nobody_is_odd_before_enough_have_spoken() -> None:
    """The wrong one may be the first to speak, and the next one is right."""
    digests = Digests(a_chain(a_manifest(), replicas=3))
    for n, digest in enumerate(("wrong", "right")):
        digests.enter(1, "s", Member(f"p1.{n}", 1), digest)
        assert digests.odd(1) == []
        assert digests.believed(1, "s") == ""
    digests.enter(1, "s", Member("p1.2", 1), "right")
    assert digests.odd(1) == [(Member("p1.0", 1), "wrong", "right")]


def test_an_odd_replica_loses_all_its_seats_unless_another_stage_is_its_alone() -> None:
    manifest = a_manifest(policy="checkfree")
    copies = [Seating(0, Member(peer, 1), "passive") for peer in ("p1.0", "p2.0")]
    for other_holds_two in (True, False):
        more = [Seating(2, NEW, "active")] if other_holds_two else []
        chain = a_chain(manifest, *copies, *more)
        members = Membership(manifest, chain)
        for member, digest in ((LEAD, "right"), (Member("p1.0", 1), "right"), (Member("p2.0", 1), "wrong")):
            message = applied(chain, 0, digest)
            members.on_applied(member, message)
            found = members.odd(message)
        assert [(odd.member.peer, odd.loses_all, odd.at_once) for odd in found] == [("p2.0", other_holds_two, False)]
        leaves = members.changes(10.0).leaves
        assert leaves == (() if other_holds_two else (copies[1],)), "one that loses all is lost at once, by the coordinator"
        assert members.odd(message) == [], "once is enough"


def test_only_the_last_states_are_remembered() -> None:
    digests = Digests(a_chain(a_manifest()))
    for n in range(20):
        digests.enter(1, f"s{n}", Member("p1.0", 1), "x")
    assert [digests.believed(1, f"s{n}") != "" for n in range(20)].count(True) == KEPT_STATES


def test_copies_of_the_embedding_are_spread_from_the_ends_inwards() -> None:
    rows = [[LEAD], *([Member(f"s{s}", 1)] for s in range(1, 5))]
    assert [m.peer for m in copy_candidates(rows)] == ["s1", "s4", "s2", "s3"]
    rows[1] = [LEAD]
    assert [m.peer for m in copy_candidates(rows)][:2] == ["s4", "s2"]


# ---- where the chain stands ----


def test_a_summary_brings_one_that_is_far_behind_to_the_same_place_and_nobody_back() -> None:
    manifest = a_manifest()
    chain = a_chain(manifest, replicas=2, steps=3)
    summary = chain.summary(BALLOT, ())
    fresh = Chain(manifest, None)
    assert fresh.adopt(summary) == ""
    for name in ("head", "height", "step", "tokens", "loss", "seatings", "voters", "state_ids"):
        assert getattr(fresh, name) == getattr(chain, name), name
    assert fresh.members() == chain.members()
    assert fresh.after(chain.head) == []
    commit(chain, manifest)
    assert fresh.append(chain.after(fresh.head)[0].record, ()) == chain.head  # type: ignore[index]
    assert "not further" in chain.adopt(summary)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state_ids": ("x",)}, "state_ids"),
        ({"step": 99}, "state_ids at step 99"),
        ({"voters": ()}, "voters"),
        ({"seatings": (Seating(7, NEW, "active"),)}, "stage 7"),
        ({"seatings": (Seating(1, NEW, "active"), Seating(0, Member("new", 2), "active"))}, "two lives"),
    ],
)
def test_a_summary_that_makes_no_sense_changes_nothing(change: dict[str, object], why: str) -> None:
    manifest = a_manifest()
    summary = replace(a_chain(manifest).summary(BALLOT, ()), **change)  # type: ignore[arg-type]
    fresh = Chain(manifest, None)
    before = fresh.head
    assert why in fresh.adopt(summary)
    assert (fresh.head, fresh.height, fresh.seatings) == (before, 0, [])
