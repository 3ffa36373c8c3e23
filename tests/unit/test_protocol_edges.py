"""Edges that whole runs pass without touching them: each is a place where `make mutants` once made the code wrong unnoticed."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest

from protocol.acceptor import Acceptor
from protocol.averaging import sources_of
from protocol.chain import Chain, is_quorum
from protocol.commands import Compute, Note, SendMessage
from protocol.coordinator import Coordinator
from protocol.evaluation import Evaluation
from protocol.events import ComputeDone, LeaveAsked, Tick
from protocol.fork import Roll
from protocol.gathering import Gathering
from protocol.ids import Ballot, Member
from protocol.invite import PREFIX, _encode, parse
from protocol.manifest import slug
from protocol.meeting import Stand
from protocol.membership import Membership
from protocol.messages import Heartbeat, Kept, Learning, OpenEvaluation, OpenStep, Probe, RecordsWanted, ReducedReport, Wish
from protocol.older_copy import age_of
from protocol.orders import Orders
from protocol.plain import from_plain, to_plain
from protocol.poll import Polls
from protocol.records import Rebuild, Roster, Seating
from protocol.schedule import later_lr_factor
from protocol.version import PROTOCOL_VERSION
from protocol.view import PeerNews, View
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, of, sent
from tests.unit.test_protocol_heirs import handing_over
from tests.unit.test_protocol_machines import ledger
from tests.unit.test_protocol_members import a_chain, commit
from tests.unit.test_protocol_recovery import Lost, a_run

NEW = Member("new", 1)


# ---- who wants a seat ----


def test_the_coordinator_forgets_strangers_that_are_silent_and_never_itself() -> None:
    manifest = a_manifest()
    coordinator = Coordinator(manifest, LEAD, BALLOT, Chain(manifest, LEAD), View(manifest.timing.lapse_s), Orders())
    for member in (LEAD, NEW):
        coordinator.on_wish(Wish(member, 0, "n", "x:1", 0), 0.0)
    coordinator.on_tick(1e3)
    assert list(coordinator.members.gathering.wishes) == [LEAD.peer]


def test_a_wish_for_the_stage_after_the_last_means_any() -> None:
    gathering = Gathering(a_manifest())
    for peer, stage in (("a", 3), ("b", 0), ("c", 1)):
        assert gathering.enter(Wish(Member(peer, 1), stage, peer, f"{peer}:1", 0))
    assert Seating(2, Member("a", 1), "active") in gathering.seat().seatings


def test_a_wish_that_is_repeated_counts_as_it_is_now() -> None:
    gathering = Gathering(a_manifest())
    for stage in (1, 2):
        assert gathering.enter(Wish(NEW, stage, "n", "x:1", 0))
    assert gathering.wishes[NEW.peer].stage == 2


def test_whoever_asks_for_a_stage_knows_what_it_needs() -> None:
    manifest = a_manifest()
    members = Membership(manifest, a_chain(manifest))
    for peer, stage in (("asked", 2), ("tiny", -1)):
        members.on_wish(Wish(Member(peer, 1), stage, peer, f"{peer}:1", 1))
    assert members.spares(2) == [Member("asked", 1)]


def test_who_leaves_asks_for_no_seat_any_more() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest, replicas=2))
    core.tell(Heartbeat(1, BALLOT, core.state.chain.head, 0, 0), "p1.1")
    core.do(LeaveAsked("test"))
    assert core.state.departure.is_on
    mine = tuple(s for s in core.state.chain.seatings if s.member == core.state.config.member)
    out = core.decide(Roster(core.state.chain.head, 0, (), mine, (LEAD,)))
    for _ in range(8):
        out += core.do(Tick({"lead": 0.0, "p1.1": 0.0}), 0.5)
    assert not sent(out, Wish)


# ---- what is learned ----


def test_a_step_on_records_that_are_not_here_makes_the_node_ask_for_them() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest))
    ahead = OpenStep(BALLOT, 1, 1, "f" * 32, (), (), (), ())
    assert sent(core.tell(ahead), RecordsWanted, "lead")
    assert not sent(core.tell(replace(ahead, step=0)), RecordsWanted), "it is over"


def test_a_run_is_summed_up_before_its_first_commit_too() -> None:
    manifest = a_manifest()
    chain, newcomer = a_chain(manifest, steps=0), Chain(manifest, None)
    assert newcomer.adopt(chain.summary(BALLOT, ())) == ""
    assert newcomer.head == chain.head


def test_no_step_is_left_out() -> None:
    manifest = a_manifest()
    chain, further = a_chain(manifest, steps=1), a_chain(manifest, steps=2)
    skipped = replace(further.past[-1].commit, parent=chain.head, step=3)
    assert chain.fits(replace(skipped, step=2)) == ""
    assert "step 3 after step 1" in chain.fits(skipped)


def test_who_makes_a_stage_does_not_say_that_it_holds_it_before_it_does() -> None:
    manifest = a_run()
    core = Core(manifest, NEW.peer, [*holders(manifest), Seating(2, NEW, "learner")])
    chain = core.state.chain
    commit(chain, manifest)
    core.decide(Roster(chain.head, 1, (), tuple(chain.holders(2)), (LEAD,)))
    core.decide(Rebuild(chain.head, 1, 2, 1, sources_of(2, chain, manifest), (Seating(2, NEW, "active", 1),), (LEAD,)))
    assert 2 in core.state.bench.seats
    assert not [x for _ in range(8) for x in sent(core.do(Tick({"lead": 0.0}), 0.5), Learning)]


# ---- an older state of a stage ----


def test_who_has_not_seen_the_steps_cannot_tell_and_lets_others_say_how_old_a_state_is() -> None:
    manifest = a_run(stale_max_steps=2)
    lost = Lost(2, steps=3, manifest=manifest)
    lost.wish(Member("p2.0", 1), kept=(Kept(2, lost.chain.past[-1].parents[2], "d"),))
    record = lost.rebuild(10.0)
    newcomer = Chain(manifest, None)
    assert newcomer.adopt(lost.chain.summary(BALLOT, ())) == ""
    assert newcomer.fits(record) == ""


def test_the_age_of_a_state_is_known_in_steps() -> None:
    chain = a_chain(a_manifest(), steps=3)
    ages = [age_of(chain, 1, state) for state in (chain.state_ids[1], *(past.parents[1] for past in chain.past), "unknown")]
    assert ages == [0, 3, 2, 1, None]


def test_a_copy_of_the_embedding_stays_where_the_stage_that_it_is_for_is_about_to_be_computed() -> None:
    """Whoever learns a block stage is not spared from stage 0, where it is to be a copy."""
    lost = Lost(2, manifest=a_run(embedding_copies=1))
    seats = (Seating(0, NEW, "passive"), Seating(4, NEW, "learner", pinned=True))
    lost.chain.append(Roster(lost.chain.head, 1, seats, (), (LEAD,)), ())
    lost.next(0.0)
    assert "no node can take it yet" in lost.next(14.0).sentence


# ---- votes ----


def test_of_no_voters_there_is_no_quorum() -> None:
    assert not is_quorum(set(), ())
    assert not is_quorum({LEAD}, ())


def test_in_another_lineage_no_lower_ballot_than_was_promised_is_voted_for() -> None:
    acceptor = Acceptor()
    assert acceptor.grant(Ballot(5, "b"), Member("b", 1))
    acceptor.begin_anew()
    assert acceptor.may_vote("elsewhere", Ballot(5, "b"))
    assert not acceptor.may_vote("elsewhere", Ballot(4, "c"))


def test_a_coordinator_tells_those_that_claim_to_be_one_where_it_stands_and_not_itself() -> None:
    manifest = a_manifest()
    core = Core(manifest, LEAD.peer, founder=True)
    meetings = core.state.meetings
    said = meetings.look([LEAD.peer, "rival"], Stand(BALLOT, True), core.now)
    assert [c.peer for c in of(said, SendMessage)] == ["rival"]


# ---- who is watched ----


def test_who_is_asked_about_a_member_speaks_to_it() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest))
    assert sent(core.tell(Probe(BALLOT, Member("p2.0", 1), "p2.0:1")), Heartbeat, "p2.0")
    assert not sent(core.tell(Probe(BALLOT, core.state.config.member, "p1.0:1")), Heartbeat)


def test_a_member_that_probes_is_answered_for_four_lapses() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest))
    assert sent(core.tell(Heartbeat(1, BALLOT, core.state.chain.head, 0, 0), "p2.0"), Heartbeat, "p2.0")
    quarters = range(1, int(6 * 4 * manifest.timing.lapse_s))
    answered = [n / 4 for n in quarters if sent(core.do(Tick({"lead": 0.0, "p2.0": 0.0}), 0.25), Heartbeat, "p2.0")]
    assert 3 * manifest.timing.lapse_s < answered[-1] < 4.1 * manifest.timing.lapse_s


def test_answers_are_not_answered() -> None:
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest))
    beat = Heartbeat(1, BALLOT, core.state.chain.head, 0, 0)
    assert sent(core.tell(beat, "p2.0"), Heartbeat, "p2.0")
    assert not sent(core.tell(beat, "p2.0"), Heartbeat, "p2.0")


def test_whom_a_step_named_is_spoken_to_until_it_is_off_the_roster() -> None:
    """It may belong to another lineage: two coordinators that hear each other's ballots outbid each other for good."""
    manifest = a_manifest()
    core = Core(manifest, "p1.0", holders(manifest))
    core.open()
    core.state._watch.name(["p2.0"], core.now)
    assert sent(core.do(Tick(), 1.0), Heartbeat, "p2.0")
    chain = core.state.chain
    core.decide(Roster(chain.head, chain.step, (), tuple(chain.seated(2)), (LEAD,)))
    core.do(Tick(), 1.0)
    assert not sent(core.do(Tick(), 1.0), Heartbeat, "p2.0")
    assert sent(core.do(Tick(), 1.0), Heartbeat, LEAD.peer)


