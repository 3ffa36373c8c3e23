"""A stage that nobody holds goes on from an older state of its own, if somebody kept one that is not too old."""

from __future__ import annotations

import pytest

from protocol.ids import Member
from protocol.learners import UNKNOWN_S
from protocol.messages import Kept, Learning
from protocol.records import Rebuild, Roster, Seating, Source, is_older_copy
from protocol.recovery import Next
from tests.tools.core import BALLOT, LEAD
from tests.unit.test_protocol_recovery import NEW, Lost, a_run


def test_a_state_of_some_steps_ago_comes_before_the_neighbours_and_after_the_grace() -> None:
    lost = Lost(2, steps=3)
    older, oldest = (lost.chain.past[n].parents[2] for n in (-1, -3))
    lost.wish()
    lost.wish(Member("p2.0", 1), kept=(Kept(2, oldest, "d"),))
    lost.wish(Member("p2.1", 1), kept=(Kept(2, older, "d"),))
    assert lost.next(0.0).record is None
    assert lost.next(9.9).record is None, "its holder may come back with the newest one"
    record = lost.rebuild(10.0)
    assert is_older_copy(record)
    assert record.sources == (Source(2, older, 1.0),)
    assert record.joins == (Seating(2, Member("p2.1", 1), "active", 1),)
    lost.decide(record)
    assert "from an older state" in lost.next(11.0).sentence, "nothing else is tried while its holder says nothing"
    lost.made(Member("p2.1", 1), 2)
    assert lost.next(12.0) == Next()


def test_stage_0_goes_back_to_an_older_state_where_no_copy_is_left() -> None:
    """Nothing else could bring it back: the run would end."""
    lost = Lost(0, steps=3)
    older = lost.chain.past[-2].parents[0]
    lost.wish(Member("p0.1", 1), kept=(Kept(0, older, "d"),))
    assert "may come back" in lost.next(0.0).sentence
    record = lost.rebuild(10.0)
    assert record.sources == (Source(0, older, 1.0),)
    assert record.joins == (Seating(0, Member("p0.1", 1), "active", 1),)
    lost.decide(record)
    assert not lost.next(30.0).is_end
    lost.made(Member("p0.1", 1), 0)
    assert lost.next(31.0) == Next()


def test_stage_0_whose_older_state_goes_too_ends_the_run() -> None:
    lost = Lost(0, steps=3)
    lost.wish(Member("p0.1", 1), kept=(Kept(0, lost.chain.past[-2].parents[0], "d"),))
    lost.decide(lost.rebuild(10.0))
    lost.lose(0)
    lost.next(40.0)
    assert lost.next(50.0).is_end


class AtRest(Lost):
    """Stage 2 has just been lost while p2.1 was to learn it, which had come back with a state that is some steps old."""

    def __init__(self, age: int = 1, digest: str = "d", seconds_left: float = UNKNOWN_S) -> None:
        super().__init__(steps=3)
        self.learner = Seating(2, Member("p2.1", 1), "learner", pinned=True)
        self.chain.append(Roster(self.chain.head, 3, (self.learner,), (), (LEAD,)), ())
        self.state = self.chain.past[-age].parents[2]
        self.tell(self.state, digest, seconds_left)
        gone = tuple(s for s in self.chain.seatings if s.stage == 2 and s.role == "active")
        self.chain.append(Roster(self.chain.head, 3, (), gone, (LEAD,)), ())

    def tell(self, state_id: str, digest: str, seconds_left: float) -> None:
        told = Learning(BALLOT, 2, state_id, digest, seconds_left, self.chain.head)
        self.members.on_learning(self.learner.member, told, 0.0)


def test_a_learner_that_has_copied_nothing_yet_goes_on_from_the_state_that_it_kept() -> None:
    lost = AtRest()
    lost.wish()
    record = lost.rebuild(10.0)
    assert record.sources == (Source(2, lost.state, 1.0),)
    assert record.joins == (Seating(2, lost.learner.member, "active", 1, pinned=True),)


@pytest.mark.parametrize("told", [("", "", UNKNOWN_S), ("", "", 3.0)])
def test_a_learner_that_copies_has_nothing_to_go_on_from(told: tuple[str, str, float]) -> None:
    lost = AtRest()
    lost.tell(*told)
    lost.wish()
    assert len(lost.rebuild(10.0).sources) == 2


def test_a_learner_whose_copy_was_the_newest_a_step_ago_has_none_to_go_back_to() -> None:
    """It copies over that one."""
    lost = AtRest(seconds_left=0.0)
    lost.wish()
    assert len(lost.rebuild(10.0).sources) == 2


def test_a_learner_that_kept_the_newest_state_goes_on_at_once() -> None:
    """Not after the grace, and not as another generation: no commit was missed."""
    lost = AtRest()
    lost.tell(lost.chain.state_ids[2], "d", 0.0)
    (join,) = lost.members.changes(0.1).joins
    assert (join.stage, join.member, join.role, join.generation) == (2, lost.learner.member, "active", 0)


def test_what_another_lineage_trained_is_no_copy_however_young() -> None:
    lost = Lost(2, steps=3)
    lost.wish(Member("p2.0", 1), kept=(Kept(2, "f" * 32, "d"),))
    record = lost.rebuild(10.0)
    assert len(record.sources) == 2
    assert record.joins[0].member.peer == "p2.0", "it is a newcomer like any other"


@pytest.mark.parametrize("most", [0, 2])
def test_a_state_that_is_too_old_is_not_gone_back_to(most: int) -> None:
    manifest = a_run(stale_max_steps=most)
    lost = Lost(2, steps=4, manifest=manifest)
    old = lost.chain.past[-3].parents[2]
    lost.wish(Member("p2.0", 1), kept=(Kept(2, old, "d"),))
    assert len(lost.rebuild(10.0).sources) == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sources": (Source(2, "0" * 32, 1.0),)}, "had no such state"),
        ({"joins": (Seating(2, NEW, "active", 1), Seating(2, Member("too", 1), "active", 1))}, "at 2 nodes"),
        ({"stage": 1, "joins": (Seating(1, NEW, "active", 1),)}, "is not made of"),
        ({"stage": 0, "joins": (Seating(0, NEW, "active", 1),)}, "of stage 0"),
    ],
)
def test_an_older_copy_that_is_none_is_refused(change: dict[str, object], why: str) -> None:
    lost = Lost(2, steps=3, manifest=a_run(stale_max_steps=2))
    lost.wish(Member("p2.0", 1), kept=(Kept(2, lost.chain.past[-1].parents[2], "d"),))
    record = lost.rebuild(10.0)
    wrong = Rebuild(**{name: getattr(record, name) for name in Rebuild.__dataclass_fields__} | change)
    assert why in lost.chain.fits(wrong)


def test_a_stage_that_is_held_does_not_go_back() -> None:
    lost = Lost(2, steps=3)
    older = lost.chain.past[-1].parents
    joins = (Seating(1, NEW, "active", 1),)
    record = Rebuild(lost.chain.head, 3, 1, 1, (Source(1, older[1], 1.0),), joins, (LEAD,))
    assert "does not go on from" in lost.chain.fits(record)
