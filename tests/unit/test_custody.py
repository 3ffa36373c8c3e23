"""What a node keeps of a stage when it loses its seat: as a learner of it, through a change of lineage, and no longer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from protocol.commands import Command, CreateSeat, DropSeat, GoOn, Learn, Note, StopLearning
from protocol.events import Learned, LeasesSeen, Tick
from protocol.ids import Ballot, Member
from protocol.learners import UNKNOWN_S
from protocol.membership import Membership
from protocol.messages import AppliedReport, Contact, Goodbye, Heartbeat, Kept, Learning, Standing, Summary, Wish, Yield
from protocol.records import Commit, Rebuild, Role, Roster, Seating, Source, StageResult
from protocol.seat import SeatPhase
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, sent
from tests.unit.test_protocol_members import a_chain
from tests.unit.test_protocol_recovery import a_run

ME = Member("p1.0", 1)
OTHER = Member("p1.1", 1)


class Passing(Core):
    """A node that sees commits and heartbeats pass."""

    def commit(self) -> list[Command]:
        chain = self.state.chain
        results = tuple(StageResult(s, "d", 1.0) for s in range(self.manifest.num_stages))
        return self.decide(Commit(chain.head, chain.step + 1, 1, results, 1.0, self.manifest.batch.tokens_per_step))

    def beat(self) -> list[Command]:
        """A heartbeat passes."""
        out: list[Command] = []
        for _ in range(5):
            out += self.do(Tick(), 0.25)
        return out


class Kept1(Passing):
    """p1.0, which was taken off the roster with the newest state of stage 1; p1.1 goes on."""

    def __init__(self) -> None:
        manifest = a_manifest()
        super().__init__(manifest, ME.peer, holders(manifest, replicas=2))
        chain = self.state.chain
        mine = next(s for s in chain.seatings if s.member == ME)
        self.decide(Roster(chain.head, chain.step, (), (mine,), (LEAD,)))

    def seat(self, role: Role, stage: int = 1) -> list[Command]:
        chain = self.state.chain
        return self.decide(Roster(chain.head, chain.step, (Seating(stage, ME, role),), (), (LEAD,)))

    def wishes(self) -> list[tuple[Kept, ...]]:
        return [wish.kept for wish in sent(self.beat(), Wish)]


# ---- a learner of the stage ----


def test_a_learner_that_kept_the_newest_state_drops_and_copies_nothing() -> None:
    """Its siblings may die before it had copied a byte: it has all that is left of the stage."""
    c = Kept1()
    out = c.seat("learner")
    assert not of(out, DropSeat)
    assert not of(out, Learn)
    told = sent(c.beat(), Learning, LEAD.peer)
    assert [(m.stage, m.state_id, m.digest) for m in told] == [(1, c.state.chain.state_ids[1], "digest")] * len(told) != []
    out = c.seat("passive")
    assert c.state.bench.seats[1].phase is SeatPhase.IDLE
    assert [n["rung"] for n in notes(out, "provenance")] == ["returned"]
    assert not sent(c.beat(), Learning), "its role says that this was heard"
    out = c.commit()
    assert not of(out, Learn), "it takes part, and has missed a commit like anybody"


def test_when_the_run_goes_on_without_it_it_copies_what_it_has_no_more() -> None:
    c = Kept1()
    c.seat("learner")
    out = c.commit()
    assert [type(x) for x in out if isinstance(x, DropSeat | Learn)] == [DropSeat, Learn]
    assert not sent(c.beat(), Learning)
    assert not of(c.commit(), Learn), "once"


def test_a_learner_without_its_seat_does_not_begin_to_copy() -> None:
    c = Kept1()
    c.seat("learner")
    chain = c.state.chain
    c.decide(Roster(chain.head, chain.step, (), (Seating(1, ME, "learner"),), (LEAD,)))
    assert not of(c.commit(), Learn)


@pytest.mark.parametrize("role", ["passive", "active", "parked"])
def test_any_other_role_takes_up_what_was_kept(role: Role) -> None:
    c = Kept1()
    out = c.seat(role)
    assert not [x for x in out if isinstance(x, DropSeat | Learn | CreateSeat)]
    assert c.state.bench.seats[1].phase is SeatPhase.IDLE


def older() -> Kept1:
    """A learner that has the state of a step ago."""
    c = Kept1()
    state = c.state.chain.state_ids[1]
    c.commit()
    assert not [x for x in c.seat("learner") if isinstance(x, DropSeat | Learn)]
    told = sent(c.beat(), Learning, LEAD.peer)
    assert {(m.state_id, m.digest, m.seconds_left >= UNKNOWN_S) for m in told} == {(state, "digest", True)}
    return c


def copies(commands: Iterable[Command]) -> bool:
    """Has it begun to copy, and said that it has nothing any more?"""
    begun = [type(x) for x in commands if isinstance(x, DropSeat | Learn)]
    assert begun in ([], [DropSeat, Learn])
    return bool(begun) and [m.state_id for m in sent(commands, Learning)][:1] == [""]


def test_a_learner_with_an_older_state_rests_until_its_siblings_commit_a_step() -> None:
    """They may be gone, which is not noticed for a lapse; and that state would be all that is left."""
    assert copies(older().commit())


def test_a_learner_does_not_rest_for_long_where_no_step_is_committed() -> None:
    """The others may be waiting for it."""
    c, beats = older(), 1
    while not copies(c.beat()):
        beats += 1
    assert beats * c.manifest.timing.heartbeat_s >= c.manifest.timing.lapse_s
    assert beats <= 8


def test_a_learner_rests_as_long_as_nobody_else_holds_the_stage() -> None:
    c = older()
    chain = c.state.chain
    other = Seating(1, OTHER, "active")
    c.decide(Roster(chain.head, chain.step, (), (other,), (LEAD,)))
    for _ in range(10):
        assert not copies(c.beat())


def test_a_lost_stage_goes_on_from_what_a_learner_at_rest_has() -> None:
    c = older()
    chain, state = c.state.chain, c.state.bench.seats[1].state.state_id
    c.decide(Roster(chain.head, chain.step, (), (Seating(1, OTHER, "active"),), (LEAD,)))
    record = Rebuild(chain.head, chain.step, 1, 1, (Source(1, state, 1.0),), (Seating(1, ME, "active", 1),), (LEAD,))
    out = c.decide(record)
    assert [(x.stage, x.digest) for x in of(out, GoOn)] == [(1, "digest")]
    assert not [x for x in out if isinstance(x, DropSeat | Learn)]


def test_who_loses_its_seat_while_it_rests_offers_what_it_has() -> None:
    c = older()
    chain = c.state.chain
    out = c.decide(Roster(chain.head, chain.step, (), (Seating(1, ME, "learner"),), (LEAD,)))
    assert not of(out, DropSeat)
    assert {k.stage for kept in c.wishes() for k in kept} == {1}


@pytest.mark.parametrize("role", ["active", "passive"])
def test_a_seat_that_needs_a_state_is_not_made_from_the_seed(role: Role) -> None:
    """It was seated for a state that it has lost meanwhile: what the seed makes would go by the newest state's name."""
    c = Kept1()
    c.commit()
    assert not of(c.seat(role, stage=2), CreateSeat)
    assert sent(c.beat(), Goodbye, LEAD.peer)


