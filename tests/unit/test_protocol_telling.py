"""Decisions on a network that turns messages round, and who must have heard of the last one before its coordinator may go."""

from __future__ import annotations

import pytest

from protocol.chain import Chain
from protocol.follower import MAX_EARLY
from protocol.ids import Member
from protocol.messages import Decide, RecordsWanted
from protocol.records import Roster, Seating, record_id
from protocol.teller import Teller
from protocol.view import View
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, sent

FAR = Member("far", 1)
NOW = 50.0


def rosters(count: int, parent: str) -> list[Roster]:
    """One after the other; each names a spare more."""
    made: list[Roster] = []
    for number in range(count):
        join = Seating(1, Member(f"spare{number}", 1), "active")
        made.append(Roster(record_id(made[-1]) if made else parent, 0, (join,), (), (LEAD,)))
    return made


def test_a_decision_that_overtook_the_one_before_it_is_taken_in_after_it() -> None:
    manifest = a_manifest()
    c = Core(manifest, "p1.0", holders(manifest))
    first, *later = rosters(3, c.state.chain.head)
    for roster in reversed(later):
        assert sent(c.decide(roster), RecordsWanted), "it asks for what is missing"
        assert c.state.chain.head == first.parent
    c.decide(first)
    assert c.state.chain.head == record_id(later[-1])


def test_only_a_few_are_kept() -> None:
    manifest = a_manifest()
    c = Core(manifest, "p1.0", holders(manifest))
    first, second = rosters(2, c.state.chain.head)
    c.decide(second)
    for number in range(MAX_EARLY):
        c.decide(Roster(f"{number:032x}", 0, second.joins, (), (LEAD,)))
    c.decide(first)
    assert c.state.chain.head == record_id(first)
    c.decide(second)
    assert c.state.chain.head == record_id(second), "it comes once more when it is asked for"


class Last:
    """A coordinator whose last decision takes everybody off, itself too."""

    def __init__(self) -> None:
        manifest = a_manifest()
        self.lapse_s = manifest.timing.lapse_s
        seats = (*(Seating(stage, LEAD, "active") for stage in range(3)), Seating(1, FAR, "active"))
        self.chain, self.view = Chain(manifest, LEAD), View(self.lapse_s)
        self.chain.append(Roster(self.chain.head, 0, seats, (), (LEAD,)), ())
        self.view.expect(FAR.peer, NOW)
        self.teller = Teller(BALLOT, LEAD, self.chain, self.view, {}, manifest.timing)
        self.last = Roster(self.chain.head, 0, (), seats, (LEAD,))

    def decide(self, *leaving: Member) -> None:
        told = self.teller.decided(self.last, (), [LEAD], leaving, NOW)
        assert {command.peer: type(command.message) for command in told} == {LEAD.peer: Decide, FAR.peer: Decide}
        self.chain.append(self.last, ())
        assert not self.chain.members()


@pytest.mark.parametrize("says", ["goodbye", "heartbeat", "nothing"])
def test_whom_the_last_decision_lets_go_is_waited_for(says: str) -> None:
    world = Last()
    world.decide(LEAD, FAR)
    assert not world.teller.is_caught_up(NOW)
    before = world.last.parent
    assert world.teller.heard(FAR, before, NOW + 1), "it is told again what it lacks"
    assert not world.teller.is_caught_up(NOW + 1)
    if says == "goodbye":
        world.teller.left(FAR.peer)
    elif says == "heartbeat":
        assert not world.teller.heard(FAR, world.chain.head, NOW + 1)
    else:
        assert not world.teller.is_caught_up(NOW + world.lapse_s - 0.1)
    assert world.teller.is_caught_up(NOW + (world.lapse_s if says == "nothing" else 1))


def test_nobody_waits_for_who_was_dropped() -> None:
    """Who is silent would not answer."""
    world = Last()
    world.decide(LEAD)
    assert world.teller.is_caught_up(NOW)
