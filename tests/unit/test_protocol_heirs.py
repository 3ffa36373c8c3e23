"""The last holder of a stage goes in order: who takes it, who only keeps it, and what the run waits for meanwhile."""

from __future__ import annotations

import pytest

from protocol.chain import Chain
from protocol.departure import Departure
from protocol.ids import Member
from protocol.manifest import Manifest
from protocol.membership import Membership
from protocol.messages import Kept, Learning, Wish
from protocol.records import Rebuild, Roster, Seating, Source
from protocol.recovery import Next, Recovery
from protocol.sizes import PROCESS_BYTES, need_bytes, seat_bytes, state_bytes
from protocol.view import View
from tests.tools.core import BALLOT, LEAD, Core
from tests.unit.test_protocol_members import a_chain, apply
from tests.unit.test_protocol_recovery import a_run

LEAVER = Member("p2.0", 1)
NEW = Member("new", 1)
OTHERS = ("lead", "p1.0", "p3.0", "p4.0")


class Leaving:
    """A run of which the last holder of S2 goes, while each of the others has `beside` bytes beside its own seat."""

    def __init__(self, beside: int, manifest: Manifest | None = None, *more: Seating) -> None:
        self.manifest = manifest or a_run()
        self.chain: Chain = a_chain(self.manifest, *more)
        self.members = Membership(self.manifest, self.chain)
        self.recovery = Recovery(self.manifest, LEAD, self.chain, View(1.0), self.members)
        self.now = 10.0
        for seating in self.chain.seatings:
            self.members.handover.heirs.memory[seating.member.peer] = need_bytes(self.manifest, seating.stage) + beside
        self.members.on_leave(LEAVER, "test", self.now)

    def decide(self) -> list[Seating]:
        """What the next Roster seats; it is decided."""
        changes = self.members.changes(self.now)
        assert changes, self.members.handover.waits(self.now)
        for seating in changes.joins:
            self.members.gathering.leave(seating.member)
        apply(self.chain, changes, self.members)
        self.now += 1.0
        return list(changes.joins)

    def learned(self, member: Member, stage: int = 2) -> None:
        chain = self.chain
        self.members.on_learning(member, Learning(BALLOT, stage, chain.state_ids[stage], "d", 0.0, chain.head), self.now)

    def parked(self, at: str = "p1.0") -> None:
        """Until S2 is parked there, and its leaver gone."""
        assert self.decide() == [Seating(2, Member(at, 1), "learner")]
        self.learned(Member(at, 1))
        assert self.decide() == [Seating(2, Member(at, 1), "parked")]
        assert self.decide() == []
        assert [s.role for s in self.chain.seated(2)] == ["parked"]


def room_for(what: str) -> int:
    manifest = a_run()
    return {"nothing": 0, "keeping": state_bytes(manifest, 2), "computing": seat_bytes(manifest, 2)}[what]


def test_a_neighbour_with_room_computes_it() -> None:
    run = Leaving(room_for("computing"))
    assert run.decide() == [Seating(2, Member("p1.0", 1), "learner")]
    assert "handed over by a node that leaves, to p1.0, which has 120 s for it" in run.members.handover.waits(10.0).replace(
        "2 min", "120 s"
    )
    run.learned(Member("p1.0", 1))
    assert run.decide() == [Seating(2, Member("p1.0", 1), "active")]
    assert run.decide() == []
    assert not run.members.handover.waits(run.now)


def test_who_has_room_to_compute_it_comes_before_a_nearer_one_that_can_only_keep_it() -> None:
    run = Leaving(room_for("keeping"))
    run.members.handover.heirs.memory["p4.0"] += seat_bytes(run.manifest, 2)
    assert run.decide() == [Seating(2, Member("p4.0", 1), "learner")]


def test_a_replica_that_its_stage_can_spare_comes_first() -> None:
    run = Leaving(room_for("computing"), None, Seating(4, Member("extra", 1), "active"))
    assert run.decide() == [Seating(2, Member("extra", 1), "learner")]
    pinned = Leaving(room_for("computing"), None, Seating(4, Member("extra", 1), "active", pinned=True))
    assert pinned.decide() == [Seating(2, Member("p4.0", 1), "learner")], "the other one of S4 is not pinned"


def test_where_nobody_can_compute_it_a_neighbour_parks_it_and_the_run_waits() -> None:
    run = Leaving(room_for("keeping"))
    run.parked()
    assert LEAVER not in run.chain.members()
    assert run.recovery.next(run.now) == Next(), "nothing is lost"
    assert "stage 2 is parked at p1.0, which has no room to compute it, until a node with >=" in run.members.handover.waits(
        run.now
    )
    run.now = 1e6
    assert not run.members.changes(run.now)
    assert run.members.handover.waits(run.now)


