"""Policy redundant: at whom each stage has its copy, and how that follows whoever computes what."""

from __future__ import annotations

import pytest

from protocol.chain import Chain
from protocol.copies import Copies, first_copies, hosts, is_copy
from protocol.gathering import Gathering
from protocol.ids import Member
from protocol.losses import promotions
from protocol.manifest import Manifest
from protocol.membership import Changes, Membership
from protocol.messages import Wish
from protocol.placement import Placement
from protocol.recipes import beyond_recovery
from protocol.records import Roster, Seating
from protocol.sizes import (
    data_bytes,
    join_bytes,
    need_bytes,
    passive_bytes,
    seat_bytes,
    stage_parameters,
    state_bytes,
    step_traffic,
)
from protocol.speeds import Speeds
from tests.tools.core import LEAD, a_manifest
from tests.unit.test_protocol_members import NEW, applied, commit, learning, wish

NAMES = ("lead", "one", "two", "three")


def a_run(**recovery: object) -> Manifest:
    return a_manifest(num_block_stages=3, recovery={"policy": "redundant", **recovery})


def member(name: str) -> Member:
    return LEAD if name == LEAD.peer else Member(name, 1)


ROWS = [[member(name)] for name in NAMES]


class Run:
    """One replica of each stage and its copies; some steps are committed."""

    def __init__(self, rows: list[list[Member]] = ROWS, more: tuple[Seating, ...] = ()) -> None:
        self.manifest = a_run()
        self.chain = Chain(self.manifest, LEAD)
        seatings = [Seating(stage, m, "active") for stage, row in enumerate(rows) for m in row]
        seatings += [*first_copies(self.manifest, rows), *more]
        self.chain.append(Roster(self.chain.head, 0, tuple(seatings), (), (LEAD,)), ())
        commit(self.chain, self.manifest)
        self.members = Membership(self.manifest, self.chain)

    def decide(self, now: float = 5.0) -> Changes:
        changes = self.members.changes(now)
        if changes:
            self.chain.append(self.members.roster(changes, LEAD), ())
        return changes

    def settle(self) -> None:
        """Every learner has the newest state at once, and proves itself, until nothing is left to decide."""
        for _ in range(20):
            for seating in self.chain.in_role("learner"):
                self.members.on_learning(seating.member, learning(self.chain, seating.stage), 4.0)
            for seating in [*self.chain.in_role("passive"), *self.chain.in_role("active")]:
                self.members.on_applied(seating.member, applied(self.chain, seating.stage))
            if not self.decide():
                return
            commit(self.chain, self.manifest)
        raise AssertionError(f"it never comes to rest: {self.seats()}")

    def lose(self, name: str) -> None:
        gone = tuple(self.chain.seats_of(member(name)))
        stay = [s for s in self.chain.seatings if s not in gone]
        self.chain.append(Roster(self.chain.head, self.chain.step, promotions(stay), gone, (LEAD,)), ())
        commit(self.chain, self.manifest)

    def seats(self) -> set[tuple[str, int, str]]:
        return {(s.member.peer, s.stage, s.role) for s in self.chain.seatings}


def test_each_stage_has_its_copy_at_the_stage_before() -> None:
    assert [hosts(stage, ROWS) for stage in range(4)] == [[member(n)] for n in ("three", "lead", "one", "two")]
    gathering = Gathering(a_run())
    for stage, name in enumerate(NAMES):
        gathering.enter(Wish(member(name), stage, name, f"{name}:1", 0))
    passive = {(s.stage, s.member.peer) for s in gathering.seat().seatings if s.role == "passive"}
    assert passive == {(0, "three"), (1, "lead"), (2, "one"), (3, "two")}


def test_who_computes_a_stage_holds_no_copy_of_it() -> None:
    """After a promotion the stage before that one keeps it; and whoever computes alone has nobody to keep it."""
    rows = [[LEAD], [member("one")], [member("one")], [member("three")]]
    assert [hosts(stage, rows) for stage in range(4)] == [[member("three")], [LEAD], [LEAD], [member("one")]]
    assert [hosts(stage, [[LEAD]] * 4) for stage in range(4)] == [[]] * 4
    assert hosts(2, [[LEAD], [member("a"), member("b")], [member("b")], [NEW]]) == [member("a")]


