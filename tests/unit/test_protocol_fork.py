"""Going on without a quorum: who may, when, with whom; and who is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.chain import Chain
from protocol.commands import Command
from protocol.events import Tick
from protocol.fork import fork_roster, parts_from, uncovered, unmakeable
from protocol.ids import NO_BALLOT, Ballot, Member, PeerId
from protocol.messages import Decide, Heartbeat, Held, Prepare, Promise, Propose
from protocol.records import Rebuild, Roster, Seating, Source, record_id
from tests.tools.core import LEAD, Core, a_manifest, notes, says, sent

B, C, D = (Member(name, 1) for name in "bcd")
AFTER_S = 10.0
SEATS = (
    Seating(0, LEAD, "active"),
    Seating(1, LEAD, "active"),
    Seating(2, LEAD, "active"),
    Seating(0, B, "passive"),
    Seating(1, B, "active"),
    Seating(2, C, "active"),
    Seating(2, D, "learner"),
)
VOTERS = (LEAD, B, C, Member("e", 1), Member("f", 1))


def manifest(**more: Any) -> Any:
    return a_manifest(timing={"fork_after_s": AFTER_S}, **more)


class Left(Core):
    """One of b, c, d, whose coordinator and other voters are gone; with b and c every stage is there."""

    def __init__(self, peer: PeerId = "b", seats: tuple[Seating, ...] = SEATS, **more: Any) -> None:
        super().__init__(manifest(**more), peer)
        rest = tuple(Seating(1, m, "active") for m in VOTERS[3:])
        self.decide(Roster(self.state.chain.head, 0, (*seats, *rest), (), VOTERS))

    def pass_time(self, seconds: float, heard: tuple[str, ...] = (), lacking: tuple[str, ...] = ()) -> list[Command]:
        """`heard` send heartbeats meanwhile; `lacking` of them have no state."""
        out: list[Command] = []
        for _ in range(int(seconds * 4)):
            for peer in heard:
                beat = Heartbeat(1, self.state.ballot, self.state.chain.head, 0, 0, lacks=peer in lacking)
                out += self.tell(beat, peer)
            out += self.do(Tick(dict.fromkeys(heard, 0.0)), 0.25)
        return out

    def promise(self, prepare: Prepare, peer: PeerId) -> list[Command]:
        return self.tell(Promise(prepare.ballot, self.state.chain.head, (), ()), peer)


def forking(c: Left, heard: tuple[str, ...] = ("c", "d"), lacking: tuple[str, ...] = ()) -> Prepare:
    """It has waited and called the roll, and stands."""
    for _ in range(100):
        asked = [p for p in sent(c.pass_time(0.25, heard, lacking), Prepare) if p.forks]
        if asked:
            return asked[0]
    pytest.fail(c.state.outlook.sentence)


def test_those_who_hold_every_stage_part_from_the_rest() -> None:
    c = Left()
    assert not any(p.forks for p in sent(c.pass_time(AFTER_S, ("c", "d")), Prepare)), "it is too early"
    prepare = forking(c)
    parent = c.state.chain.head
    out = c.promise(prepare, "c") + c.promise(prepare, "d")
    decides = {peer: sent(out, Decide, peer)[0] for peer in ("c", "d")}
    roster = decides["c"].record
    assert roster == decides["d"].record
    assert (roster.parent, roster.forked, decides["c"].ballot) == (parent, prepare.ballot, prepare.ballot)
    assert {s.member for s in roster.leaves} == {LEAD, *VOTERS[3:]}
    assert roster.joins == (Seating(0, B, "active"),), "a passive replica takes the place of the last active one"
    assert roster.voters == (B, C)
    assert c.state.chain.lineage == c.state.chain.head == record_id(roster)
    assert c.state.coordinator
    assert notes(out, "forked") == [{"record": record_id(roster), "peers": ["b", "c", "d"], "step": 0}]


def test_nobody_parts_before_all_that_answer_have_promised_or_had_a_lapse_for_it() -> None:
    c = Left()
    prepare = forking(c)
    assert not sent(c.promise(prepare, "c"), Decide), "d has been asked too"
    out = c.pass_time(4, ("c",))
    assert sent(out, Decide, "c")
    assert not sent(out, Decide, "d")
    assert D not in c.state.chain.members()


def test_a_learner_is_no_source_and_who_waits_says_for_what() -> None:
    c = Left()
    out = c.pass_time(AFTER_S + 9, ("d",))
    assert not any(p.forks for p in sent(out, Prepare))
    assert sent(out, Heartbeat, "c"), "everybody is called"
    assert "nobody who is heard holds stage 2" in says(out)[-1] or "stage 2" in c.state.takeover.lacks(c.now)


def test_who_is_outbid_leaves_the_other_a_moment_to_say_that_it_leads() -> None:
    """It is on the roster of the coordinator no more, and may hear of it last: outbidding it at once again and again, neither
    would ever lead it."""
    c = Left()
    prepare = forking(c)
    c.pass_time(2.5, ("c", "d"))
    higher = Ballot(prepare.ballot.term + 1, "c")
    c.tell(Heartbeat(1, higher, "f" * 32, 0, 0), "d")
    assert not any(p.ballot > prepare.ballot for p in sent(c.pass_time(1.5, ("c",)), Prepare))
    own = c.state.chain
    c.tell(Decide(higher, Roster(own.head, 0, (), tuple(s for s in own.seatings if s.member == B), (C, LEAD)), ()), "c")
    assert (c.state.leader.peer, c.state.chain.member_of("b")) == ("c", None)


def test_who_is_outbid_by_one_that_does_not_lead_stands_above_it() -> None:
    c = Left()
    prepare = forking(c)
    c.tell(Heartbeat(1, Ballot(prepare.ballot.term + 1, "c"), c.state.chain.head, 0, 0), "d")
    assert any(p.forks and p.ballot.term > prepare.ballot.term + 1 for p in sent(c.pass_time(3, ("c", "d")), Prepare))


# ---- with a loss ----

MAKES = {"policy": "checkfree", "rebuild_grace_s": 4.0, "newcomer_wait_s": 0.0}


def test_those_who_can_make_a_stage_again_go_on_without_its_holders() -> None:
    c = Left(recovery=MAKES)
    out = c.promise(forking(c, ("d",)), "d")
    assert [(s.stage, s.member) for s in sent(out, Decide, "d")[0].record.leaves if s.member == C] == [(2, C)]
    assert (c.state.chain.members(), c.state.chain.lossy_forks) == ([B, D], 1)
    assert not notes(c.pass_time(3, ("d",)), "rebuild"), "its holder may come back"
    rebuild = notes(c.pass_time(3, ("d",)), "rebuild")[0]
    assert (rebuild["stage"], [source["stage"] for source in rebuild["sources"]]) == (2, [1])


def test_a_fork_that_loses_nothing_is_not_counted() -> None:
    c = Left(recovery=MAKES)
    prepare = forking(c)
    c.promise(prepare, "c")
    c.promise(prepare, "d")
    assert (bool(c.state.chain.lineage), c.state.chain.lossy_forks) == (True, 0)


@pytest.mark.parametrize(
    ("peer", "seats", "stages"),
    [("c", SEATS, "0"), ("b", tuple(s for s in SEATS if (s.stage, s.member) != (1, B)), "1, 2 or anything to make it of")],
    ids=["no copy of stage 0", "no block stage"],
)
def test_nobody_goes_on_without_a_source(peer: PeerId, seats: tuple[Seating, ...], stages: str) -> None:
    c = Left(peer, seats, recovery=MAKES)
    assert not any(p.forks for p in sent(c.pass_time(3 * AFTER_S, ("d",)), Prepare))
    assert c.state.takeover.lacks(c.now) == f"; nobody who is heard holds stage {stages}"


def test_nobody_parts_from_a_holder_that_answers() -> None:
    """It would be made again beside him."""
    c = Left(recovery=MAKES)
    c.promise(forking(c), "d")
    assert not sent(c.pass_time(5, ("c", "d")), Decide), "c has not promised yet"
    c.pass_time(4, ("d",))
    out = c.promise(forking(c, ("d",)), "d") + c.pass_time(4, ("d",))
    assert sent(out, Decide, "d"), "c answers no more"
    assert c.state.chain.lossy_forks == 1


def test_who_has_no_state_is_no_holder_to_wait_for() -> None:
    """It has come back from another lineage, and may not be able to promise."""
    c = Left(recovery=MAKES)
    out = c.promise(forking(c, lacking=("c",)), "d") + c.pass_time(4, ("c", "d"), lacking=("c",))
    parts = sent(out, Decide, "d")[0].record
    assert isinstance(parts, Roster)
    assert Seating(2, C, "active") in parts.leaves
    assert c.state.chain.members() == [B, D]


def test_who_was_left_behind_is_not_led_by_those_who_left() -> None:
    """It would follow them, and never learn what they decided."""
    c = Left(recovery=MAKES)
    before = c.state.chain.head
    c.promise(forking(c, ("d",)), "d")
    beat = Heartbeat(1, Ballot(1, "lead"), before, 0, 0)
    assert not sent(c.tell(beat, "c"), Decide)
    ballot = c.state.ballot
    for _ in range(12):
        c.tell(replace(beat, ballot=Ballot(9, "c")), "c")
        c.pass_time(1, ("d",))
    assert c.state.ballot == ballot, "nor raced"
    assert sent(c.tell(replace(beat, incarnation=2), "c", incarnation=2), Decide, "c"), "another life of it is a newcomer"


def test_a_coordinator_that_is_left_alone_takes_what_was_lost() -> None:
    c = Left(recovery=MAKES)
    prepare = forking(c)
    c.promise(prepare, "c")
    c.promise(prepare, "d")
    c.pass_time(8, ("c", "d"))
    assert c.state.chain.members() == [B, C, D]
    assert [note["stage"] for note in notes(c.pass_time(16), "rebuild")] == [2]
    assert [s.stage for s in c.state.chain.seatings if s.member == B and s.role == "active"] == [0, 1, 2]


def test_what_is_being_made_is_no_source() -> None:
    seats = (*SEATS[:1], Seating(0, B, "passive"), Seating(2, C, "active"))
    chain = Chain(manifest(recovery=MAKES), LEAD)
    chain.append(Roster(chain.head, 0, seats, (), (LEAD,)), ())
    source = Source(2, chain.state_ids[2], 1.0)
    assert unmakeable(chain, {B}) == [1, 2]
    chain.append(Rebuild(chain.head, 0, 1, 1, (source,), (Seating(1, B, "active", 1),), (LEAD,)), ())
    assert unmakeable(chain, {B}) == [2], "b may not have stage 1 yet"
    assert unmakeable(chain, {B, C}) == []


def test_a_newcomer_learns_how_often_stages_were_left_behind() -> None:
    chain, newcomer = (Chain(manifest(recovery=MAKES), LEAD) for _ in range(2))
    chain.append(Roster(chain.head, 0, SEATS, (), (LEAD,)), ())
    chain.append(fork_roster(chain, Ballot(2, "b"), {B}, B), ())
    summary = chain.summary(Ballot(2, "b"), ())
    for lie in ({"lossy_forks": -1}, {"lossy_forks": 3}, {"lineage": ""}):
        assert "with a loss" in newcomer.adopt(replace(summary, **lie))
    assert not newcomer.adopt(summary)
    assert newcomer.lossy_forks == chain.lossy_forks == 1
    newcomer.begin_anew()
    assert newcomer.lossy_forks == 0


def test_a_quorum_needs_no_fork() -> None:
    c = Left()
    prepare = forking(c, ("c", "d", "e"))
    out = c.promise(prepare, "c") + c.promise(prepare, "e")
    assert not notes(out, "forked")
    assert c.state.coordinator
    assert c.state.chain.lineage == ""


def test_a_member_goes_along_only_if_it_has_waited_itself() -> None:
    c = Left("c")
    ask = lambda term, forks: c.tell(Prepare(Ballot(term, "b"), c.state.chain.head, (), forks), "b")  # noqa: E731
    assert not sent(ask(2, True), Promise), "the coordinator is heard here"
    c.pass_time(4)
    assert not sent(ask(3, True), Promise), "it is silent here, but not for long"
    c.pass_time(AFTER_S, ("b",))
    assert sent(ask(9, True), Promise)


def test_a_coordinator_without_a_quorum_takes_those_along_that_follow_it() -> None:
    c = Left("c")
    asked = Prepare(Ballot(2, LEAD.peer), c.state.chain.head, (), True)
    assert sent(c.tell(asked), Promise), "its own coordinator asks: it knows"


def test_who_is_left_behind_does_not_learn_of_it() -> None:
    c = Left("c")
    chain = c.state.chain
    before = chain.head
    c.tell(Decide(Ballot(2, "b"), fork_roster(chain, Ballot(2, "b"), {B, D}, B), ()), "b")
    assert chain.head == before
    c.tell(Decide(Ballot(3, "b"), fork_roster(chain, Ballot(3, "b"), {B, C}, B), ()), "b")
    assert chain.head != before
    assert chain.members() == [B, C]


def test_a_fork_is_nobodys_to_vote_on() -> None:
    c = Left("c")
    roster = fork_roster(c.state.chain, Ballot(2, "b"), {B, C}, B)
    assert not sent(c.tell(Propose(Ballot(2, "b"), roster, ()), "b"), Held)
    assert c.state.acceptor.holding is None


def test_a_newcomer_may_learn_of_forks_of_the_past() -> None:
    chain = Chain(manifest(), LEAD)
    chain.append(Roster(chain.head, 0, SEATS, (), (LEAD,)), ())
    roster = fork_roster(chain, Ballot(2, "b"), {B, C}, B)
    assert parts_from(LEAD, roster, chain)
    assert not parts_from(D, roster, chain), "a learner has nothing to go on with"
    assert not parts_from(C, roster, chain)
    assert not parts_from(Member("new", 1), roster, chain)
    assert uncovered(chain, {B}) == [2]
    assert uncovered(chain, {B, D}) == [2]
    assert uncovered(chain, {B, C}) == []


@pytest.mark.parametrize(
    ("voters", "forked"),
    [((B, LEAD), Ballot(2, "b")), ((C, B), Ballot(2, "b"))],
    ids=["a voter without a seat", "not its own coordinator first"],
)
def test_a_fork_that_does_not_fit(voters: tuple[Member, ...], forked: Ballot) -> None:
    chain = Chain(manifest(), LEAD)
    chain.append(Roster(chain.head, 0, SEATS, (), (LEAD,)), ())
    leaves = tuple(s for s in SEATS if s.member == LEAD)
    assert "forks" in chain.fits(Roster(chain.head, 0, (), leaves, voters, forked))
    assert not chain.fits(Roster(chain.head, 0, (), leaves, voters, NO_BALLOT))


def test_on_one_machine_nobody_waits_for_a_network() -> None:
    here = a_manifest(local=True, recovery={"policy": "none", "rebuild_grace_s": 2.0})
    assert here.fork_after_s == here.timing.lapse_s + 2.0
    assert a_manifest().fork_after_s == 600.0
    assert a_manifest(local=True, timing={"fork_after_s": 1.0}).fork_after_s == 1.0