def test_a_parked_stage_goes_on_at_a_newcomer_that_copies_it() -> None:
    run = Leaving(room_for("keeping"))
    run.parked()
    run.members.on_wish(Wish(Member("tiny", 1), -1, "n", "x:1", PROCESS_BYTES))
    assert not run.members.changes(run.now), "it has no room either"
    run.members.on_wish(Wish(NEW, -1, "n", "x:1", need_bytes(run.manifest, 2)))
    assert run.decide() == [Seating(2, NEW, "learner")]
    assert "from where new copies it" in run.members.handover.waits(run.now)
    run.learned(NEW)
    assert run.decide() == [Seating(2, NEW, "active")], "nobody computes it: there is no sibling to compare with"
    assert run.decide() == []
    assert run.chain.seated(2) == [Seating(2, NEW, "active")], "it is kept no longer"
    assert not run.members.handover.waits(run.now)


def test_a_parked_stage_is_computed_where_it_is_as_soon_as_there_is_room() -> None:
    run = Leaving(room_for("keeping"))
    run.parked()
    run.members.handover.heirs.memory["p1.0"] = 0
    assert not run.members.changes(run.now), "whose room is not known: not before somebody comes"
    run.members.handover.heirs.memory["p1.0"] = need_bytes(run.manifest, 1) + room_for("computing")
    assert run.decide() == [Seating(2, Member("p1.0", 1), "active")]


def test_who_keeps_a_stage_and_goes_hands_it_on() -> None:
    run = Leaving(room_for("keeping"))
    run.parked()
    run.members.on_leave(Member("p1.0", 1), "test", run.now)
    assert run.members.handover.stages() == [1, 2]
    heirs = run.decide() + run.decide()
    assert {(s.stage, s.role) for s in heirs} == {(1, "learner"), (2, "learner")}
    assert len({s.member for s in heirs}) == 2, "each has room for one"


def test_a_stage_that_is_kept_by_one_that_dies_is_lost() -> None:
    run = Leaving(room_for("keeping"))
    run.parked()
    gone = tuple(s for s in run.chain.seatings if s.member.peer == "p1.0")
    run.chain.append(Roster(run.chain.head, 1, (), gone, (LEAD,)), ())
    assert "stage 1 has no holder" in run.recovery.next(run.now).sentence
    assert "stage 2 has no holder" in run.recovery.next(run.now).sentence


def test_without_room_for_the_state_the_leaver_is_told_so() -> None:
    run = Leaving(room_for("nothing"))
    assert not run.members.changes(run.now)
    assert "no other has room for its" in run.members.handover.waits(run.now)


def test_a_parked_stage_is_a_source_for_a_lost_one() -> None:
    run = Leaving(room_for("keeping"))
    run.parked()
    run.members.on_wish(Wish(NEW, -1, "n", "x:1", 0))
    gone = tuple(s for s in run.chain.seatings if s.stage == 3)
    run.chain.append(Roster(run.chain.head, 1, (), gone, (LEAD,)), ())
    run.recovery.next(run.now)
    record = run.recovery.next(run.now + 20.0).record
    assert record is not None
    assert [s.stage for s in record.sources] == [2, 4]  # type: ignore[union-attr]
    assert run.chain.fits(record) == ""


def test_a_holder_that_is_back_is_not_asked_while_the_stage_is_kept() -> None:
    run = Leaving(room_for("keeping"))
    run.parked()
    run.members.on_wish(Wish(LEAVER, 2, "n", "x:1", 0, (Kept(2, run.chain.state_ids[2], "d"),)))
    assert run.recovery.next(run.now) == Next()
    assert run.decide() == [Seating(2, LEAVER, "active", pinned=True)], "it has nothing to copy"


# ---- too little time for the whole state ----


def handing_over(seconds_left: float, room: str = "computing", manifest: Manifest | None = None) -> Leaving:
    """S2 is on its way to p1.0, which says how long it still needs, ten seconds after its leaver was told to go."""
    run = Leaving(room_for(room), manifest)
    run.decide()
    run.members.changes(run.now)
    run.now = 20.0
    told = Learning(BALLOT, 2, "", "", seconds_left, "")
    run.members.on_learning(Member("p1.0", 1), told, run.now)
    return run


def weights_alone(run: Leaving) -> Rebuild:
    record = run.recovery.next(run.now).record
    assert isinstance(record, Rebuild)
    assert run.chain.fits(record) == ""
    return record


