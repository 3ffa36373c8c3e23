"""Policy `checkpoint`: to which step everybody goes back, when, who takes what was lost, and which rollbacks are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from protocol.chain import Chain
from protocol.commands import Command, DropSeat, Restore, Save
from protocol.events import Learned, RestoreFailed, Saved, SavedState, Surveyed, Tick
from protocol.fork import unmakeable
from protocol.ids import Ballot, Member, initial_state_id, next_state_id
from protocol.manifest import Manifest
from protocol.membership import Membership
from protocol.messages import Kept, Learning, OpenStep, Prepare, VoidStep, Wish
from protocol.records import Commit, Point, Rollback, Roster, Seating, StageResult
from protocol.recovery import Next, Recovery
from protocol.restoring import Unrestored
from protocol.rollback import MAX_POINTS, points_of
from protocol.rungs import Regain
from protocol.saving import Saving
from protocol.seat import SeatPhase, SeatState
from protocol.view import View
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, says, sent
from tests.unit.test_protocol_members import a_chain

NEW, OTHER = Member("new", 1), Member("other", 1)
HIGHER = Ballot(2, LEAD.peer)
STORE = {"policy": "checkpoint", "checkpoint_every": 2, "checkpoint_store": "/store"}


def a_run(num_block_stages: int = 2, **recovery: object) -> Manifest:
    rules = {"rebuild_grace_s": 10.0, "newcomer_wait_s": 5.0} | STORE | recovery
    return a_manifest(num_block_stages=num_block_stages, recovery=rules)


class Lost:
    """A run after some steps, some stages of which nobody holds."""

    def __init__(self, *stages: int, steps: int = 3, manifest: Manifest | None = None) -> None:
        self.manifest = manifest or a_run()
        self.chain = a_chain(self.manifest, steps=steps)
        self.lose(*stages)
        self.members = Membership(self.manifest, self.chain)
        self.view = View(self.manifest.timing.lapse_s)
        self.recovery = Recovery(self.manifest, LEAD, self.chain, self.view, self.members, BALLOT)
        self.now = 0.0

    def lose(self, *stages: int) -> None:
        leaves = tuple(s for s in self.chain.seatings if s.stage in stages)
        if leaves:
            self.chain.append(Roster(self.chain.head, self.chain.step, (), leaves, (LEAD,)), ())

    def wish(self, member: Member = NEW, stage: int = -1) -> None:
        self.members.on_wish(Wish(member, stage, "n", "x:1", 0))

    def next(self, now: float | None = None) -> Next:
        self.now = self.now if now is None else now
        return self.recovery.next(self.now)

    def saved(self, *points: Point, without: tuple[int, ...] = (), trouble: str = "") -> Next:
        """The coordinator looks, and finds all stages of these points, these left out."""
        survey = self.next().survey
        assert survey, self.next().sentence
        found = tuple(SavedState(s, state) for p in points for s, state in enumerate(p.states) if s not in without)
        self.recovery.rollbacks.on_surveyed(Surveyed(survey.number, found, trouble))
        return self.next()

    def decide(self, found: Next) -> Rollback:
        assert isinstance(found.record, Rollback), found.sentence
        assert self.chain.fits(found.record) == ""
        self.chain.append(found.record, ())
        for join in found.record.joins:
            self.members.gathering.leave(join.member)
        return found.record

    def restored(self, *members: Member) -> None:
        for seating in self.chain.seatings:
            if seating.member in members:
                learned = Learning(HIGHER, seating.stage, self.chain.state_ids[seating.stage], "digest", 0.0, self.chain.head)
                self.recovery.on_learning(seating.member, learned)


# ---- which points there are ----


def test_points_are_the_commits_after_which_all_is_saved_and_the_seed() -> None:
    chain = a_chain(a_run(), steps=5)
    assert [p.step for p in points_of(chain)] == [4, 2, 0]
    assert chain.points[-1].states != tuple(chain.state_ids)
    assert a_chain(a_run(), steps=4).points[-1].states == tuple(a_chain(a_run(), steps=4).state_ids)
    assert points_of(chain)[-1].states == tuple(initial_state_id(chain.manifest.run_id, s) for s in range(3))


def test_other_policies_have_no_points_and_never_go_back() -> None:
    chain = a_chain(a_manifest(policy="checkfree"), steps=4)
    assert chain.points == ()
    assert "policy checkfree" in chain.fits(Rollback(chain.head, 4, 1, 0, points_of(chain)[-1].states, (), (LEAD,), BALLOT))


def test_only_the_newest_points_are_remembered() -> None:
    manifest = a_run(checkpoint_every=1).model_copy(update={"max_steps": 100})
    chain = a_chain(manifest, steps=MAX_POINTS + 3)
    assert [p.step for p in chain.points] == list(range(4, MAX_POINTS + 4))


# ---- when, and to where ----


def test_goes_back_to_the_newest_step_that_is_saved_whole_once_somebody_takes_the_stage() -> None:
    lost = Lost(1, steps=5)
    assert "may come back for 10 s" in lost.next(100.0).sentence
    assert "no node can take stage 1 yet" in lost.next(110.0).sentence
    lost.wish()
    before, two = lost.chain.state_ids, lost.chain.points[0]
    found = lost.saved(*lost.chain.points, without=())
    assert found.sentence == "stage 1 is lost: everybody goes back to step 4, which is saved"
    record = lost.decide(found)
    assert record.joins == (Seating(1, NEW, "active", 0),)
    assert (lost.chain.step, lost.chain.epoch, lost.chain.fence) == (4, 1, BALLOT)
    assert lost.chain.state_ids == [next_state_id(s, lost.chain.head) for s in lost.chain.points[-1].states] != before
    assert lost.chain.points[0] == two and len(lost.chain.past) == 0
    assert lost.chain.tokens == 4 * lost.manifest.batch.tokens_per_step
    assert lost.chain.regained == {1: Regain("checkpoint", NEW.peer)}


def test_a_set_that_lacks_a_stage_does_not_count() -> None:
    lost = Lost(2, steps=5)
    lost.wish()
    lost.next(0.0)
    lost.now = 20.0
    two, four = lost.chain.points
    survey = lost.next().survey
    assert survey
    found = [SavedState(s, state) for s, state in enumerate(two.states)] + [SavedState(0, four.states[0])]
    lost.recovery.rollbacks.on_surveyed(Surveyed(survey.number, tuple(found)))
    assert lost.decide(lost.next()).to_step == 2


def test_begins_anew_where_nothing_is_saved() -> None:
    lost = Lost(0, steps=3)
    lost.wish()
    lost.next(0.0)
    lost.now = 20.0
    found = lost.saved()
    assert found.sentence == "stage 0 is lost: everybody goes back to the beginning: nothing is saved"
    assert lost.decide(found).to_step == 0
    assert (lost.chain.step, lost.chain.loss, lost.chain.squared_norms) == (0, None, [])


def test_a_store_that_cannot_be_looked_at_is_not_an_empty_one() -> None:
    lost = Lost(1)
    lost.wish()
    lost.next(0.0)
    lost.now = 20.0
    found = lost.saved(trouble="/store cannot be read: Permission denied")
    assert found.record is None
    assert found.sentence == "waiting: stage 1 is lost; looking what is saved: /store cannot be read: Permission denied"
    assert lost.next(20.5).survey is None
    assert lost.next(21.5).survey
    assert lost.next(22.0).survey is None  # it is looking
    assert lost.next(32.0).survey


def test_an_answer_to_an_earlier_question_is_of_no_use() -> None:
    lost = Lost(1)
    lost.wish()
    lost.next(0.0)
    survey = lost.next(20.0).survey
    assert survey
    lost.recovery.rollbacks.on_surveyed(Surveyed(survey.number - 1, ()))
    assert lost.next().record is None
    lost.recovery.rollbacks.rest()
    lost.recovery.rollbacks.on_surveyed(Surveyed(survey.number, ()))
    assert lost.next().record is None


def test_several_lost_stages_are_taken_by_different_nodes() -> None:
    lost = Lost(0, 2)
    lost.wish()
    lost.next(0.0)
    assert "no node can take stage 2 yet" in lost.next(11.0).sentence
    lost.wish(OTHER)
    record = lost.decide(lost.saved(*lost.chain.points))
    assert {(s.stage, s.member) for s in record.joins} == {(0, NEW), (2, OTHER)}


def test_a_neighbour_takes_a_second_seat_where_nobody_comes() -> None:
    lost = Lost(2)
    lost.next(0.0)
    assert lost.next(14.0).survey is None
    lost.now = 15.0
    record = lost.decide(lost.saved(*lost.chain.points))
    assert record.joins[0].member in (LEAD, Member("p1.0", 1))


def test_everybody_has_to_be_restored_before_a_step() -> None:
    lost = Lost(1)
    lost.wish()
    lost.next(0.0)
    lost.now = 20.0
    lost.decide(lost.saved(*lost.chain.points))
    assert lost.next().sentence == "every stage goes back to step 2: 3 of them have yet to be restored"
    lost.restored(NEW, LEAD)
    assert "1 of them" in lost.next().sentence
    lost.restored(Member("p2.0", 1))
    assert lost.next().sentence == ""


def test_what_cannot_be_read_back_is_gone_back_beyond() -> None:
    lost = Lost(1, steps=5)
    lost.wish()
    lost.next(0.0)
    lost.now = 20.0
    points = lost.chain.points
    first = lost.decide(lost.saved(*points))
    assert first.to_step == 4
    lost.recovery.rollbacks.on_unrestored(Unrestored(BALLOT, 2, points[0].states[2], "of no matter"))
    assert "restored" in lost.next().sentence
    lost.recovery.rollbacks.on_unrestored(Unrestored(BALLOT, 2, points[1].states[2], "its bytes are others"))
    lost.recovery.rollbacks.rest()
    lost.recovery.rollbacks._ballot = HIGHER
    found = lost.saved(*points)
    assert found.sentence == "what was saved cannot be read back: everybody goes back to the beginning: nothing is saved"
    assert lost.decide(found).joins == ()
    assert lost.chain.epoch == 2


def test_a_holder_that_comes_back_in_time_keeps_the_step() -> None:
    lost = Lost(1)
    lost.next(0.0)
    kept = lost.chain.state_ids[1]
    lost.members.on_wish(Wish(NEW, 1, "n", "x:1", 0, (Kept(1, kept, "d"),)))
    found = lost.next(1.0)
    assert isinstance(found.record, Roster) and "is back with its state" in found.sentence


def test_those_that_go_on_without_a_quorum_have_the_store() -> None:
    chain = a_chain(a_run())
    assert unmakeable(chain, []) == []


# ---- what is no rollback ----


def a_rollback(chain: Chain, **changes: object) -> Rollback:
    point = chain.points[-1]
    joins = (Seating(1, NEW, "active"),)
    record = Rollback(chain.head, chain.step, 1, point.step, point.states, joins, (LEAD,), BALLOT)
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"epoch": 2}, "it is rollback 2"),
        ({"to_step": 1}, "were to be saved after step 1"),
        ({"states": ("a", "b", "c")}, "were to be saved after step 2"),
        ({"ballot": Ballot(1, "p2.0")}, "it was made under"),
        ({"ballot": Ballot(0, "lead")}, "it was made under"),
        ({"step": 2}, "it was made at step 2"),
        ({"joins": ()}, "no stage is lost"),
        ({"joins": (Seating(1, NEW, "learner"),)}, "it seats"),
        ({"joins": (Seating(1, NEW, "active", 3),)}, "it seats"),
        ({"joins": (Seating(7, NEW, "active"),)}, "it seats stage 7"),
        ({"joins": (Seating(1, NEW, "active"), Seating(2, OTHER, "active"))}, "stage 2 has a holder"),
        ({"joins": (Seating(1, Member("p2.0", 2), "active"),)}, "two lives"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], why: str) -> None:
    lost = Lost(1)
    lost.chain.fence = Ballot(0, "z")
    wrong = lost.chain.fits(a_rollback(lost.chain, **changes))
    assert why in wrong and bool(why) == bool(wrong)


def test_a_stage_must_not_stay_without_a_holder() -> None:
    lost = Lost(1, 2)
    assert lost.chain.fits(a_rollback(lost.chain)) == "nobody would hold stage 2"


def test_a_summary_tells_what_may_be_gone_back_to() -> None:
    lost = Lost(1)
    lost.chain.append(a_rollback(lost.chain), ())
    fresh = Chain(lost.manifest, None)
    assert fresh.adopt(lost.chain.summary(HIGHER, ())) == ""
    same = (fresh.epoch, fresh.points, fresh.rollback, fresh.fence, fresh.step, fresh.state_ids)
    chain = lost.chain
    assert same == (chain.epoch, chain.points, chain.rollback, chain.fence, chain.step, chain.state_ids)


# ---- at a member ----


class Member1(Core):
    """The node of stage 1 of three, after two steps that it missed: after the second one everything was saved."""

    def __init__(self) -> None:
        manifest = a_run()
        super().__init__(manifest, "p1.0", holders(manifest))
        self.chain = self.state.chain
        for _ in range(2):
            results = tuple(StageResult(stage, "d", 1.0) for stage in range(3))
            self.decide(Commit(self.chain.head, self.chain.step + 1, 1, results, 1.0, manifest.batch.tokens_per_step, ""))

    def go_back(self) -> list[Command]:
        """Stage 2 is lost, and everybody goes back."""
        leaves = tuple(s for s in self.chain.seatings if s.stage == 2)
        self.decide(Roster(self.chain.head, self.chain.step, (), leaves, (LEAD, self.state.config.member)))
        states, joins = self.chain.points[-1].states, (Seating(2, NEW, "active"),)
        return self.decide(Rollback(self.chain.head, 2, 1, 2, states, joins, (LEAD,), BALLOT))

    def restore(self) -> list[Command]:
        return self.do(Learned(1, self.chain.state_ids[1], 2, "digest", 2, 1.0, 0, (), 8, 0.1))


def test_a_member_has_its_stage_restored_and_says_so() -> None:
    node = Member1()
    saved = node.chain.points[-1].states[1]
    out = node.go_back()
    assert of(out, Restore) == [Restore(1, saved, node.chain.state_ids[1], 2, 0)]
    told = notes(out, "rolled_back")[0]
    assert told["stages"] == [2] and (told["epoch"], told["from_step"], told["step"]) == (1, 2, 2)
    out = node.restore()
    assert sent(out, Learning, LEAD.peer) == [Learning(BALLOT, 1, node.chain.state_ids[1], "digest", 0.0, node.chain.head)]
    facts = notes(out, "provenance")[0]
    assert (facts["rung"], facts["source"], facts["epoch"], facts["step"]) == ("checkpoint", saved, 1, 2)
    seat = node.state.bench.seats[1]
    assert (seat.state.optimizer_age, seat.state.step, seat.phase) == (2, 2, SeatPhase.IDLE)
    assert sent(node.do(Tick(), 1.0), Learning), "the coordinator may be another one by now"


def test_what_was_said_of_steps_that_are_given_up_stops_nothing() -> None:
    node = Member1()
    node.go_back()
    node.restore()
    node.tell(OpenStep(BALLOT, 9, 7, "f" * 32, (), (), (), ()))
    node.tell(VoidStep(BALLOT, 9, 8, "late"))
    node.open(attempt=1001, ballot=HIGHER)
    assert node.state.bench.open and node.state.bench.open.step == 3


def test_what_cannot_be_read_back_is_told_until_something_else_is_decided() -> None:
    node = Member1()
    saved = node.chain.points[-1].states[1]
    node.go_back()
    out = node.do(RestoreFailed(1, "another", "of no matter"))
    assert notes(out, "restore_failed") == []
    out = node.do(RestoreFailed(1, saved, "its bytes are others"))
    assert notes(out, "restore_failed") == [{"stage": 1, "source": saved, "reason": "its bytes are others"}]
    for _ in range(2):
        assert sent(node.do(Tick(), 1.0), Unrestored) == [Unrestored(BALLOT, 1, saved, "its bytes are others")]
    seed = points_of(node.chain)[-1].states
    again = Rollback(node.chain.head, 2, 2, 0, seed, (), (Member("p2.0", 1),), Ballot(3, "p2.0"))
    out = node.decide(again)
    assert of(out, Restore) == [Restore(1, seed[1], node.chain.state_ids[1], 0, 0)]
    assert of(out, DropSeat) == [DropSeat(1)]
    assert sent(node.do(Tick(), 1.0), Unrestored) == []


def test_who_lacked_the_records_restores_by_the_summary() -> None:
    ahead = Member1()
    ahead.go_back()
    node = Core(ahead.manifest, "p1.0", holders(ahead.manifest))
    out = node.tell(ahead.chain.summary(BALLOT, ()))
    assert of(out, Restore) == [Restore(1, ahead.chain.points[-1].states[1], ahead.chain.state_ids[1], 2, 0)]


def test_the_first_replica_saves_what_is_to_be_saved() -> None:
    manifest = a_run()
    chain = a_chain(manifest, replicas=2, steps=2)
    point = chain.points[-1]
    state = SeatState(1, "active", 0, point.states[1], "digest", 2, 2, 1.1)
    for peer, times in (("p1.0", 1), ("p1.1", 0)):
        out: list[Command] = []
        Saving(peer, chain, out.append).save(state)
        assert out == times * [Save(1, 2, point.states[1], point.record, "digest", 2, 1.1, (point.record,))]
        Saving(peer, chain, out.append).save(replace(state, step=1, state_id="x"))
        assert len(out) == times


def test_a_save_that_fails_is_said() -> None:
    out: list[Command] = []
    saving = Saving("p1.0", a_chain(a_run()), out.append)
    saving.saved(Saved(1, 2, 100, 0.5))
    saving.saved(Saved(1, 4, 0, 0.5, "/store cannot be written: No space left on device"))
    assert notes(out, "saved") == [{"stage": 1, "step": 2, "bytes": 100, "s": 0.5}]
    assert notes(out, "save_failed")[0]["reason"].endswith("No space left on device")
    assert says(out) == [
        "stage 1 is not saved after step 4: /store cannot be written: No space left on device; training goes on"
    ]


# ---- the coordinator ----


def test_no_step_is_opened_under_the_ballot_of_a_rollback() -> None:
    """Whatever was said under it may be of steps that are given up: the coordinator asks to be followed under a higher one."""
    manifest = a_run()
    node = Core(manifest, LEAD.peer, founder=True)
    for seating in holders(manifest)[1:]:
        node.tell(Wish(seating.member, seating.stage, "n", f"{seating.member.peer}:1", 0), seating.member.peer)
    node.tell(Wish(LEAD, 0, "n", "lead:1", 0))
    assert node.state.coordinator and sent(node.do(Tick(), 1.0), Prepare) == []
    node.state.chain.fence = BALLOT
    assert {m.ballot for m in sent(node.do(Tick(), 1.0), Prepare)} == {HIGHER}
    assert node.state.coordinator is None


def test_manifest_refuses_what_makes_no_sense() -> None:
    for change, why in (
        ({"checkpoint_every": 0}, "policy checkpoint needs checkpoint_every: a number of steps"),
        ({"checkpoint_store": ""}, "policy checkpoint needs checkpoint_store: a directory or URL"),
        ({"checkpoint_store": "saved"}, "checkpoint_store saved: give an absolute path or a URL"),
        ({"policy": "checkfree"}, "checkpoint_every is for policy checkpoint, not checkfree"),
    ):
        with pytest.raises(ValidationError, match=why):
            a_run(**change)
    assert a_run().recovery.embedding_copies == 0