def test_every_replica_of_the_stage_before_has_a_copy() -> None:
    rows = [[*row, member(f"{row[0].peer}-b")] for row in ROWS]
    found = {(s.stage, s.member.peer) for s in first_copies(a_run(), rows)}
    assert found == {(stage, m.peer) for stage in range(4) for m in rows[stage - 1]}


def test_a_copy_is_not_there_to_compute() -> None:
    run = Run()
    assert all(is_copy(s, run.chain) == (s.role == "passive") for s in run.chain.seatings)
    placement = Placement(run.manifest, run.chain, Speeds())
    assert [placement.strength(stage, ())[1] for stage in range(4)] == [1] * 4
    before = run.seats()
    run.settle()
    assert run.seats() == before, "copies that have proved themselves stay copies"
    run.lose("two")
    promoted = [s for s in run.chain.seats_of(member("one")) if s.role == "active"]
    assert [(s.stage, is_copy(s, run.chain)) for s in promoted] == [(1, False), (2, False)]
    assert not is_copy(Seating(0, member("one"), "parked"), run.chain)
    alone = Run(more=(Seating(1, NEW, "passive"),))
    assert not is_copy(Seating(1, NEW, "passive"), alone.chain), "who holds nothing else is a replica to be"
    moves = Run(more=(Seating(1, NEW, "passive"), Seating(3, NEW, "learner")))
    assert not any(is_copy(s, moves.chain) for s in moves.chain.seats_of(NEW)), "nor is one who computes nothing yet"


@pytest.mark.parametrize("lost", ["one", "two", "three"])
def test_after_a_loss_the_copies_follow_and_a_newcomer_makes_all_as_it_was(lost: str) -> None:
    run = Run()
    run.lose(lost)
    stage = NAMES.index(lost)
    heir, behind = NAMES[stage - 1], NAMES[stage - 2]
    assert (heir, stage, "active") in run.seats()
    run.settle()
    after = (stage + 1) % 4
    copies = {(peer, s) for peer, s, role in run.seats() if role == "passive"}
    assert {(heir, after), (behind, stage), (behind, stage - 1)} <= copies
    assert len(copies) == 4, "each stage has one"
    run.members.on_wish(wish())
    run.settle()
    rows = [[s.member for s in run.chain.active(i)] for i in range(4)]
    assert sorted(len(row) for row in rows) == [1] * 4
    assert len({row[0] for row in rows}) == 4, "each computes one stage"
    expected = {(m.peer, i, "active") for i, row in enumerate(rows) for m in row}
    expected |= {(m.peer, i, "passive") for i in range(4) for m in rows[i - 1]}
    assert run.seats() == expected


def test_who_is_relieved_of_a_promoted_stage_keeps_it_as_a_copy() -> None:
    """Nothing is copied for that; of the stage that it has had from the beginning another one has the copy."""
    run = Run(more=(Seating(2, NEW, "passive"),))
    run.lose("two")
    promoted = next(s for s in run.chain.active(2))
    assert (promoted.member, promoted.role) == (member("one"), "active")
    joins = (Seating(2, NEW, "active"),)
    run.chain.append(Roster(run.chain.head, run.chain.step, joins, (), (LEAD,)), ())
    copies = Copies(run.manifest, run.chain)
    assert copies.stays(promoted)
    assert not copies.stays(run.chain.active(1)[0])
    changes = run.decide()
    assert [(s.stage, s.member.peer, s.role) for s in changes.joins] == [(2, "one", "passive")]
    assert not changes.leaves


def test_a_node_without_room_gets_no_copy() -> None:
    run = Run()
    run.lose("two")
    taken = need_bytes(run.manifest, 1) - seat_bytes(run.manifest, 2)  # what its first stage takes
    needs = passive_bytes(run.manifest, 3)
    both = taken + seat_bytes(run.manifest, 2)
    for room, expected in ((needs - 1, False), (needs, True)):
        run.members.handover.heirs.memory["one"] = both + room
        found = {(s.stage, s.member.peer) for s in run.members._missing(())}
        assert ((3, "one") in found) == expected


