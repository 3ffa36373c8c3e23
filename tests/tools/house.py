"""A node with one seat whose states are numbers: what `Holdings` reads from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from node.holdings import Holdings
from protocol.events import Applied, SeatCreated
from protocol.seat import Seat, SeatPhase, SeatState

SIZE = 10


class ToyExecutor:
    """Tells its age as data; `meanwhile` happens between the read and its return."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.age = 0
        self.kept: set[int] = set()
        self.meanwhile: Callable[[], None] = lambda: None
        self.num_reads = 0

    def parameters(self, stage: int) -> list[tuple[str, tuple[int, ...]]]:
        return [("a", (2, 3)), ("b", (self.size - 6,))]

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

    def __init__(self, size: int = SIZE) -> None:
        self.executor = ToyExecutor(size)
        self.seats: dict[int, Seat] = {}
        executor: Any = self.executor
        self.holdings = Holdings(lambda: self.seats, executor, lambda lr_factor: lr_factor / 2)
        self.seat(SeatPhase.IDLE)
        self.holdings.observe(SeatCreated(1, "digest0", 12 * SIZE))

    def seat(self, phase: SeatPhase) -> None:
        state = SeatState(1, "active", 3, "state0", digest="digest0", lr_factor=1.1)
        self.seats[1] = Seat(state, "me", 1, 8)
        self.seats[1].phase = phase

    def update(self) -> None:
        age = self.executor.age = self.executor.age + 1
        self.holdings.observe(Applied(1, age + 10, f"state{age}", f"digest{age}", age, 0.1))
