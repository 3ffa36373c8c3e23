"""A learner in the runtime, on toy ports and virtual time: it begins, tells, and ends with what asked for it."""

from __future__ import annotations

import asyncio

from node.ports import PeerError
from protocol.commands import DropSeat, Exit, KeepGradients, Learn, StopLearning
from protocol.events import Learned, LearningGoesOn
from protocol.ids import Member
from protocol.records import Roster, Seating
from tests.tools.toy_ports import Life


def seat_a_donor(life: Life, reachable: bool = True) -> None:
    """`you` holds stage 1, and this node learns it."""
    chain, me = life.state.chain, Member("me", 1)
    seatings = (Seating(0, me, "active"), Seating(1, Member("you", 1), "active"), Seating(1, me, "learner"))
    chain.append(Roster(chain.head, 0, seatings, (), (me,)), ())
    life.state.bench.addresses = {"you": "you:1"} if reachable else {}
    life.world.donated = chain.state_ids[1]


def test_a_learner_tells_how_it_goes_and_what_it_learned_until_it_is_stopped() -> None:
    life = Life()

    async def script(life: Life) -> None:
        seat_a_donor(life, reachable=False)
        life.command(Learn(1))
        await asyncio.sleep(2.5)
        life.state.bench.addresses = {"you": "you:1"}
        await asyncio.sleep(2.0)
        assert life.world.calls.count("visited") == 0, "the connection stays open"
        life.command(StopLearning(1), StopLearning(1))
        await asyncio.sleep(0.1)
        assert life.world.calls.count("visited") == 1

    life.go(script)
    reports = life.state.of(LearningGoesOn)
    assert 2 <= len(reports) <= 5
    assert (reports[0].num_bytes, reports[0].total_bytes, reports[0].num_donors) == (0, 48, 0)
    (learned,) = life.state.of(Learned)
    told = (learned.stage, learned.step, learned.digest, learned.optimizer_age, learned.lr_factor, learned.generation)
    assert told == (1, 5, "digest", 7, 1.1, 2)
    assert (learned.state_id, learned.donors, learned.num_bytes) == (life.state.chain.state_ids[1], ("you",), 48)
    assert life.world.calls.count("blank") == 1


def test_dropping_the_seat_ends_its_learner_and_learning_again_begins_anew() -> None:
    life = Life(wait={"state_range": 1000.0})

    async def script(life: Life) -> None:
        seat_a_donor(life)
        for end in (Learn(1), DropSeat(1)):
            life.command(Learn(1))
            await asyncio.sleep(1.0)
            life.command(end)
            await asyncio.sleep(0.1)
        assert life.world.calls.count("drop") == 1
        assert life.world.calls.count("visited") == life.world.calls.count("visit")

    life.go(script)
    assert life.world.calls.count("blank") == 3
    assert not life.state.of(Learned)


def test_a_node_that_leaves_ends_its_learner() -> None:
    life = Life(wait={"state_range": 1000.0})

    async def script(life: Life) -> None:
        seat_a_donor(life)
        life.command(Learn(1), KeepGradients(0, 2))
        await asyncio.sleep(1.0)

    assert life.go(script) == Exit(0, "the end")
    assert {"visit", "visited", "keep 2"} <= set(life.world.calls)


def test_a_bad_donor_is_noted_and_ends_nothing() -> None:
    life = Life(fail={"state_range": PeerError("you", "sent nonsense")})

    async def script(life: Life) -> None:
        seat_a_donor(life)
        life.command(Learn(1))
        await asyncio.sleep(5.0)

    assert life.go(script) == Exit(0, "the end")
    assert ("refused", {"peer": "you", "reason": "sent nonsense"}) in life.world.notes
    assert 2 <= life.world.calls.count("visit") <= 4, "ever more seldom"