def test_a_leaver_waits_a_little_for_its_copies_successor() -> None:
    run = Run()
    run.members.on_leave(member("two"), "told to", 1.0)
    changes = run.decide(1.5)
    assert {(s.member.peer, s.stage, s.role) for s in changes.joins} == {("one", 3, "learner")}
    assert not run.decide(2.0), "the successor is at it"
    run.members.on_learning(member("one"), learning(run.chain, 3), 2.0)
    assert run.decide(2.5).joins[0].role == "passive"
    changes = run.decide(3.0)
    assert {(s.member.peer, s.stage) for s in changes.leaves} == {("two", 2), ("two", 3)}
    assert {(s.member.peer, s.stage, s.role) for s in changes.joins} == {("one", 2, "active")}


def test_who_moves_leaves_its_copies_behind() -> None:
    run = Run([*ROWS[:3], [*ROWS[3], NEW]])
    copies = Copies(run.manifest, run.chain)
    assert [s.stage for s in copies.beside(Seating(3, NEW, "active"))] == [0]
    assert Copies(a_manifest(policy="checkfree"), run.chain).beside(Seating(3, NEW, "active")) == ()


def test_whoever_computes_two_stages_gives_up_none_of_them_with_its_copies() -> None:
    run = Run()
    run.lose("two")
    run.settle()
    copies = Copies(run.manifest, run.chain)
    assert [(s.stage, s.role) for s in copies.beside(Seating(1, member("one"), "active"))] == [(3, "passive")]


def test_a_copy_that_nobody_needs_stays_until_those_that_are_to_have_one_do() -> None:
    """One that is only being learned is given up at once; a leaver's goes with it."""
    run = Run(more=(Seating(2, LEAD, "passive"),))
    copies, needless = Copies(run.manifest, run.chain), Seating(2, LEAD, "passive")
    assert copies.needless([needless], ()) == (needless,)
    assert copies.needless([needless], [LEAD]) == ()
    [wanted] = [s for s in run.chain.seated(2) if s.member == member("one")]
    run.chain.append(Roster(run.chain.head, run.chain.step, (), (wanted,), (LEAD,)), ())
    assert copies.needless([needless], ()) == (), "the only one that there is"
    learner = Seating(2, LEAD, "learner")
    assert copies.needless([learner], ()) == (learner,)


# ---- what it takes ----


def test_memory_is_that_of_two_stages() -> None:
    manifest = a_run()
    single = a_manifest(num_block_stages=3, recovery={"policy": "checkfree", "embedding_copies": 0})
    for stage in range(4):
        after = (stage + 1) % 4
        both = need_bytes(manifest, stage) - seat_bytes(manifest, stage)
        assert both - need_bytes(single, stage) + seat_bytes(single, stage) == seat_bytes(manifest, after)
        assert join_bytes(manifest, stage, True) == state_bytes(manifest, stage) + state_bytes(manifest, after)
    assert [data_bytes(manifest, stage) > 0 for stage in range(4)] == [True, False, False, True]
    assert [data_bytes(single, stage) > 0 for stage in range(4)] == [True, False, False, False]


def test_each_step_brings_the_next_stages_gradient_too() -> None:
    manifest = a_run()
    single = a_manifest(num_block_stages=3, recovery={"policy": "checkfree", "embedding_copies": 0})
    for stage in range(4):
        twice, once = step_traffic(manifest, stage), step_traffic(single, stage)
        assert twice.bytes_in - once.bytes_in == 4 * stage_parameters(manifest, (stage + 1) % 4)
        assert twice.bytes_out - once.bytes_out == 4 * stage_parameters(manifest, stage)


# ---- what a manifest may say ----


def test_embedding_copies_have_no_place_beside_it() -> None:
    assert a_run().recovery.embedding_copies == 0
    with pytest.raises(ValueError, match="embedding_copies is not for policy redundant, which keeps a copy of every stage"):
        a_run(embedding_copies=1)


def test_it_is_said_what_was_lost_for_good() -> None:
    assert "its copies (recovery.policy redundant) are gone with it" in beyond_recovery([0], 3, a_run())
