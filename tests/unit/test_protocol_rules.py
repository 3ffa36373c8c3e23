"""What peers must agree on, rule by rule: ids, assignment, chain, quorum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.acceptor import Acceptor
from protocol.assignment import Plan, make_plan, share_out, stage_order
from protocol.chain import KEPT_RECORDS, MAX_VOTERS, Chain, choose_voters, is_quorum
from protocol.ids import Ballot, Member, bitmap, hash_of, members_of
from protocol.records import Commit, Roster, Seating, StageResult, record_id
from tests.tools.core import LEAD, a_manifest, holders

REPLICAS = st.lists(st.integers(1, 4), min_size=2, max_size=7)


def names(counts: Sequence[int]) -> list[list[str]]:
    return [[f"s{stage}r{r}" for r in range(count)] for stage, count in enumerate(counts)]


# ---- ids ----


@given(st.sets(st.integers(0, 4095)))
def test_a_bitmap_and_back(microbatches: set[int]) -> None:
    assert members_of(bitmap(microbatches)) == sorted(microbatches)


def test_bitmaps_are_canonical() -> None:
    assert [bitmap([]), bitmap([0]), bitmap([4, 1, 4])] == ["0", "1", "12"]
    with pytest.raises(ValueError, match="invalid literal"):
        members_of("xyz")


def test_a_hash_knows_no_number_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match="JSON"):
        hash_of([math.nan])


# ---- assignment ----


@pytest.mark.parametrize(
    ("stages", "microbatch", "swapped", "order"),
    [
        (1, 1, False, (1,)),
        (4, 0, True, (1, 2, 3, 4)),
        (4, 1, True, (2, 1, 4, 3)),
        (5, 3, True, (2, 1, 3, 5, 4)),
        (6, 1, True, (2, 1, 3, 4, 6, 5)),
        (6, 1, False, (1, 2, 3, 4, 5, 6)),
    ],
)
def test_stage_order(stages: int, microbatch: int, swapped: bool, order: tuple[int, ...]) -> None:
    assert stage_order(stages, microbatch, swapped) == order


@given(st.integers(0, 60), st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_hands_are_dealt_in_proportion(count: int, speeds: list[float]) -> None:
    hands = share_out(count, speeds)
    assert sorted(m for hand in hands for m in hand) == list(range(count))
    assert all(hand == sorted(hand) for hand in hands)
    for hand, speed in zip(hands, speeds, strict=True):
        assert abs(len(hand) - count * speed / sum(speeds)) < len(speeds)


@given(REPLICAS, st.integers(1, 40), st.booleans())
def test_a_plan_is_whole_and_its_orders_agree(counts: list[int], microbatches: int, swapped: bool) -> None:
    swapped = swapped and len(counts) >= 5
    plan = make_plan(microbatches, names(counts), swapped)
    assert plan == make_plan(microbatches, names(counts), swapped)
    for stage, peers in enumerate(names(counts)):
        mine = [m for peer in peers for m in plan.hands[stage, peer]]
        assert sorted(mine) == list(range(microbatches)), "each microbatch exactly once per stage"
        assert all(plan.owner[stage][m] == peer for peer in peers for m in plan.hands[stage, peer])
    for route in plan.routes:
        assert [h.stage for h in route.hops] == [0, *stage_order(len(counts) - 1, route.microbatch, swapped), 0]
        assert all(plan.owner[h.stage][route.microbatch] == h.peer for h in route.hops)
    assert precedence_has_no_cycle(plan, microbatches)


def precedence_has_no_cycle(plan: Plan, microbatches: int) -> bool:
    """Every replica accumulates in a given order; together the orders must not wait for each other in a ring."""
    after: dict[int, set[int]] = {m: set() for m in range(microbatches)}
    for hand in plan.hands.values():
        for before, later in pairwise(hand):
            after[later].add(before)
    done: set[int] = set()
    while len(done) < microbatches:
        free = [m for m in after if m not in done and after[m] <= done]
        if not free:
            return False
        done.update(free)
    return True


@given(REPLICAS, st.integers(1, 20))
def test_neighbours_are_those_before_and_after_on_a_route(counts: list[int], microbatches: int) -> None:
    plan = make_plan(microbatches, names(counts), swapped=False)
    for peer in (p for row in names(counts) for p in row):
        uses: dict[str, int] = {}
        for route in plan.routes:
            for a, b in pairwise(route.hops):
                for mine, other in ((a, b), (b, a)):
                    if mine.peer == peer:
                        uses[other.peer] = uses.get(other.peer, 0) + 1
        assert plan.neighbours(peer) == tuple(sorted(uses, key=lambda p: (-uses[p], p)))
        assert {r.microbatch for r in plan.routes_from(peer)} == set(plan.hands.get((0, peer), ()))


def test_one_peer_may_hold_all_stages() -> None:
    plan = make_plan(3, [["a"], ["a"], ["b"]], swapped=False)
    assert plan.neighbours("a") == ("b",)


# ---- chain ----


def roster(chain: Chain, **changes: Any) -> Roster:
    seats = tuple(holders(a_manifest()))
    return replace(Roster(chain.head, chain.step, seats, (), (LEAD,)), **changes)


def commit(chain: Chain, **changes: Any) -> Commit:
    results = tuple(StageResult(s, "d", 4.0) for s in range(3))
    return replace(Commit(chain.head, chain.step + 1, 1, results, 8.0, 32), **changes)


def changed_result(**changes: Any) -> tuple[StageResult, ...]:
    good = [StageResult(s, "d", 4.0) for s in range(3)]
    return (replace(good[0], **changes), *good[1:])


def seated_chain() -> Chain:
    chain = Chain(a_manifest(), LEAD)
    chain.append(roster(chain), ())
    return chain


COMMITS: dict[str, tuple[dict[str, Any], str]] = {
    "another parent": ({"parent": "x" * 32}, "parent"),
    "a step too far": ({"step": 2}, "after step 0"),
    "the same step": ({"step": 0}, "after step 0"),
    "a stage missing": ({"results": changed_result()[:2]}, "cover"),
    "a stage twice": ({"results": changed_result(stage=1)}, "cover"),
    "too few tokens": ({"tokens": 31}, "tokens"),
    "no loss": ({"loss_sum": math.nan}, "loss"),
    "endless loss": ({"loss_sum": math.inf}, "loss"),
    "endless norm": ({"results": changed_result(squared_norm=math.inf)}, "norm"),
    "negative norm": ({"results": changed_result(squared_norm=-1.0)}, "norm"),
    "no norm": ({"results": changed_result(squared_norm=math.nan)}, "norm"),
    "norms too large together": (
        {"results": tuple(StageResult(s, "d", 1e308) for s in range(3))},
        "norm",
    ),
}


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_that_does_not_fit(name: str) -> None:
    changes, reason = COMMITS[name]
    chain = seated_chain()
    assert chain.fits(commit(chain)) == ""
    assert reason in chain.fits(commit(chain, **changes))


ROSTERS: dict[str, tuple[dict[str, Any], str]] = {
    "another parent": ({"parent": "x" * 32}, "parent"),
    "another step": ({"step": 1}, "step"),
    "a stage that does not exist": ({"joins": (Seating(3, LEAD, "active"),)}, "stage 3"),
    "a negative stage": ({"joins": (Seating(-1, LEAD, "active"),)}, "stage -1"),
    "a leave of no stage": ({"leaves": (Seating(9, LEAD, "active"),)}, "stage 9"),
    "no voter": ({"voters": ()}, "0 voters"),
    "a voter twice": ({"voters": (LEAD, LEAD)}, "voters"),
    "too many voters": ({"voters": tuple(Member(f"p{i}", 1) for i in range(MAX_VOTERS + 1))}, "8 voters"),
    "a peer twice": ({"joins": (Seating(0, LEAD, "active"), Seating(0, Member("lead", 2), "active"))}, "twice"),
    "a peer in two lives": ({"joins": (Seating(0, LEAD, "active"), Seating(1, Member("lead", 2), "active"))}, "two lives"),
}


@pytest.mark.parametrize("name", ROSTERS)
def test_a_roster_that_does_not_fit(name: str) -> None:
    changes, reason = ROSTERS[name]
    chain = Chain(a_manifest(), LEAD)
    assert chain.fits(roster(chain)) == ""
    assert reason in chain.fits(roster(chain, **changes))


def test_a_commit_moves_all_state_ids_and_a_roster_none() -> None:
    chain = Chain(a_manifest(), LEAD)
    before = list(chain.state_ids)
    chain.append(roster(chain), ())
    assert chain.state_ids == before
    chain.append(commit(chain), ())
    assert not set(chain.state_ids) & set(before)
    assert len(set(chain.state_ids)) == 3
    assert (chain.step, chain.loss, chain.tokens) == (1, 0.25, 32)


def test_a_record_is_named_by_what_it_says() -> None:
    chain = seated_chain()
    assert record_id(commit(chain)) == record_id(commit(chain))
    assert record_id(commit(chain)) != record_id(commit(chain, attempt=2))


def test_records_after_a_head() -> None:
    chain = Chain(a_manifest(max_steps=200), LEAD)
    heads = [chain.head, chain.append(roster(chain), ())]
    heads += [chain.append(commit(chain), ()) for _ in range(3)]
    kept = chain.after(heads[2])
    assert kept is not None
    assert [record_id(d.record) for d in kept] == heads[3:]
    assert chain.after(chain.head) == []
    assert chain.after("unknown") is None
    for _ in range(KEPT_RECORDS):
        chain.append(commit(chain), ())
    assert chain.after(heads[0]) is None, "what is too long ago is forgotten"


def test_seats_of_a_stage_are_active_first_and_members_are_named_once() -> None:
    chain = Chain(a_manifest(), LEAD)
    a, b = Member("a", 1), Member("b", 1)
    seats = (Seating(0, a, "passive"), Seating(0, LEAD, "active"), Seating(1, a, "active"), Seating(2, b, "active"))
    chain.append(roster(chain, joins=seats), ())
    assert [s.member.peer for s in chain.seated(0)] == ["lead", "a"]
    assert chain.members() == [LEAD, a, b]
    assert chain.is_active(1, "a")
    assert not chain.is_active(0, "a")
    chain.append(roster(chain, joins=(Seating(0, a, "active"),), leaves=(seats[1],)), ())
    assert [s.member.peer for s in chain.active(0)] == ["a"]
    assert chain.member_of("lead") is None
    assert chain.empty_stages() == []


# ---- quorum, voters, acceptor ----


@given(st.integers(1, 7), st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)))
def test_two_quorums_always_share_a_voter(count: int, one: set[int], other: set[int]) -> None:
    voters = tuple(Member(f"p{i}", 1) for i in range(count))
    a, b = {voters[i] for i in one if i < count}, {voters[i] for i in other if i < count}
    if is_quorum(a, voters) and is_quorum(b, voters):
        assert a & b


@pytest.mark.parametrize(
    ("held", "count", "enough"),
    [
        ((0,), 1, True),
        ((1,), 2, False),
        ((0,), 2, True),
        ((0,), 3, False),
        ((1, 2), 3, True),
        ((2, 3), 4, False),
        ((), 0, False),
    ],
)
def test_quorum(held: tuple[int, ...], count: int, enough: bool) -> None:
    voters = tuple(Member(f"p{i}", 1) for i in range(count))
    assert is_quorum({voters[i] for i in held}, voters) == enough


def test_another_life_of_a_voter_does_not_vote() -> None:
    voters = (Member("a", 1), Member("b", 1), Member("c", 1))
    assert not is_quorum({Member("a", 1), Member("b", 2), Member("x", 1)}, voters)


def test_voters_are_spread_over_the_stages() -> None:
    seats = [Seating(s, Member(f"s{s}r{r}", 1), "active") for s in range(5) for r in range(3)]
    chosen = choose_voters(seats, Member("s2r0", 1))
    assert [v.peer for v in chosen] == ["s2r0", "s0r0", "s1r0", "s3r0", "s4r0", "s0r1", "s1r1"]
    assert choose_voters([], LEAD) == (LEAD,)
    assert choose_voters([Seating(0, Member("p", 1), "passive")], LEAD) == (LEAD,)


def test_a_voter_holds_one_record_per_ballot_and_place() -> None:
    chain, voter = seated_chain(), Acceptor()
    first, second = commit(chain), commit(chain, attempt=2)
    assert voter.hold(Ballot(2, "a"), first, ())
    assert voter.hold(Ballot(2, "a"), first, ()), "again"
    assert not voter.hold(Ballot(2, "a"), second, ())
    assert not voter.hold(Ballot(1, "z"), second, ()), "a lower ballot"
    assert voter.hold(Ballot(3, "a"), second, ()), "a higher one replaces it"
    assert voter.holding
    assert voter.holding.id == record_id(second)
    voter.settled("another head")
    assert voter.holding is None