def learned(c: Core) -> None:
    c.do(Learned(1, c.state.chain.state_ids[1], c.state.chain.step, "copied", 1, 1.0, 0, (OTHER.peer,), 8, 1.0))


def test_a_coordinator_that_takes_over_hears_what_a_learner_has() -> None:
    """The one before it was told, and died with the only other holder."""
    c = Kept1()
    c.commit()
    c.seat("learner")
    learned(c)
    c.tell(Standing(Ballot(2, "p2.0"), "training", "training", 0, -1, 0.0), "p2.0")
    assert {(m.state_id, m.digest) for m in sent(c.beat(), Learning, "p2.0")} == {(c.state.chain.state_ids[1], "copied")}


class Copying(Passing):
    """p1.0 copies stage 2 of p2.1 beside its stage 1; both are on the roster."""

    def __init__(self) -> None:
        manifest = a_manifest()
        seats = [s for s in holders(manifest, replicas=2) if s.member.peer != "p2.0"]
        super().__init__(manifest, ME.peer, seats)
        self.roster("learner")

    def roster(self, role: Role | None, *leaves: Seating) -> list[Command]:
        chain = self.state.chain
        joins = (Seating(2, ME, role),) if role else ()
        return self.decide(Roster(chain.head, chain.step, joins, leaves, (LEAD,)))

    def copied(self) -> list[Command]:
        chain = self.state.chain
        return self.do(Learned(2, chain.state_ids[2], chain.step, "copied", 1, 1.0, 0, ("p2.1",), 8, 1.0))


