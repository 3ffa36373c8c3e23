"""While a lost stage is made anew: who takes it, what makes it begin again, and which Rebuild is not believed."""

from __future__ import annotations

import pytest

from protocol.chain import Chain
from protocol.ids import Member
from protocol.messages import Kept, Learning
from protocol.records import Rebuild, Seating, Source
from protocol.recovery import Next
from tests.tools.core import BALLOT
from tests.unit.test_protocol_members import commit
from tests.unit.test_protocol_recovery import NEW, Lost

# ---- while it is made ----


def test_no_step_opens_before_the_newcomer_holds_what_was_decided() -> None:
    lost = Lost(2)
    lost.wish()
    lost.decide(lost.rebuild(10.0))
    assert lost.next(11.0) == Next("stage 2 is being rebuilt by new")
    lost.recovery.on_learning(NEW, Learning(BALLOT, 2, "another state", "digest", 0.0, ""))
    assert lost.next(12.0).sentence
    lost.made(Member("p1.0", 1), 2)
    assert lost.next(12.0).sentence, "somebody else says so"
    lost.made(NEW, 2)
    assert lost.next(12.0) == Next()
    commit(lost.chain, lost.manifest)
    assert lost.next(13.0) == Next()


def test_a_newcomer_that_dies_is_followed_by_the_next_one_without_another_grace() -> None:
    lost = Lost(2)
    lost.wish()
    lost.decide(lost.rebuild(10.0))
    lost.lose(2)
    lost.wish(Member("second", 1))
    again = lost.next(11.0).record
    assert isinstance(again, Rebuild)
    assert (again.generation, again.joins[0].member.peer) == (2, "second")
    assert lost.chain.fits(again) == ""


def test_a_newcomer_that_goes_before_it_holds_the_stage_is_kept_by_nothing() -> None:
    lost = Lost(2)
    lost.wish()
    lost.decide(lost.rebuild(10.0))
    lost.members.on_leave(NEW, "test", 11.0)
    assert lost.members.handover.stages() == [], "it has nothing to hand over"
    assert [s.member for s in lost.members.changes(11.0).leaves] == [NEW]
    other = Lost(2)
    other.wish()
    other.decide(other.rebuild(10.0))
    other.made(NEW, 2)
    other.members.on_leave(NEW, "test", 11.0)
    assert other.members.handover.stages() == [2]
    assert [s.role for s in other.members.changes(11.0).joins] == ["learner"]


def test_a_source_that_is_lost_meanwhile_makes_both_begin_again_of_the_survivors() -> None:
    lost = Lost(2)
    lost.wish()
    lost.decide(lost.rebuild(10.0))
    lost.lose(3)
    again = lost.next(11.0).record
    assert isinstance(again, Rebuild)
    assert (again.stage, again.generation, again.joins[0].member) == (2, 2, NEW)
    assert [s.stage for s in again.sources] == [1, 4]
    assert lost.chain.fits(again) == ""


def test_stages_lost_together_are_made_one_after_another_none_of_another_that_is_not_made() -> None:
    lost = Lost(2, 3)
    lost.wish()
    lost.wish(Member("second", 1))
    first = lost.rebuild(10.0)
    assert (first.stage, [s.stage for s in first.sources]) == (2, [1, 4])
    lost.decide(first)
    second = lost.next(10.1).record
    assert isinstance(second, Rebuild)
    assert (second.stage, [s.stage for s in second.sources]) == (3, [1, 4])
    lost.decide(second)
    lost.made(NEW, 2)
    assert "stage 3 is being rebuilt" in lost.next(11.0).sentence
    lost.made(Member("second", 1), 3)
    assert lost.next(11.0) == Next()


# ---- what is believed ----


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"generation": 2}, "generation 2 of stage 2"),
        ({"stage": 0}, "of stage 0"),
        ({"sources": ()}, "is not made of"),
        ({"sources": (Source(1, "made up", 0.5), Source(3, "made up", 0.5))}, "is not made of"),
        ({"joins": ()}, "does not seat"),
        ({"joins": (Seating(2, NEW, "learner", 1),)}, "does not seat"),
        ({"voters": ()}, "voters"),
    ],
)
def test_a_rebuild_that_does_not_follow_is_refused(change: dict[str, object], why: str) -> None:
    lost = Lost(2)
    lost.wish()
    record = lost.rebuild(10.0)
    wrong = Rebuild(**{name: getattr(record, name) for name in Rebuild.__dataclass_fields__} | change)
    assert why in lost.chain.fits(wrong)


def test_coefficients_that_are_not_those_of_the_last_commit_are_refused() -> None:
    lost = Lost(2)
    lost.wish()
    record = lost.rebuild(10.0)
    low, high = record.sources
    wrong = Rebuild(
        record.parent,
        record.step,
        2,
        1,
        (Source(low.stage, low.state_id, 0.9), Source(high.stage, high.state_id, 0.1)),
        record.joins,
        record.voters,
    )
    assert "is not made of" in lost.chain.fits(wrong)


def test_the_generation_fences_a_holder_that_comes_back_too_late() -> None:
    lost = Lost(2)
    state = lost.chain.state_ids[2]
    lost.wish()
    lost.decide(lost.rebuild(10.0))
    lost.wish(Member("p2.0", 1), kept=(Kept(2, state, "d"),))
    assert lost.chain.state_ids[2] != state
    assert "being rebuilt" in lost.next(11.0).sentence
    assert lost.chain.generations == [0, 0, 1, 0, 0]


def test_a_summary_tells_of_what_is_being_rebuilt() -> None:
    lost = Lost(2)
    lost.wish()
    lost.decide(lost.rebuild(10.0))
    fresh = Chain(lost.manifest, None)
    assert fresh.adopt(lost.chain.summary(BALLOT, ())) == ""
    assert fresh.rebuilds == lost.chain.rebuilds
    assert (fresh.generations, fresh.squared_norms) == (lost.chain.generations, lost.chain.squared_norms)