# ---- who goes ----


def test_where_all_have_two_seats_nobody_gives_one_up() -> None:
    manifest = a_run()
    chain = a_chain(manifest)
    second = tuple(Seating(2, Member(peer, 1), "active") for peer in ("p1.0", "p3.0"))
    chain.append(Roster(chain.head, 1, second, tuple(chain.active(2)), (LEAD,)), ())
    assert not Membership(manifest, chain).changes(1.0)


def test_a_leaver_whose_time_is_over_has_none_left() -> None:
    run = handing_over(seconds_left=1e6)
    assert "has 0 s for it" in run.members.handover.waits(1e4)


def test_a_stage_that_nobody_holds_is_not_handed_over() -> None:
    run = handing_over(seconds_left=1e6)
    leaves = tuple(run.chain.seated(3))
    run.chain.append(Roster(run.chain.head, run.chain.step, (), leaves, (LEAD,)), ())
    assert run.members.handover.stages() == [2]


# ---- evaluations ----


def test_an_evaluation_after_the_first_step_waits_for_its_time_and_not_longer() -> None:
    manifest = a_manifest(evaluation={"every_steps": 1, "num_microbatches": 2})
    chain = a_chain(manifest)
    polls = Polls(manifest, chain)
    assert polls.is_due()
    assert polls.begin(BALLOT, {}, 5.0)
    assert not polls.is_due()
    assert polls.open
    assert polls.close(polls.open.deadline - 0.1) == (None, [])
    loss, told = polls.close(polls.open.deadline)
    assert loss is None
    assert len(of(told, Note)) == 1
    assert not polls.is_due()
    assert polls.skip("it is closed") == []