def test_where_the_time_is_too_short_the_weights_alone_are_handed_over() -> None:
    assert handing_over(seconds_left=120.0).recovery.next(20.0) == Next(), "110 s are left, and it may be wrong by a tenth"
    run = handing_over(seconds_left=122.0)
    state = run.chain.state_ids[2]
    record = weights_alone(run)
    assert record.sources == (Source(2, state, 1.0),)
    assert record.joins == (Seating(2, Member("p1.0", 1), "active", 1), Seating(2, LEAVER, "parked", 0))
    run.chain.append(record, ())
    assert "the weights of stage 2 alone" in run.recovery.next(run.now).sentence
    assert not run.members.changes(run.now), "who gives them stays"
    assert Departure(LEAVER, run.chain, 120.0).begin("test", 0.0).startswith("leaving after handing over stage 2")
    run.recovery.on_learning(Member("p1.0", 1), Learning(BALLOT, 2, run.chain.state_ids[2], "d", 0.0, run.chain.head))
    assert run.recovery.next(run.now) == Next()
    assert run.decide() == []
    assert LEAVER not in run.chain.members()


@pytest.mark.parametrize("rules", [{"policy": "none"}, {"moments": "averaged"}, {}])
def test_no_weights_alone_where_nothing_is_rebuilt_or_begins_anew_and_where_it_could_not_be_computed(
    rules: dict[str, object],
) -> None:
    run = handing_over(1e6, room="computing" if rules else "keeping", manifest=a_run(**rules))
    assert run.recovery.next(run.now) == Next()


def test_before_enough_was_measured_nothing_is_given_up() -> None:
    assert handing_over(seconds_left=1e9).recovery.next(20.0) == Next(), "nothing comes at present"
    run = handing_over(seconds_left=1e6)
    assert run.recovery.next(16.9) == Next(), "it began six seconds before"
    assert run.recovery.next(17.1).record


def test_a_leaver_that_dies_while_it_gives_its_weights_leaves_the_stage_to_its_neighbours() -> None:
    run = handing_over(seconds_left=122.0)
    run.chain.append(weights_alone(run), ())
    gone = tuple(s for s in run.chain.seatings if s.member == LEAVER)
    run.chain.append(Roster(run.chain.head, 1, (), gone, (LEAD,)), ())
    again = run.recovery.next(run.now).record
    assert isinstance(again, Rebuild)
    assert (again.generation, [s.stage for s in again.sources], again.joins[0].member.peer) == (2, [1, 3], "p1.0")
    assert run.chain.fits(again) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"joins": (Seating(2, Member("p1.0", 1), "active", 1),)},
        {"joins": (Seating(2, Member("p1.0", 1), "active", 1), Seating(2, Member("p3.0", 1), "parked", 0))},
        {"joins": (Seating(2, LEAVER, "parked", 0),)},
        {"joins": (Seating(2, Member("p1.0", 1), "active", 1), Seating(2, LEAVER, "passive", 0))},
        {"sources": (Source(2, "another state", 1.0),)},
        {"sources": (Source(3, "another stage", 1.0),)},
    ],
)
def test_weights_that_nobody_gives_are_refused(change: dict[str, object]) -> None:
    run = handing_over(seconds_left=122.0)
    record = weights_alone(run)
    wrong = Rebuild(**{name: getattr(record, name) for name in Rebuild.__dataclass_fields__} | change)
    assert run.chain.fits(wrong)


# ---- relief and handing over ----


def test_a_second_seat_is_given_up_when_somebody_else_serves_the_stage() -> None:
    manifest = a_run()
    chain = a_chain(manifest)
    second, newcomer = Seating(2, Member("p1.0", 1), "active"), Seating(2, NEW, "active")
    chain.append(Roster(chain.head, 1, (second, newcomer), tuple(chain.active(2)), (LEAD,)), ())
    members = Membership(manifest, chain)
    changes = members.changes(1.0)
    assert changes.leaves == (second,)
    apply(chain, changes, members)
    assert not members.changes(2.0)


@pytest.mark.parametrize("leaves", [False, True])
def test_no_seat_is_given_up_for_the_sake_of_somebody_who_is_silent(leaves: bool) -> None:
    """It may be dead, and whoever gives up would be the last one that has the stage."""
    chain = a_chain(a_run())
    mine, other = Seating(2, Member("p1.0", 1), "active"), Seating(2, NEW, "active")
    chain.append(Roster(chain.head, 1, (mine, other), tuple(chain.active(2)), (LEAD,)), ())
    members, silent = Membership(a_run(), chain), {NEW}
    members.hears = lambda member, _seconds, _now: member not in silent
    if leaves:
        members.on_leave(mine.member, "test", 0.0)
    assert mine not in members.changes(1.0).leaves
    silent.clear()
    assert mine in members.changes(2.0).leaves


