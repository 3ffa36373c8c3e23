"""What a node gives to learners is of the state that it says, whatever happens while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from node.holdings import REMEMBERED, Holdings
from node.ports import StateFacts, StateRange
from node.sim.loop import run_virtual
from protocol.events import Applied, Learned, SeatCreated
from protocol.seat import Seat, SeatPhase, SeatState

SIZE = 10


class ToyExecutor:
    """Tells its age as data; `meanwhile` happens between the read and its return."""

    def __init__(self) -> None:
        self.age = 0
        self.kept: set[int] = set()
        self.meanwhile: Callable[[], None] = lambda: None
        self.num_reads = 0

    def parameters(self, stage: int) -> list[tuple[str, tuple[int, ...]]]:
        return [("a", (2, 3)), ("b", (4,))]

    async def export_state(self, stage: int, first: int, count: int) -> tuple[int, memoryview]:
        self.num_reads += 1
        age = self.age
        self.meanwhile()
        await asyncio.sleep(0)
        return age, memoryview(bytes([age]) * 12 * count)

    async def export_gradient(self, stage: int, optimizer_age: int, first: int, count: int) -> memoryview | None:
        self.num_reads += 1
        await asyncio.sleep(0)
        return memoryview(bytes([optimizer_age]) * 4 * count) if optimizer_age in self.kept else None


class House:
    """A node with a seat of stage 1 that was made from the seed."""

    def __init__(self) -> None:
        self.executor = ToyExecutor()
        self.seats: dict[int, Seat] = {}
        executor: Any = self.executor
        self.holdings = Holdings(lambda: self.seats, executor)
        self.seat(SeatPhase.IDLE)
        self.holdings.observe(SeatCreated(1, "digest0", 12 * SIZE))

    def seat(self, phase: SeatPhase) -> None:
        state = SeatState(1, "active", 3, "state0", digest="digest0", lr_factor=1.1)
        self.seats[1] = Seat(state, "me", 1, 8)
        self.seats[1].phase = phase

    def update(self) -> None:
        age = self.executor.age = self.executor.age + 1
        self.holdings.observe(Applied(1, age + 10, f"state{age}", f"digest{age}", age, 0.1))

    def state(self, first: int = 0, count: int = SIZE) -> StateRange | None:
        return run_virtual(self.holdings.state_range(1, first, count))

    def gradient(self, state_id: str, first: int = 0, count: int = SIZE) -> StateRange | None:
        return run_virtual(self.holdings.gradient_range(1, state_id, first, count))


def test_a_state_is_told_with_its_facts_also_while_an_update_is_done() -> None:
    house = House()
    assert house.state() == StateRange(StateFacts("state0", 0, 0, 1.1, 3, "digest0"), memoryview(bytes(12 * SIZE)))
    house.seats[1].phase = SeatPhase.APPLYING
    house.executor.meanwhile = house.update
    assert house.state() == StateRange(StateFacts("state0", 0, 0, 1.1, 3, "digest0"), memoryview(bytes(12 * SIZE)))
    after = house.state(3, 2)
    assert after
    assert (after.facts, bytes(after.data)) == (StateFacts("state1", 11, 1, 1.1, 3, "digest1"), bytes([1]) * 24)


def test_kept_gradients_are_found_by_the_state_that_they_led_to() -> None:
    house = House()
    for _ in range(REMEMBERED + 3):
        house.update()
    newest = house.executor.age
    house.executor.kept = {newest - 1, newest, 1}
    for age in (newest - 1, newest):
        found = house.gradient(f"state{age}", 1, 2)
        assert found
        assert (found.facts.state_id, bytes(found.data)) == (f"state{age}", bytes([age]) * 8)
    assert house.gradient("state1") is None, "remembered no more"
    assert house.gradient(f"state{newest - 2}") is None, "not kept"
    assert house.gradient("elsewhere") is None


def test_what_is_not_there_is_not_read() -> None:
    house = House()
    for first, count in ((-1, 2), (0, 0), (SIZE, 1), (5, SIZE), (1 << 62, 1 << 62)):
        assert house.state(first, count) is None
        assert house.gradient("state0", first, count) is None
    house.seats[1].state.digest = ""
    assert house.state() is None
    house.seats.clear()
    assert house.state() is None
    assert house.executor.num_reads == 0


def test_a_learner_gives_nothing_and_one_that_learned_gives_what_it_learned() -> None:
    house = House()
    house.seat(SeatPhase.LEARNING)
    house.executor.age = 7
    house.holdings.observe(Learned(1, "state7", 17, "digest7", 7, 1.0, 4, ("you",), 1, 1.0))
    assert house.state() is None
    house.seats[1].phase = SeatPhase.IDLE
    found = house.state()
    assert found
    assert found.facts == StateFacts("state7", 17, 7, 1.0, 4, "digest7")
    assert house.gradient("state0") is None, "what was before is forgotten"


def test_a_seat_that_goes_while_it_is_read_gives_nothing() -> None:
    house = House()
    house.executor.meanwhile = house.seats.clear
    assert house.state() is None