def test_a_whole_copy_outlives_that_its_seat_is_taken_and_granted_again() -> None:
    """Both records were decided while it was cut off; its donor has left on the strength of the copy, or dies now."""
    c = Copying()
    told = sent(c.copied(), Learning)[-1]
    assert told.head == c.state.chain.head
    out = c.roster(None, Seating(2, ME, "learner"))
    assert (2 in c.state.bench.seats, len(of(out, DropSeat))) == (False, 0)
    assert [x.stage for x in of(out, StopLearning)] == [2]
    out = c.roster("learner")
    assert not [x for x in out if isinstance(x, DropSeat | Learn)]
    assert told.digest in {m.digest for m in sent(c.beat(), Learning)}
    c.roster("active", Seating(2, Member("p2.1", 1), "active"))
    assert c.state.bench.seats[2].phase is SeatPhase.IDLE
    c = Copying()
    c.copied()
    c.roster(None, Seating(2, ME, "learner"))
    chain = c.state.chain
    out = c.decide(Roster(chain.head, chain.step, (Seating(0, ME, "learner"),), (), (LEAD,)))
    assert [x.stage for x in of(out, DropSeat)] == [2], "another seat needs its memory"


def test_who_is_seated_for_a_copy_that_nobody_can_give_it_any_more_lacks_it() -> None:
    c = Copying()
    c.roster("passive")
    assert not c.state.heartbeats.lacks, "it may copy yet"
    c.roster(None, Seating(2, Member("p2.1", 1), "active"))
    assert c.state.heartbeats.lacks
    assert sent(c.beat(), Goodbye, LEAD.peer)


def test_what_a_learner_says_of_a_seat_that_it_lost_since_is_not_heard() -> None:
    """It keeps nothing of that seat, though the same one may be granted again already."""
    c = Copying()
    chain, before = c.state.chain, c.state.chain.head
    assert chain.has_kept(ME, 2, before)
    c.roster(None, Seating(2, ME, "learner"))
    c.roster("learner")
    assert not chain.has_kept(ME, 2, before)
    assert chain.has_kept(ME, 1, before)
    assert chain.has_kept(ME, 2, chain.head)
    assert not chain.has_kept(ME, 2, "a head that nobody knows")


# ---- the coordinator's side ----


class Granting:
    """A run after a step, at the boundary at which a holder of stage 2 comes back."""

    def __init__(self, **more: Any) -> None:
        self.chain = a_chain(a_run(), replicas=2)
        self.members = Membership(a_run(), self.chain)
        self.newest = self.chain.state_ids[2]
        self.more = more

    def grants(self, kept: Iterable[Kept], stage: int = -1) -> tuple[int, Role]:
        self.members.on_wish(Wish(ME_AGAIN, stage, "n", "x:1", 0, tuple(kept)))
        (join,) = self.members.changes(1.0).joins
        return join.stage, join.role


ME_AGAIN = Member("p2.7", 1)


def test_a_holder_that_is_back_with_the_newest_state_takes_part_at_once() -> None:
    run = Granting()
    assert run.grants([Kept(2, run.newest, "d")]) == (2, "passive")
    assert Granting().grants([Kept(2, run.newest, "d")], stage=1) == (1, "learner"), "it asked for another one"
    assert Granting().grants([Kept(2, "an older one", "d")], stage=2) == (2, "learner")


def test_what_it_kept_must_be_what_its_siblings_have() -> None:
    run = Granting()
    for seating in run.chain.seated(2):
        run.members.on_applied(seating.member, AppliedReport(BALLOT, 2, 1, run.newest, "right"))
    assert run.grants([Kept(2, run.newest, "wrong")]) == (2, "learner")


def test_an_empty_stage_comes_before_the_one_that_it_kept() -> None:
    """It may be needed for that one; and this one has others."""
    run = Granting()
    lost = tuple(run.chain.seated(3))
    run.chain.append(Roster(run.chain.head, run.chain.step, (), lost, (LEAD,)), ())
    run.members.on_wish(Wish(ME_AGAIN, -1, "n", "x:1", 0, (Kept(2, run.newest, "d"),)))
    assert not run.members.changes(1.0)


# ---- another lineage ----


class Gave(Kept1):
    """p1.0 after it gave up its lineage, with its seat, for that of b."""

    def __init__(self, seated: bool = True) -> None:
        super().__init__()
        if seated:
            self.seat("active")
        self.out = self.tell(Yield(BALLOT, Contact("b", "b:1")))

    def joins(self, step: int = 7, generation: int = 0, role: Role | None = None) -> list[Command]:
        """b tells where its lineage stands."""
        b = Member("b", 1)
        seats = [Seating(s, b, "active") for s in range(3)]
        seats += [Seating(1, ME, role)] if role else []
        states, generations = tuple("s" * 32 for _ in seats[:3]), (0, generation, 0)
        told = Summary(Ballot(3, "b"), "e" * 32, step, 70, 1.0, tuple(seats), (b,), states, (), 90, "f" * 32, (), generations)
        return self.tell(told, "b")


