"""Restarts, promotions, late messages of voided attempts, and what a node says while the coordinator is away."""

from __future__ import annotations

import pytest

from node.sim.scenario import make_scenario
from protocol.chain import Chain
from protocol.checks import stages_of
from protocol.commands import Command, Note, Release, Say, SendMessage
from protocol.coordinator import Coordinator
from protocol.counted import contributors_of
from protocol.events import LeasesSeen, MessageReceived, PayloadArrived, Tick
from protocol.ids import Ballot, Member
from protocol.messages import (
    Contact,
    Decide,
    Heartbeat,
    Held,
    Hop,
    OpenStep,
    PipeHeader,
    Propose,
    Route,
    Standing,
    Suspect,
    VoidStep,
    Wish,
)
from protocol.node_state import NodeConfig, NodeState
from protocol.orders import Orders
from protocol.records import Commit, Roster, Seating, Share, StageResult, record_id
from protocol.view import View
from protocol.workbench import Workbench

MANIFEST = make_scenario(1).manifest
BALLOT = Ballot(1, "lead")
LEAD = Member("lead", 1)
STAGES = range(MANIFEST.num_stages)


def holder(stage: int, incarnation: int = 1) -> Member:
    return LEAD if stage == 0 else Member(f"holder{stage}", incarnation)


def seated(*more: Seating) -> tuple[Chain, Coordinator]:
    """A coordinator that holds stage 0, one node per block stage, nothing committed."""
    chain = Chain(MANIFEST, LEAD)
    seats = [Seating(stage, holder(stage), "active") for stage in STAGES]
    chain.append(Roster(chain.head, 0, (*seats, *more), (), (LEAD,)), ())
    return chain, Coordinator(MANIFEST, LEAD, BALLOT, chain, View(MANIFEST.timing.lapse_s), Orders())


def proposed(commands: list[Command]) -> Roster:
    records = [c.message.record for c in commands if isinstance(c, SendMessage) and isinstance(c.message, Propose)]
    assert records, "nothing was proposed"
    assert isinstance(records[0], Roster)
    return records[0]


def beat(incarnation: int, chain: Chain) -> Heartbeat:
    return Heartbeat(incarnation, BALLOT, chain.head, 0, 0)


@pytest.mark.parametrize("by", ["heartbeat", "wish"])
def test_a_later_incarnation_means_that_the_seat_is_lost(by: str) -> None:
    chain, coordinator = seated()
    coordinator.on_heartbeat(holder(1), beat(1, chain), 1.0)
    coordinator.advance(1.0)
    assert coordinator.ledger, "the same incarnation changes nothing: the step opens"
    coordinator.take()
    if by == "heartbeat":
        coordinator.on_heartbeat(holder(1, 2), beat(2, chain), 2.0)
    else:
        coordinator.on_wish(Wish(holder(1, 2), -1, "name", "holder1:1", 0), 2.0)
    coordinator.advance(2.0)
    assert proposed(coordinator.take()).leaves == (Seating(1, holder(1), "active"),)


def test_a_passive_replica_takes_over_from_the_last_active_one() -> None:
    passive = Seating(1, holder(2), "passive")
    chain, coordinator = seated(passive)
    coordinator.on_goodbye(holder(1), "test")
    coordinator.advance(1.0)
    commands = coordinator.take()
    roster = proposed(commands)
    assert roster.joins == (Seating(1, holder(2), "active"),)
    assert any(isinstance(c, Note) and c.type == "promoted" for c in commands)
    chain.append(roster, ())
    assert not chain.empty_stages()


def test_a_passive_replica_stays_passive_beside_an_active_one() -> None:
    _, coordinator = seated(Seating(1, holder(3), "active"), Seating(1, holder(2), "passive"))
    coordinator.on_goodbye(holder(1), "test")
    coordinator.advance(1.0)
    assert proposed(coordinator.take()).joins == ()


def test_a_record_that_is_asked_for_later_still_carries_its_shares() -> None:
    """To a voter, which may have to tell others one day; what others do with it needs none."""
    voter = holder(2)
    chain, coordinator = seated()
    chain.append(Roster(chain.head, 0, (), (), (LEAD, voter)), ())
    shares = tuple(Share(stage, holder(stage), "3") for stage in STAGES)
    results = tuple(StageResult(stage, "d", 1.0) for stage in STAGES)
    tokens = MANIFEST.batch.tokens_per_step
    commit = Commit(chain.head, 1, 1, results, 1.0, tokens, contributors_of(shares, 1, MANIFEST))
    before = chain.head
    coordinator._propose(commit, shares, 1.0)
    coordinator.on_held(LEAD, Held(BALLOT, record_id(commit)))
    coordinator.advance(1.0)
    sent = {c.peer: c.message for c in coordinator.take() if isinstance(c, SendMessage) and isinstance(c.message, Decide)}
    assert (sent["holder1"].shares, sent["holder2"].shares) == ((), shares)
    assert sent["lead"].shares == (), "it holds them"
    chain.append(commit, shares)
    for member, wanted in ((holder(1), ()), (voter, shares)):
        coordinator.on_records_wanted(member, before, 1.0)
        again = [c.message for c in coordinator.take() if isinstance(c, SendMessage)]
        assert [m.shares for m in again if isinstance(m, Decide)] == [wanted]


