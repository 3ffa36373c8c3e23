"""Lineages that meet: which one survives, who gives up what for whom, and what a node still knows that has begun anew."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.acceptor import Acceptor
from protocol.chain import Chain
from protocol.commands import Command, DropSeat
from protocol.events import Tick
from protocol.ids import Ballot, Member
from protocol.lineage import Meeting
from protocol.meeting import PATIENCE_LAPSES, Meetings, Stand
from protocol.messages import Contact, Heartbeat, Summary, Wish, Yield
from protocol.records import Roster, Seating
from protocol.view import PeerNews
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, notes, of, sent

B, C, D = (Member(name, 1) for name in "bcd")
MINE, OTHERS = Ballot(2, LEAD.peer), Ballot(3, "b")


class Coordinator:
    """`lead` with c in its lineage, which b was once part of; both hold everything that is needed."""

    def __init__(self, peer: str = LEAD.peer, **more: Any) -> None:
        self.core = Core(a_manifest(**more), peer, founder=True)
        chain, view = self.core.state.chain, self.core.state.view
        self.me = Member(peer, 1)
        seats = (Seating(0, self.me, "active"), Seating(1, self.me, "active"), Seating(2, C, "active"), Seating(2, B, "active"))
        chain.append(Roster(chain.head, 0, seats, (), (self.me, B, C)), ())
        self.stand, self.now = Stand(MINE, True), 100.0
        self.meetings = Meetings(self.me, self.core.manifest, chain, view, self.core.state.takeover)
        self.hear(C)

    def hear(self, member: Member, ballot: Ballot = MINE, lacks: bool = False) -> None:
        state = self.core.state
        state.view.expect(member.peer, self.now)
        state.view.news[member.peer] = PeerNews(1, ballot, state.chain.head, 0, 0, self.now, lacks)

    def meets(self, member: Member = B, **changes: Any) -> tuple[bool, list[Any]]:
        """(does it stay, what it says)."""
        fields = {"word": "stands", "ballot": OTHERS, "lineage": "f" * 32, "step": 5, "covers": True, "voters": (B,)}
        stays = self.meetings.on_meeting(member, Meeting(**(fields | changes)), self.stand, self.now)
        out = self.meetings.take()
        return stays, [m.word for m in sent(out, Meeting)] + [n["reason"] for n in notes(out, "refused")]


def test_the_one_that_is_behind_offers_itself_and_goes_when_that_is_accepted() -> None:
    c = Coordinator()
    assert c.meets() == (True, ["offers"])
    assert c.meets(word="accepts") == (False, [])


def test_the_one_that_is_ahead_says_so_and_accepts() -> None:
    c = Coordinator()
    assert c.meets(ballot=Ballot(1, "b"), step=0) == (True, ["stands"])
    assert c.meets(ballot=Ballot(1, "b"), step=0, word="offers") == (True, ["accepts"])
    assert c.meets(word="stands") == (True, []), "who has accepted gives up nothing for a while"
    c.now += c.core.manifest.timing.lapse_s * PATIENCE_LAPSES + 1
    assert c.meets(word="stands") == (True, ["offers"])


def test_step_counts_before_ballot() -> None:
    c = Coordinator()
    assert c.meets(ballot=Ballot(1, "b"), step=1) == (True, ["offers"])
    assert Coordinator().meets(ballot=Ballot(1, "b"), step=0) == (True, ["stands"])
    assert Coordinator().meets(ballot=OTHERS, step=0) == (True, ["offers"])


def test_steps_are_compared_within_an_epoch() -> None:
    """Who has gone back counts its steps anew."""
    c = Coordinator()
    c.core.state.chain.epoch = 1
    assert c.meets(step=5) == (True, ["stands"])
    assert c.meets(step=5, epoch=1) == (True, ["offers"])
    assert Coordinator().meets(ballot=Ballot(1, "b"), step=0, epoch=1) == (True, ["offers"])


def test_losses_count_before_the_step() -> None:
    """Who was cut off alone, and made the rest of the swarm again of what it had, may be far ahead."""
    assert Coordinator().meets(step=1000, lossy_forks=1) == (True, ["stands"])
    c = Coordinator()
    c.core.state.chain.step, c.core.state.chain.lossy_forks = 1000, 1
    assert c.meets(ballot=Ballot(1, "b"), step=1) == (True, ["offers"])
    assert c.meets(ballot=Ballot(1, "b"), step=1, word="accepts") == (False, []), "it gives its seats up"
    c = Coordinator()
    c.core.state.chain.lossy_forks = 1
    assert c.meets(lossy_forks=1) == (True, ["offers"]), "alike: the step decides"
    assert Coordinator().meets(step=1000, lossy_forks=-1) == (True, []), "there is nothing below none"


class Hollow(Coordinator):
    """Its stage 2 has just lost all holders."""

    def __init__(self, voters: tuple[Member, ...], **more: Any) -> None:
        super().__init__(recovery=more)
        chain = self.core.state.chain
        lost = tuple(Seating(2, member, "active") for member in (B, C))
        chain.append(Roster(chain.head, 0, (Seating(0, C, "passive"),), lost, voters), ())


def test_who_can_make_a_stage_again_does_not_give_way_to_one_that_lost_more() -> None:
    other = {"step": 1000, "lossy_forks": 1}
    assert Hollow((LEAD, C), policy="checkfree").meets(**other) == (True, ["stands"])
    assert Hollow((LEAD, C), policy="checkfree").meets() == (True, ["offers"]), "that one has every stage, and lost no more"
    assert Hollow((LEAD, C), policy="none").meets(**other) == (True, ["offers"]), "here nothing is made again"
    assert Hollow((B, C, LEAD), policy="checkfree").meets(**other) == (True, ["stands"])
    c = Hollow((LEAD, C), policy="checkfree")
    assert c.meets(**other) == (True, ["stands"])
    c.now += 700
    c.hear(C)
    assert c.meets(**other) == (True, ["offers"]), "it has had its time"
    c = Hollow((B, C, LEAD), policy="checkfree")
    c.hear(C, OTHERS)
    assert c.meets(**other) == (True, ["offers"]), "without a quorum it decides nothing"


def test_nobody_gives_way_to_a_lineage_without_a_stage() -> None:
    assert Coordinator().meets(covers=False) == (True, ["stands"])


def test_who_hears_no_holder_of_a_stage_accepts_nobody_and_gives_way() -> None:
    c = Coordinator()
    c.hear(C, OTHERS)
    assert c.meets(word="offers", step=0) == (True, []), "c follows another ballot: it only looks as if stage 2 were here"
    assert c.meets(step=0, ballot=Ballot(1, "b")) == (True, ["offers"])
    c = Coordinator()
    c.hear(C, lacks=True)
    assert c.meets(word="offers", step=0) == (True, []), "c is seated at stage 2 without its state"
    c = Coordinator()
    c.now += c.core.manifest.timing.lapse_s + 1
    assert c.meets(word="offers", step=0) == (True, []), "c has not been heard for long"


@pytest.mark.parametrize(("ballot", "accepts"), [(OTHERS, False), (Ballot(1, "b"), True)])
def test_of_two_that_offer_at_once_only_the_higher_ballot_accepts(ballot: Ballot, accepts: bool) -> None:
    c = Coordinator()
    assert c.meets(ballot=ballot)[1] == ["offers"]
    assert c.meets(ballot=ballot, word="offers")[1] == (["accepts"] if accepts else [])
    assert c.meets(ballot=ballot, word="accepts")[0] is accepts, "who has accepted stays"


def test_an_answer_to_no_offer_of_ours_changes_nothing() -> None:
    c = Coordinator()
    assert c.meets(word="accepts") == (True, [])
    c.meets()
    assert c.meets(C, word="accepts", ballot=Ballot(3, "c"))[0], "another one answers"
    c.meets()
    c.now += c.core.manifest.timing.lapse_s * PATIENCE_LAPSES + 1
    assert c.meets(word="accepts")[0], "too late"


def test_strangers_are_not_given_way_to() -> None:
    reason = "it leads another lineage, and was never seated in this one"
    assert Coordinator().meets(Member("x", 1), ballot=Ballot(9, "x")) == (True, [reason])
    voters = (B, Member("x", 1), Member("y", 1))
    assert Coordinator().meets(voters=voters) == (True, [reason]), "most of its voters are unknown"
    assert Coordinator().meets(ballot=Ballot(9, "x"))[0], "in another one's name"
    assert Coordinator().meets(B, ballot=Ballot(9, "c")) == (True, [])


def test_the_same_lineage_is_left_to_the_ballots() -> None:
    assert Coordinator().meets(lineage="") == (True, [])


def test_a_member_that_has_lost_hope_meanwhile_is_led_again_and_keeps_its_state() -> None:
    """A coordinator that slept is heard again: it does not take the offers of those on its roster."""
    c = Coordinator()
    assert c.meets(B, word="offers", lineage="", ballot=MINE, covers=False) == (True, [])
    assert c.meets(D, word="offers", lineage="", ballot=MINE, covers=False) == (True, ["accepts"]), "it was dropped long ago"


# ---- a member ----


class Mine(Core):
    """p1.0, which holds stage 1."""

    def __init__(self) -> None:
        super().__init__(a_manifest(), "p1.0")
        seats = (Seating(0, LEAD, "active"), Seating(1, Member("p1.0", 1), "active"), Seating(2, B, "active"))
        self.decide(Roster(self.state.chain.head, 0, seats, (), (LEAD, B)))

    def yields(self) -> list[Command]:
        return self.tell(Yield(BALLOT, Contact("b", "b:1")))


def test_a_member_that_is_told_begins_anew_and_asks_the_other_for_a_seat() -> None:
    c = Mine()
    out = c.yields()
    assert [x.stage for x in of(out, DropSeat)] == [1]
    assert notes(out, "yielded") == [{"to": "b", "step": 0}]
    assert sent(c.do(Tick(), 0.1), Wish, "b")
    chain = c.state.chain
    assert not chain.seatings
    seats = (
        Seating(0, B, "active"),
        Seating(1, B, "active"),
        Seating(2, B, "active"),
        Seating(1, Member("p1.0", 1), "learner"),
    )
    states = tuple("s" * 32 for _ in range(3))
    head = "e" * 32
    generations = (0,) * len(states)
    c.tell(Summary(Ballot(1, "b"), head, 7, 70, 1.0, seats, (B,), states, (), 9, "f" * 32, (), generations), "b")
    assert (chain.head, chain.step, chain.lineage) == (head, 7, "f" * 32)
    assert c.state.bench.seats[1].state.role == "learner"


@pytest.mark.parametrize(("seated", "lineage", "goes"), [(False, "f" * 32, True), (False, "", False), (True, "f" * 32, False)])
def test_a_spare_goes_on_in_the_lineage_that_leads_it_however_far_that_is(seated: bool, lineage: str, goes: bool) -> None:
    """How many records it knows of the one before says nothing there. A seat is given up only for one that is further."""
    c = Mine()
    chain = c.state.chain
    if not seated:
        mine = tuple(s for s in chain.seatings if s.member.peer == "p1.0")
        c.decide(Roster(chain.head, 0, (), mine, (LEAD, B)))
    before, states = chain.head, tuple("s" * 32 for _ in range(3))
    seats = tuple(Seating(stage, LEAD, "active") for stage in range(3))
    told = Summary(BALLOT, "e" * 32, 0, 0, 0.0, seats, (LEAD,), states, (), chain.height, lineage, (), (0, 0, 0))
    c.tell(told)
    assert (chain.head, chain.lineage) == (("e" * 32, lineage) if goes else (before, ""))


def test_nobody_else_can_tell_a_member_so() -> None:
    c = Mine()
    c.tell(Yield(Ballot(1, "b"), Contact("b", "b:1")), "b")
    c.tell(Yield(BALLOT, Contact("b", "b:1")), "b")
    assert c.state.bench.seats


def test_its_heartbeats_tell_under_which_ballot_it_would_vote() -> None:
    c = Mine()
    c.state.acceptor.promised = Ballot(7, "lead")
    c.tell(Yield(Ballot(7, "lead"), Contact("b", "b:1")))
    beats = sent(c.do(Tick(), 0.1), Heartbeat, "b")
    assert [beat.ballot for beat in beats] == [Ballot(7, "lead")]


# ---- what a node still knows ----


def test_a_voter_that_has_begun_anew_votes_no_more_where_it_voted() -> None:
    """It has forgotten what it held there, and another lineage may still count it as a voter."""
    chain = Chain(a_manifest(), LEAD)
    acceptor, record = Acceptor(), Roster(chain.head, 0, (Seating(0, LEAD, "active"),), (), (LEAD, B))
    assert acceptor.hold(Ballot(4, "lead"), record, ())
    acceptor.begin_anew()
    assert acceptor.holding is None
    assert not acceptor.hold(Ballot(9, "b"), record, ())
    assert not acceptor.may_vote(chain.head, Ballot(9, "b"))
    later = Roster("e" * 32, 0, (Seating(0, LEAD, "active"),), (), (LEAD, B))
    assert not acceptor.hold(Ballot(3, "b"), later, ()), "it promised to serve no ballot below 4"
    assert acceptor.follow(Ballot(3, "b")), "but it may follow one"
    assert not acceptor.grant(Ballot(4, "b"), B), "a term is granted once"
    assert acceptor.hold(Ballot(5, "b"), later, ())


def test_a_chain_that_has_begun_anew_fits_nothing_but_a_summary() -> None:
    chain = Chain(a_manifest(), LEAD)
    genesis = chain.head
    chain.append(Roster(chain.head, 0, (Seating(0, B, "active"),), (), (LEAD,)), ())
    chain.begin_anew()
    assert chain.head not in ("", genesis)
    assert chain.fits(Roster(genesis, 0, (), (), (LEAD,)))
    assert "b" in chain.seen, "whom it may give way to it still knows"


def test_a_former_member_that_promised_another_ballot_is_asked_under_a_higher_one() -> None:
    """It was taken off the roster while it could not be heard, and had promised to follow nobody below."""
    c = Core(a_manifest(), LEAD.peer, founder=True)
    chain = c.state.chain
    seats = tuple(Seating(stage, LEAD, "active") for stage in range(3))
    gone = Seating(2, B, "active")
    c.decide(Roster(chain.head, 0, (*seats, gone), (), (LEAD,)))
    old = chain.head
    c.decide(Roster(chain.head, 0, (), (gone,), (LEAD,)))
    for _ in range(20):
        c.tell(Heartbeat(1, Ballot(7, "b"), old, 0, 0), "b")
        c.do(Tick(), 0.25)
    assert c.state.coordinator
    assert c.state.ballot == Ballot(8, LEAD.peer)
    for _ in range(20):
        c.tell(Heartbeat(1, Ballot(70, "x"), old, 0, 0), "x")
        c.do(Tick(), 0.25)
    assert c.state.ballot == Ballot(8, LEAD.peer), "strangers are not listened to"