@pytest.mark.parametrize("seated", [True, False])
def test_a_state_from_before_the_lineages_parted_is_offered_to_the_other_one(seated: bool) -> None:
    """Its coordinator knows whether the stage had it; a node that begins anew does not."""
    c = Gave(seated)
    assert not of(c.out, DropSeat)
    assert not c.state.bench.seats
    assert set(c.wishes()) == {()}, "it does not know yet whether the stage was rebuilt there"
    assert not of(c.joins(), DropSeat)
    assert {(k.stage, k.digest) for kept in c.wishes() for k in kept} == {(1, "digest")}


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"step": 51}, "too old"),
        ({"step": 7, "generation": 1}, "the stage was rebuilt there"),
    ],
)
def test_a_state_that_the_other_lineage_would_not_go_back_to_is_dropped(there: dict[str, Any], why: str) -> None:
    c = Gave()
    assert [x.stage for x in of(c.joins(**there), DropSeat)] == [1], why
    assert set(c.wishes()) == {()}


def test_a_state_from_beyond_the_other_lineage_is_dropped() -> None:
    """This one was further, and had parted with a loss."""
    c = Gave()
    kept = c.state.bench.custody._kept[1]
    kept.state.step = 8
    assert [x.stage for x in of(c.joins(step=7), DropSeat)] == [1]


def test_who_gets_a_seat_in_the_other_lineage_gives_up_what_it_kept() -> None:
    c = Gave()
    c.joins(role="learner")
    assert c.state.bench.seats[1].state.role == "learner"
    beats = [c.beat() for _ in range(8)]
    assert [copies(out) for out in beats].count(True) == 1


def test_whom_the_other_lineage_seats_already_has_no_state_for_that_and_says_so() -> None:
    """It is no holder, and goes as soon as a coordinator hears it."""
    c = Gave()
    c.joins(role="active")
    out = c.beat()
    assert {beat.lacks for beat in sent(out, Heartbeat, "b")} == {True}
    assert sent(out, Goodbye, "b")
    c = Gave()
    c.joins(role="learner")
    assert {beat.lacks for beat in sent(c.beat(), Heartbeat, "b")} == {False}, "a learner has what it is seated for"


def after_silence(role: Role, seconds: float) -> list[Command]:
    """What a member of b's lineage says when it has heard nobody for so long and x claims to coordinate."""
    c = Gave()
    c.joins(role=role)
    for _ in range(int(seconds)):
        c.do(Tick(), 1.0)
    return c.do(LeasesSeen(Contact("x", "x:1"), ())) + c.beat()


def test_who_lacks_its_state_and_is_led_by_nobody_any_more_joins_another_lineage() -> None:
    """It may not stand for the role, so those that could go on without a quorum have parted from it: it would wait for good."""
    timing = a_manifest().timing
    patience_s = timing.fork_after_s + 4 * timing.lapse_s
    out = after_silence("active", patience_s + 2)
    assert notes(out, "yielded") == [{"to": "x", "step": 7}]
    assert sent(out, Wish, "x")
    assert not notes(after_silence("active", patience_s - 2), "yielded"), "its own lineage may go on yet"
    assert not notes(after_silence("learner", patience_s + 2), "yielded"), "it lacks nothing that it is seated for"


def test_a_seat_without_a_whole_state_is_not_kept() -> None:
    c = older()
    assert copies(c.commit())
    out = c.tell(Yield(BALLOT, Contact("b", "b:1")))
    assert [x.stage for x in of(out, DropSeat)] == [1]
    assert not of(out, StopLearning)
    assert [n["stage"] for n in notes(out, "left")] == [1]
    assert of(out, Note)


def test_a_copy_that_ends_when_its_seat_is_gone_or_whole_changes_nothing() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest, 2))
    before = replace(core.state.bench.seats[1].state)
    for stage in (1, 2):
        assert core.do(Learned(stage, "another", 9, "copied", 9, 1.0, 0, ("p1.1",), 8, 1.0)) == []
    assert core.state.bench.seats[1].state == before
    assert list(core.state.bench.seats) == [1]