def test_the_silence_of_who_was_just_seated_counts() -> None:
    """It goes while its seat is decided, and no step is open for which somebody would expect it."""
    chain, coordinator = seated()
    new = Member("new", 1)
    coordinator.on_wish(Wish(new, 1, "new", "new:1", 0), 1.0)
    coordinator._propose(Roster(chain.head, 0, (Seating(1, new, "passive"),), (), chain.voters), (), 1.0)
    coordinator.members.gathering.leave(new)
    coordinator.on_tick(1.1)
    coordinator.on_held(LEAD, Held(BALLOT, record_id(coordinator._proposal.record)))  # type: ignore[union-attr]
    coordinator.advance(1.2)
    assert coordinator._view.lapsed("new", 1.3 + MANIFEST.timing.lapse_s)


def bench() -> tuple[Workbench, Chain]:
    chain = Chain(MANIFEST, None)
    return Workbench(MANIFEST, "me", chain), chain


def open_step(chain: Chain, attempt: int) -> OpenStep:
    return OpenStep(BALLOT, 1, attempt, chain.head, (), (), (), ())


def test_a_voided_attempt_is_not_opened_by_a_late_message() -> None:
    work, chain = bench()
    work.ask_open(open_step(chain, 1), 1.0)
    assert work.open
    work.void(VoidStep(BALLOT, 1, 1, "test"))
    work.ask_open(open_step(chain, 1), 2.0)
    assert work.open is None
    work.ask_open(open_step(chain, 2), 3.0)
    assert work.open


def test_a_step_that_was_opened_before_its_roster_arrived_begins_with_the_roster() -> None:
    node = NodeState(NodeConfig(MANIFEST, Member("me", 1), "me", "me:1"))
    roster = Roster(node.chain.head, 0, tuple(Seating(stage, holder(stage), "active") for stage in STAGES), (), (LEAD,))
    step = OpenStep(BALLOT, 1, 1, record_id(roster), (), (), (), ())
    node.handle(LeasesSeen(Contact("lead", "lead:1"), ()), 0.0)
    node.handle(MessageReceived("lead", 1, step), 0.1)
    assert node.bench.open is None
    node.handle(MessageReceived("lead", 1, Decide(BALLOT, roster, ())), 0.2)
    assert node.bench.open == step


def test_early_payloads_of_a_voided_attempt_are_released() -> None:
    work, _ = bench()
    stages = stages_of(MANIFEST.num_block_stages, False, MANIFEST.swapped)
    route = Route(0, tuple(Hop(stage, "me" if stage == 1 else "lead") for stage in stages))

    def arrive(attempt: int, handle: int) -> list[Command]:
        header = PipeHeader(BALLOT, 1, attempt, "the roster to come", "forward", 1, route)
        work.arrived(PayloadArrived("lead", header, handle, 8))
        return work.take()

    assert arrive(1, 7) == []
    assert arrive(2, 8) == []
    work.void(VoidStep(BALLOT, 1, 1, "test"))
    assert work.take() == [Release(7)], "what belongs to the next attempt is kept"
    assert arrive(1, 9) == [Release(9)]


def says(commands: list[Command]) -> list[str]:
    return [c.sentence for c in commands if isinstance(c, Say)]


def led_node() -> NodeState:
    """A node without a seat that was told how the run stands."""
    node = NodeState(NodeConfig(MANIFEST, Member("me", 1), "me", "me:1"))
    node.handle(LeasesSeen(Contact("lead", "lead:1"), ()), 0.0)
    standing = Standing(BALLOT, "waiting", "waiting: stage 1 has no holder", 0, -1, 0.0)
    node.handle(MessageReceived("lead", 1, standing), 0.1)
    return node


def ticks(node: NodeState, first: float, last: float, heard_at: float) -> list[str]:
    out, now = [], first
    while now < last:
        out += says(node.handle(Tick({"lead": now - heard_at}), now))
        now += 0.25
    return out


def test_after_a_silence_the_coordinators_sentence_is_back() -> None:
    node = led_node()
    assert "not heard" in ticks(node, 0.25, 5.0, heard_at=0.1)[-1]
    assert ticks(node, 5.0, 6.0, heard_at=5.0) == ["waiting: stage 1 has no holder"]
    assert ticks(node, 6.0, 6.5, heard_at=6.0) == []


def test_a_restarted_coordinator_leads_no_more() -> None:
    node = led_node()
    node.handle(MessageReceived("lead", 2, Heartbeat(2, Ballot(0, ""), "", 0, 0)), 0.2)
    assert ticks(node, 0.25, 0.5, heard_at=0.2) == ["waiting: the coordinator lead was restarted and leads no more"]


def test_opinions_of_old_are_forgotten_though_nobody_was_lost() -> None:
    """A member that was suspected may leave in order; a coordinator that leads for months remembers none of them."""
    chain, coordinator = seated()
    lapse_s = MANIFEST.timing.lapse_s
    for member in chain.members():
        coordinator._view.expect(member.peer, 0.0)
    coordinator.on_suspect("holder1", Suspect(holder(2), "not heard"), 1.0)
    coordinator.on_tick(1.5 * lapse_s)
    losses = coordinator._losses
    assert losses._opinions == {holder(2): {"holder1": 1.0}}
    for member in chain.members():
        coordinator._view.heard(member.peer, 4 * lapse_s)
    coordinator.on_tick(1.0 + 2 * lapse_s)
    assert losses._opinions, "it still counts"
    coordinator.on_tick(4 * lapse_s)
    assert not losses._opinions
    assert not losses._probed
