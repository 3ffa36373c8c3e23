"""What a node gives to learners is of the state that it says, whatever happens while it is read."""

from __future__ import annotations

from node.holdings import REMEMBERED
from node.ports import StateFacts, StateRange
from node.sim.loop import run_virtual
from protocol.events import Learned
from protocol.seat import SeatPhase
from tests.tools.house import SIZE, House


def state(house: House, first: int = 0, count: int = SIZE) -> StateRange | None:
    return run_virtual(house.holdings.state_range(1, first, count))


def gradient(house: House, state_id: str, first: int = 0, count: int = SIZE) -> StateRange | None:
    return run_virtual(house.holdings.gradient_range(1, state_id, first, count))


def test_a_state_is_told_with_its_facts_also_while_an_update_is_done() -> None:
    house = House()
    assert state(house) == StateRange(StateFacts("state0", 0, 0, 1.1, 3, "digest0"), memoryview(bytes(12 * SIZE)))
    house.seats[1].phase = SeatPhase.APPLYING
    house.executor.meanwhile = house.update
    assert state(house) == StateRange(StateFacts("state0", 0, 0, 1.1, 3, "digest0"), memoryview(bytes(12 * SIZE)))
    after = state(house, 3, 2)
    assert after
    assert (after.facts, bytes(after.data)) == (StateFacts("state1", 11, 1, 0.55, 3, "digest1"), bytes([1]) * 24)


def test_kept_gradients_are_found_by_the_state_that_they_led_to() -> None:
    house = House()
    for _ in range(REMEMBERED + 3):
        house.update()
    newest = house.executor.age
    house.executor.kept = {newest - 1, newest, 1}
    for age in (newest - 1, newest):
        found = gradient(house, f"state{age}", 1, 2)
        assert found
        assert (found.facts.state_id, bytes(found.data)) == (f"state{age}", bytes([age]) * 8)
    assert gradient(house, "state1") is None, "remembered no more"
    assert gradient(house, f"state{newest - 2}") is None, "not kept"
    assert gradient(house, "elsewhere") is None


def test_what_is_not_there_is_not_read() -> None:
    house = House()
    for first, count in ((-1, 2), (0, 0), (SIZE, 1), (5, SIZE), (1 << 62, 1 << 62)):
        assert state(house, first, count) is None
        assert gradient(house, "state0", first, count) is None
    house.seats[1].state.digest = ""
    assert state(house) is None
    house.seats.clear()
    assert state(house) is None
    assert house.executor.num_reads == 0


def test_a_learner_gives_nothing_and_one_that_learned_gives_what_it_learned() -> None:
    house = House()
    house.seat(SeatPhase.LEARNING)
    house.executor.age = 7
    house.holdings.observe(Learned(1, "state7", 17, "digest7", 7, 1.0, 4, ("you",), 1, 1.0))
    assert state(house) is None
    house.seats[1].phase = SeatPhase.IDLE
    found = state(house)
    assert found
    assert found.facts == StateFacts("state7", 17, 7, 1.0, 4, "digest7")
    assert gradient(house, "state0") is None, "what was before is forgotten"


def test_a_seat_that_goes_while_it_is_read_gives_nothing() -> None:
    house = House()
    house.executor.meanwhile = house.seats.clear
    assert state(house) is None
