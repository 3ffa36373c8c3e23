"""Promises, candidates and the change of coordinators: who may lead whom, and what is never undone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from protocol.acceptor import Acceptor
from protocol.candidate import Candidate
from protocol.chain import Chain, choose_voters
from protocol.commands import Command, PublishLease
from protocol.events import LeasesSeen, Tick
from protocol.ids import Ballot, Member, PeerId
from protocol.messages import (
    Contact,
    Decide,
    Goodbye,
    Heartbeat,
    Held,
    OpenStep,
    Order,
    Prepare,
    Promise,
    Propose,
    Proposed,
    Standing,
    VoidStep,
    Wish,
)
from protocol.records import Commit, Record, Roster, Seating, StageResult, record_id
from protocol.takeover import HOPE_LAPSES, ranks
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, says, sent

A, B, C = (Member(name, 1) for name in "abc")
PAUSE = Order("pause", 7, "")


# ---- acceptor ----


def test_a_term_is_granted_once() -> None:
    acceptor = Acceptor()
    assert acceptor.grant(Ballot(2, "b"), B)
    assert acceptor.grant(Ballot(2, "b"), B), "asked again"
    assert not acceptor.grant(Ballot(2, "c"), C), "the same term for another one"
    assert not acceptor.grant(Ballot(2, "b"), Member("b", 2)), "another life knows nothing of what this term proposed"
    assert not acceptor.grant(Ballot(1, "z"), Member("z", 1))
    assert acceptor.grant(Ballot(3, "a"), A)
    assert not acceptor.follow(Ballot(2, "b")), "a promise is kept"


def three() -> tuple[Chain, list[Record]]:
    """A chain with the voters a, b and c, and two records that may follow."""
    manifest = a_manifest()
    chain = Chain(manifest, A)
    seatings = tuple(Seating(stage, member, "active") for stage, member in enumerate((A, B, C)))
    chain.append(Roster(chain.head, 0, seatings, (), (A, B, C)), ())
    return chain, [Roster(chain.head, 0, (), (), voters) for voters in ((A, B), (B, C, A))]


def test_a_promise_tells_what_is_held_and_what_the_candidate_lacks() -> None:
    chain, (one, _) = three()
    acceptor = Acceptor()
    assert acceptor.hold(Ballot(1, "a"), one, ())
    assert acceptor.grant(Ballot(2, "b"), B)
    promise = acceptor.promise(Prepare(Ballot(2, "b"), chain.head, ()), chain)
    assert promise == Promise(Ballot(2, "b"), chain.head, (Proposed(Ballot(1, "a"), one, ()),), ())
    before = chain.head
    acceptor.settled(chain.append(one, ()))
    promise = acceptor.promise(Prepare(Ballot(2, "b"), before, ()), chain)
    assert not promise.held
    assert [told.record for told in promise.decided] == [one]


# ---- candidate ----


def test_a_candidate_proposes_again_what_the_highest_ballot_left() -> None:
    chain, (one, other) = three()
    mine = Ballot(4, "b")
    candidate = Candidate(mine, chain)
    candidate.on_promise(B, Promise(mine, chain.head, (Proposed(Ballot(2, "c"), one, ()),), ()))
    assert candidate.advance() is None
    assert candidate.proposal is None, "one of three is no quorum"
    candidate.on_promise(C, Promise(mine, chain.head, (Proposed(Ballot(3, "a"), other, ()),), ()))
    assert candidate.advance() is None
    assert not candidate.has_won
    assert candidate.proposal
    assert candidate.proposal.ask() == Propose(mine, other, ())
    candidate.on_held(B, Held(mine, record_id(other)))
    candidate.on_held(Member("c", 2), Held(mine, record_id(other)))
    assert candidate.advance() is None, "another life of c is no voter"
    candidate.on_held(C, Held(mine, record_id(other)))
    decided = candidate.advance()
    assert decided
    assert decided.record == other
    chain.append(other, ())
    assert not candidate.has_won, "the promises were about the place before"
    assert [d.record for d in candidate.prepare(C).decided] == [other]


def test_promises_of_those_who_stand_elsewhere_do_not_count() -> None:
    chain, _ = three()
    mine = Ballot(2, "b")
    candidate = Candidate(mine, chain)
    for voter in (A, C):
        candidate.on_promise(voter, Promise(mine, "another head", (), ()))
    candidate.on_promise(B, Promise(mine, chain.head, (), ()))
    candidate.on_promise(C, Promise(Ballot(3, "b"), chain.head, (), ()))
    assert not candidate.has_won
    candidate.on_promise(C, Promise(mine, chain.head, (), ()))
    assert candidate.has_won


def test_who_stands_first() -> None:
    manifest = a_manifest(4)
    chain = Chain(manifest, LEAD)
    seatings = tuple(holders(manifest, replicas=2))
    chain.append(Roster(chain.head, 0, seatings, (), choose_voters(list(seatings), LEAD)), ())
    assert [m.peer for m in ranks(chain, manifest.num_stages)] == ["lead", "p0.1", "p1.0", "p1.1", "p4.0", "p2.0", "p3.0"]


# ---- a node ----


class Voter(Core):
    """A node whose coordinator can be silent; a, b and it are voters."""

    def __init__(self, peer: PeerId = "p1.0") -> None:
        manifest = a_manifest()
        super().__init__(manifest, peer)
        seatings = tuple(holders(manifest, replicas=2))
        voters = (LEAD, Member("p1.0", 1), Member("p2.0", 1))
        self.decide(Roster(self.state.chain.head, 0, seatings, (), voters))

    def pass_time(self, seconds: float, heard: tuple[str, ...] = ()) -> list[Command]:
        out: list[Command] = []
        for _ in range(int(seconds * 4)):
            out += self.do(Tick(dict.fromkeys(heard, 0.0)), 0.25)
        return out

    def prepare(self, peer: PeerId = "p2.0", term: int = 2, **more: Any) -> list[Command]:
        return self.tell(Prepare(Ballot(term, peer), self.state.chain.head, ()), peer, **more)


def test_nobody_promises_while_the_coordinator_is_heard() -> None:
    c = Voter()
    c.pass_time(2, heard=("lead",))
    out = c.prepare()
    assert not sent(out, Promise)
    assert sent(out, Heartbeat, "p2.0"), "it hears which ballot is served here"
    assert not sent(c.pass_time(5, heard=("lead",)), Prepare)


def test_a_promise_fences_the_coordinator_that_lapsed() -> None:
    c = Voter()
    c.pass_time(3.5)
    assert sent(c.prepare(term=9), Promise, "p2.0")
    chain = c.state.chain
    lost = Roster(chain.head, 0, (), tuple(s for s in chain.seatings if s.member.peer == "p2.1"), (LEAD,))
    assert not sent(c.tell(Propose(BALLOT, lost, ())), Held)
    c.tell(Decide(BALLOT, lost, ()))
    assert chain.head == lost.parent, "the promise is kept"
    assert [m.ballot for m in sent(c.pass_time(1.25), Heartbeat, "lead")][-1] == Ballot(9, "p2.0"), "and it is told"
    assert sent(c.tell(Prepare(Ballot(10, "lead"), chain.head, ()), "lead"), Promise), "it may ask again itself"


def test_strangers_and_other_lives_get_no_promise() -> None:
    c = Voter()
    c.pass_time(3.5)
    assert not sent(c.prepare("stranger"), Promise)
    assert not sent(c.prepare(incarnation=2), Promise)
    assert not sent(c.tell(Prepare(Ballot(2, "p1.1"), c.state.chain.head, ()), "p2.0"), Promise)
    assert not sent(c.prepare(term=1 << 40), Promise), "terms grow by one"


def won(c: Voter) -> list[Command]:
    """The node stands and p2.0 promises."""
    out = c.pass_time(4.5)
    asked = sent(out, Prepare, "p2.0")[-1]
    return out + c.tell(Promise(asked.ballot, c.state.chain.head, (), ()), "p2.0")


def test_a_voter_stands_and_leads_with_a_quorum() -> None:
    c = Voter()
    c.open()
    out = won(c)
    coordinator = c.state.coordinator
    assert coordinator
    assert coordinator.ballot == Ballot(2, "p1.0")
    assert of(out, PublishLease)[-1].coordinator
    assert notes(out, "took_over") == [{"term": 2, "from": "lead", "step": 0}]
    record = sent(out, Propose)[-1].record
    assert record.voters[0] == c.state.config.member
    assert {s.member.peer for s in record.leaves} == {"lead"}, "that it lapsed at two is known already"
    out = c.tell(Held(coordinator.ballot, record_id(record)), "p2.0")
    opened = sent(out, OpenStep)
    assert opened
    assert opened[0].attempt == 1001, "above all that the one before may have opened"


def a_commit(c: Voter) -> Commit:
    results = tuple(StageResult(stage, "sum", 1.0) for stage in range(c.manifest.num_stages))
    return Commit(c.state.chain.head, 1, 1, results, 8.0, c.manifest.batch.tokens_per_step)


def test_who_lacks_the_state_of_its_seat_leads_nobody() -> None:
    """It was excluded from an attempt that was committed, and is on the roster until the next one."""
    c = Voter()
    c.decide(a_commit(c))
    assert not c.state.bench.seats
    assert not sent(c.pass_time(10), Prepare), "it does not stand"
    assert sent(c.prepare(), Promise), "but it votes"


def test_a_candidate_that_learns_that_it_missed_a_commit_stands_back() -> None:
    c = Voter()
    asked = sent(c.pass_time(4.5), Prepare, "p2.0")[-1]
    commit = a_commit(c)
    told = Promise(asked.ballot, record_id(commit), (), (Proposed(BALLOT, commit, ()),))
    out = c.tell(told, "p2.0") + c.tell(replace(told, decided=()), "lead")
    assert c.state.chain.step == 1
    assert c.state.coordinator is None
    assert not sent(out, Propose)
    assert not sent(c.pass_time(10), Prepare)
    assert sent(c.prepare(term=asked.ballot.term + 1), Promise), "the next one may"


def test_a_candidate_that_lacks_its_state_and_is_promised_nothing_stands_no_more() -> None:
    c = Voter()
    asked = sent(c.pass_time(4.5), Prepare, "p2.0")[-1]
    c.tell(Promise(asked.ballot, "elsewhere", (), (Proposed(BALLOT, a_commit(c), ()),)), "p2.0")
    assert c.state.takeover.candidate
    out = c.pass_time(1.25)
    assert not sent(out, Prepare)
    assert sent(out, Heartbeat, "lead")[-1].aside


def without(chain: Chain, peer: PeerId) -> Roster:
    """The Roster that takes the peer off."""
    leaves = tuple(s for s in chain.seatings if s.member.peer == peer)
    return Roster(chain.head, chain.step, (), leaves, tuple(v for v in chain.voters if v.peer != peer))


def test_a_candidate_that_finds_the_record_that_takes_its_own_seat_steps_aside() -> None:
    """The coordinator before had given it up. Those that it told of the record follow it, and hear it; so it says so."""
    c = Voter()
    asked = sent(c.pass_time(4.5), Prepare, "p2.0")[-1]
    found = without(c.state.chain, "p1.0")
    c.tell(Promise(asked.ballot, found.parent, (Proposed(BALLOT, found, ()),), ()), "p2.0")
    out = c.tell(Held(asked.ballot, record_id(found)), "p2.0")
    assert sent(out, Decide, "p2.0")
    assert c.state.takeover.candidate is None
    assert not sent(out, Prepare), "nobody would promise it anything"
    heard = Heartbeat(1, asked.ballot, record_id(found), 0, 0)
    [beat] = sent(c.tell(heard, "p2.0"), Heartbeat, "p2.0")
    assert (beat.aside, beat.ballot) == (True, asked.ballot)
    c.do(LeasesSeen(Contact("p2.0", "p2.0:1"), ()))
    assert sent(c.pass_time(1), Wish, "p2.0"), "it asks whoever leads now for a seat"


def test_who_steps_aside_is_followed_no_more_though_it_lives() -> None:
    c = Voter()
    high = Ballot(3, "p2.1")
    c.tell(Decide(high, without(c.state.chain, "p2.1"), ()), "p2.1")
    beat = Heartbeat(1, BALLOT, c.state.chain.head, 0, 0, aside=True)
    c.tell(beat, "p2.1")
    assert not sent(c.pass_time(1, heard=("p2.1",)), Prepare), "that was before it stood"
    c.tell(replace(beat, ballot=high, aside=False), "p2.1")
    assert not sent(c.pass_time(1, heard=("p2.1",)), Prepare)
    c.tell(replace(beat, ballot=high), "p2.1")
    assert sent(c.pass_time(1, heard=("p2.1",)), Prepare, "p2.0")[-1].ballot == Ballot(4, "p1.0")


def test_who_leads_or_may_stand_does_not_step_aside() -> None:
    c = Voter()
    assert not sent(c.pass_time(1, heard=("lead",)), Heartbeat, "lead")[-1].aside, "a voter"
    assert sent(Voter("p1.1").pass_time(1, heard=("lead",)), Heartbeat, "lead")[-1].aside, "no voter"
    won(c)
    assert not sent(c.pass_time(1), Heartbeat, "p2.0")[-1].aside, "the coordinator"


def test_who_stands_for_long_and_is_promised_nothing_says_that_nobody_is_to_wait_for_it() -> None:
    """Nodes that missed what was decided since it coordinated hear it, and would promise nobody else."""
    c = Voter()
    rules = c.state.config.manifest
    out = c.pass_time(rules.timing.lapse_s + 1.0, heard=("p2.1",))
    assert c.state.takeover.candidate
    assert not sent(out, Heartbeat, "lead")[-1].aside, "it may win yet"
    out = c.pass_time((HOPE_LAPSES + 1) * rules.timing.lapse_s, heard=("p2.1",))
    assert sent(out, Prepare, "p2.0"), "it goes on asking"
    assert sent(out, Heartbeat, "lead")[-1].aside
    asked = sent(out, Prepare, "p2.0")[-1]
    c.tell(Promise(asked.ballot, c.state.chain.head, (), ()), "p2.0")
    assert not sent(c.pass_time(1), Heartbeat, "p2.0")[-1].aside, "it leads now"


def test_an_order_outlives_the_coordinator_that_took_it_whatever_was_said_last() -> None:
    """The run was paused, then stood still for another reason, and then its coordinator went."""
    c = Voter()
    c.tell(Standing(BALLOT, "paused", "paused", 0, -1, 0.0, 0, PAUSE))
    c.tell(Standing(BALLOT, "waiting", "waiting for a quorum", 0, -1, 0.0, 0, PAUSE))
    out = won(c)
    record = sent(out, Propose)[-1].record
    out = c.tell(Held(c.state.ballot, record_id(record)), "p2.0")
    assert not sent(out, OpenStep)
    told = sent(out, Standing, "p2.0")[-1]
    assert (told.phase, told.order) == ("paused", PAUSE)
    c.tell(Order("pause", PAUSE.serial - 1, ""), "p2.0")
    c.tell(Order("resume", PAUSE.serial - 1, ""), "p2.0")
    assert not sent(c.pass_time(1), OpenStep), "orders of before do not hold again"
    assert sent(c.tell(Order("resume", PAUSE.serial + 1, ""), "p2.0"), OpenStep)


def test_who_knows_a_newer_order_than_the_coordinator_tells_it() -> None:
    c = Voter()
    assert sent(c.tell(PAUSE, "p1.0"), Order, "lead") == [PAUSE], "passed on"
    for _ in range(2):
        c.tell(Standing(BALLOT, "training", "training", 0, -1, 0.0))
        assert PAUSE in sent(c.pass_time(1), Order, "lead"), "it did not come through"
    c.tell(Standing(BALLOT, "training", "training", 0, -1, 0.0, 0, PAUSE))
    assert not sent(c.pass_time(3), Order)
    newer = Order("stop", PAUSE.serial + 1, "")
    c.tell(Standing(BALLOT, "finished", "stopped", 0, -1, 0.0, 0, newer))
    assert not sent(c.pass_time(1), Order)
    c.tell(Order("resume", PAUSE.serial + 2, ""), "p2.0")
    assert c.state.orders.latest == newer, "a stop is not taken back"


def test_alone_a_voter_waits_and_says_for_what() -> None:
    c = Voter()
    told = says(c.pass_time(20))
    assert c.state.coordinator is None
    assert "1 of 3 voters" in told[-1]
    assert "coordinator" in told[-1]


def test_who_is_seated_by_a_record_that_is_held_here_counts() -> None:
    """Policy `none`: a coordinator that alone holds a stage is waited for. It may have decided that another one holds it."""
    for held in (False, True):
        c = Voter()
        chain, voters = c.state.chain, c.state.chain.voters
        c.decide(Roster(chain.head, 0, (), tuple(s for s in chain.seatings if s.member.peer == "p0.1"), voters))
        if held:
            c.tell(Propose(BALLOT, Roster(chain.head, 0, (Seating(0, Member("late", 1), "passive"),), (), voters), ()))
        assert bool(sent(c.pass_time(4.5), Prepare, "p2.0")) == held


def test_who_says_goodbye_needs_no_lapse() -> None:
    c = Voter()
    c.tell(Goodbye(LEAD, "left"))
    assert sent(c.pass_time(0.75), Prepare, "p2.0")


def test_the_old_coordinator_becomes_a_member() -> None:
    c = Core(a_manifest(), LEAD.peer, founder=True)
    manifest = c.manifest
    seatings = tuple(s for s in holders(manifest))
    c.tell(Decide(BALLOT, Roster(c.state.chain.head, 0, seatings, (), (LEAD,)), ()))
    assert c.state.coordinator
    out = c.tell(VoidStep(Ballot(2, "p1.0"), 1, 1, "it goes on here"), "p1.0")
    assert c.state.coordinator is None
    assert c.state.ballot == Ballot(2, "p1.0")
    assert not of(out, PublishLease)[-1].coordinator


def test_a_coordinator_whose_voter_promised_another_asks_again_under_a_higher_ballot() -> None:
    c = Core(a_manifest(), LEAD.peer, founder=True)
    seatings = tuple(holders(c.manifest))
    c.tell(Decide(BALLOT, Roster(c.state.chain.head, 0, seatings, (), (LEAD, Member("p1.0", 1))), ()))
    head = c.state.chain.head
    out: list[Command] = []
    for _ in range(16):
        out += c.do(Tick({"p1.0": 0.0, "p2.0": 0.0}), 0.25)
        out += c.tell(Heartbeat(1, Ballot(5, "p1.0"), head, 0, 0), "p1.0")
    assert sent(out, Prepare, "p1.0")[0].ballot == Ballot(6, LEAD.peer)