def test_who_was_only_expected_is_not_taken_for_heard() -> None:
    """A coordinator that has just taken over knows of nobody yet."""
    view = View(3.0)
    assert not view.is_there("a", 2.0, 0.0)
    view.expect("a", 0.0)
    assert not view.is_there("a", 2.0, 0.5)
    view.heard("a", 1.0)
    view.expect("a", 2.0)
    assert (view.is_there("a", 2.0, 3.0), view.is_there("a", 2.0, 3.5)) == (True, False)
    view.tick({"a": 0.1}, 4.0)
    assert view.is_there("a", 2.0, 5.0)
    view.forget("a")
    view.expect("a", 5.0)
    assert not view.is_there("a", 2.0, 5.0)
    view.tick({"a": 0.1}, 5.2)
    assert view.is_there("a", 2.0, 5.2)


def test_a_second_seat_at_stage_0_goes_back_to_being_a_copy() -> None:
    manifest = a_run(embedding_copies=1)
    chain = a_chain(manifest)
    shared, newcomer = Seating(0, Member("p1.0", 1), "active"), Seating(0, NEW, "active")
    chain.append(Roster(chain.head, 1, (shared, newcomer), tuple(chain.active(0)), (Member("p1.0", 1),)), ())
    changes = Membership(manifest, chain).changes(1.0)
    assert [(s.stage, s.member.peer, s.role) for s in changes.joins] == [(0, "p1.0", "passive")]


def test_the_last_holder_hands_its_stage_to_a_spare_and_then_goes() -> None:
    manifest = a_run()
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    leaver = Member("p2.0", 1)
    members.on_leave(leaver, "test", 1.0)
    members.on_wish(Wish(NEW, -1, "n", "x:1", 0))
    assert members.handover.stages() == [2]
    heir = members.changes(2.0)
    assert [(s.stage, s.member, s.role) for s in heir.joins] == [(2, NEW, "learner")]
    members.gathering.leave(NEW)
    apply(chain, heir, members)
    assert not members.changes(3.0)
    members.on_learning(NEW, Learning(BALLOT, 2, chain.state_ids[2], "d", 0.0, chain.head), 4.0)
    raised = members.changes(4.0)
    assert [(s.stage, s.role) for s in raised.joins] == [(2, "active")], "nobody is left to compare its bits with"
    apply(chain, raised, members)
    assert members.handover.stages() == []
    assert [s.member for s in members.changes(5.0).leaves] == [leaver]


def test_a_coordinator_goes_last_of_those_that_are_told_to_go_at_once() -> None:
    """For a while: whoever else is told says so within a heartbeat; and one that waits for its heir may take long."""
    manifest = a_run()
    chain = a_chain(manifest, replicas=2)
    members, beat_s = Membership(manifest, chain), manifest.timing.heartbeat_s
    members.on_leave(LEAD, "test", 0.0)
    assert not members.changes(0.9 * beat_s), "others may be about to say the same"
    assert [s.member for s in members.changes(1.1 * beat_s).leaves] == [LEAD]
    for peer in ("p2.0", "p2.1"):
        members.on_leave(Member(peer, 1), "test", 1.1 * beat_s)
    first = members.changes(1.2 * beat_s)
    assert [s.member.peer for s in first.leaves] == ["p2.0"], "the other one is the last holder of its stage"
    apply(chain, first, members)
    heir = members.changes(1.3 * beat_s)
    assert [s.role for s in heir.joins] == ["learner"]
    apply(chain, heir, members)
    assert not members.changes(3.9 * beat_s)
    assert [s.member for s in members.changes(4.1 * beat_s).leaves] == [LEAD]


def test_a_spare_without_the_memory_inherits_nothing() -> None:
    manifest = a_run()
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    members.on_leave(Member("p2.0", 1), "test", 1.0)
    members.on_wish(Wish(Member("tiny", 1), -1, "n", "x:1", 1))
    assert members.spares(2) == []
    assert members.changes(2.0).joins[0].member.peer == "p1.0", "the nearest member takes it instead"


def test_without_a_spare_a_neighbour_takes_it_too_and_where_all_go_nobody_waits() -> None:
    manifest = a_run()
    chain = a_chain(manifest)
    members = Membership(manifest, chain)
    members.on_leave(Member("p2.0", 1), "test", 1.0)
    assert members.changes(2.0).joins[0].member.peer == "p1.0"
    for member in chain.members():
        members.on_leave(member, "test", 3.0)
    assert len(members.changes(3.0).leaves) == len(chain.seatings)


@pytest.mark.parametrize(("peer", "begins"), [("p1.0", True), ("p2.0", False)])
def test_who_is_far_behind_makes_the_stage_that_it_is_given_and_not_the_one_that_it_gives(peer: str, begins: bool) -> None:
    run = handing_over(seconds_left=122.0)
    run.chain.append(weights_alone(run), ())
    core = Core(run.manifest, peer, [Seating(0, LEAD, "active")])
    core.tell(run.chain.summary(BALLOT, ()))
    assert core.state.chain.head == run.chain.head
    assert (2 in core.state.bench.seats) == begins
