"""Whom a node follows: the coordinator that the directory named, and nobody who only claims to be it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.commands import Apply, CreateSeat, Exit, Introduce, Reduce
from protocol.ids import Ballot, Member
from protocol.leader import Leader
from protocol.messages import (
    Decide,
    Held,
    Message,
    OpenEvaluation,
    OpenStep,
    Probe,
    Propose,
    SeatWork,
    Standing,
    StartReduce,
    VoidStep,
)
from protocol.records import Roster, Seating
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, of, sent

STRANGER = "stranger"
HIGH = Ballot(999, STRANGER)


def core() -> Core:
    manifest = a_manifest()
    return Core(manifest, "p1.0", holders(manifest))


def roster(c: Core) -> Roster:
    return Roster(c.state.chain.head, 0, (Seating(2, c.state.config.member, "active"),), (), (Member(STRANGER, 1),))


HOSTILE: dict[str, Callable[[Core, Ballot], Message]] = {
    "decide": lambda c, b: Decide(b, roster(c), ()),
    "propose": lambda c, b: Propose(b, roster(c), ()),
    "open": lambda c, b: OpenStep(b, 1, 9, c.state.chain.head, (SeatWork(1, "active", 0, (0,)),), (), (), (STRANGER,)),
    "void": lambda c, b: VoidStep(b, 1, 1, "because"),
    "finished": lambda c, b: Standing(b, "finished", "it is over", 0, -1, 0.0),
    "start_reduce": lambda c, b: StartReduce(b, 1, 1, 1, ()),
    "probe": lambda c, b: Probe(b, Member("p2.0", 1), "evil:1"),
    "evaluate": lambda c, b: OpenEvaluation(b, c.state.chain.head, 0, (), ()),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("ballot", [HIGH, BALLOT, Ballot(1, "p1.0"), Ballot(999, "lead")], ids=str)
def test_a_stranger_leads_nobody(name: str, ballot: Ballot) -> None:
    c = core()
    c.open()
    before = (c.state.chain.head, c.state.ballot, c.state.bench.open, c.state.outlook.phase)
    commands = c.tell(HOSTILE[name](c, ballot), peer=STRANGER)
    assert before == (c.state.chain.head, c.state.ballot, c.state.bench.open, c.state.outlook.phase)
    for kind in (CreateSeat, Exit, Introduce, Reduce, Apply):
        assert not of(commands, kind)
    assert not sent(commands, Held)
    c.tell(VoidStep(BALLOT, 1, 1, "really"))
    assert c.state.bench.open is None, "the real coordinator is fenced out"


def test_an_older_ballot_of_the_leader_is_fenced() -> None:
    leader = Leader(Acceptor(), Chain(a_manifest(), None), None)
    leader.learn("lead")
    leader.heard("lead", 1)
    assert leader.speaks("lead", 1, Ballot(2, "lead"))
    assert not leader.speaks("lead", 1, Ballot(1, "lead"))
    assert leader.ballot == Ballot(2, "lead")


def test_a_leader_in_another_life_is_another_one() -> None:
    leader = Leader(Acceptor(), Chain(a_manifest(), None), None)
    leader.learn("lead")
    leader.heard("lead", 3)
    assert leader.speaks("lead", 3, BALLOT)
    leader.heard("lead", 4)
    assert leader.retired
    assert not leader.speaks("lead", 4, BALLOT), "it has forgotten what it decided"
    assert leader.speaks("lead", 3, BALLOT), "what it had decided before stands"
    assert leader.speaks("lead", 4, Ballot(2, "lead")), "a new ballot is a new beginning"
    assert not leader.retired


def test_the_founder_follows_itself_only() -> None:
    c = Core(a_manifest(), LEAD.peer, founder=True)
    assert c.state.ballot == BALLOT
    c.tell(Decide(HIGH, roster(c), ()), peer=STRANGER)
    assert c.state.ballot == BALLOT
    assert not c.state.chain.seatings