def test_one_at_a_time_is_evaluated_where_only_one_may_be_in_flight() -> None:
    manifest = a_manifest()
    core = Core(manifest, LEAD.peer, holders(manifest))
    evaluation = Evaluation("parent", 0, LEAD.peer, 1)
    asked = OpenEvaluation(BALLOT, "parent", 0, (core.route(0), core.route(1)), ())
    (first,) = of(evaluation.open(asked), Compute)
    assert first.work.microbatch == 0
    evaluation.computed(ComputeDone(first.work, 0, 0, 1.0, 8, 0.1))


# ---- a sum ----


def test_a_gradient_may_be_zero_and_its_norm_not_negative() -> None:
    book = ledger()
    book.started[1] = ()
    report = ReducedReport(BALLOT, 1, 1, 1, "d", 0.0)
    assert book.enter_reduced(Member("s1r0", 1), report, 1.0) == ""
    assert "squared norm" in book.enter_reduced(Member("s1r0", 1), replace(report, squared_norm=-0.5), 1.0)


def test_a_learning_rate_factor_that_is_1_but_for_rounding_is_1() -> None:
    rules = a_manifest(recovery={"policy": "none", "lr_factor": 1.1, "lr_factor_decay_steps": 4}).recovery
    assert later_lr_factor(rules, 1.0 + 1e-9) == 1.0


# ---- what comes from elsewhere ----


def test_the_shortest_text_that_can_be_an_invite_is_not_one() -> None:
    data = struct.pack(">H", 0)
    data += struct.pack(">I", zlib.crc32(data))
    with pytest.raises(ValueError, match="mistyped"):
        parse(PREFIX + _encode(data))


def test_a_run_without_decay_may_warm_up_to_its_end() -> None:
    warm = {"learning_rate": 0.1, "warmup_steps": 10}
    assert a_manifest(optimizer=warm | {"schedule": "constant"}).optimizer.warmup_steps == 10
    with pytest.raises(ValueError, match="leaves none of the 10 steps to decay"):
        a_manifest(optimizer=warm | {"schedule": "linear"})


def test_a_runs_name_fits_into_an_invite() -> None:
    assert slug("A" * 40) == "a" * 31


def test_an_invite_of_a_later_version_may_hold_nothing_else() -> None:
    body = struct.pack(">H", PROTOCOL_VERSION + 1)
    data = struct.pack(">H", len(body)) + body
    data += struct.pack(">I", zlib.crc32(data))
    with pytest.raises(ValueError, match="this program speaks"):
        parse(PREFIX + _encode(data))


def test_an_event_is_read_back_as_it_was_written() -> None:
    tick = Tick({"12": 0.5, "lead": 1.0})
    assert from_plain(Tick, to_plain(tick)) == tick
    assert from_plain(dict[int, float], to_plain({3: 0.5})) == {3: 0.5}


def test_present_is_who_beats_since_the_roll_was_called() -> None:
    chain, view = a_chain(a_manifest()), View(1.0)
    other = next(m for m in chain.members() if m != LEAD)
    roll = Roll(LEAD, chain, view)
    roll.call(10.0)
    seen = []
    for at, now in ((9.9, 10.1), (10.2, 10.3), (10.2, 11.3)):
        view.news[other.peer] = PeerNews(other.incarnation, at=at)
        seen.append(other in roll.present(now))
    assert seen == [False, True, False]
    view.news[other.peer] = PeerNews(other.incarnation, at=10.2, lacks=True)
    assert roll.present(10.3) == {LEAD}, "who lacks its state is no holder to wait for"
