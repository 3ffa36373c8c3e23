"""A stage that trains, donors of it that fail as a test says, and a learner, all of numpy and on virtual time."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from node.learning import Learner, Means
from node.ports import NotHeldError, PeerError, SeatInfo, StateFacts, StateRange, Update
from node.sim.loop import VirtualClock, run_virtual
from protocol.events import Learned, LearningGoesOn
from protocol.messages import Contact
from protocol.replays import Replay

STAGE = 1
HEARTBEAT_S = 1.0
LAPSE_S = 3.0
PROGRESS_S = 10.0
"""After which the adapter gives a donor up that brings nothing."""
DAWDLE_S = 4.0
MEMORY = 64
"""Commits that the syllabus knows."""


@dataclass
class State:
    """Vectors and age; the canonical update of this world is elementwise too."""

    weights: np.ndarray
    exp_avg: np.ndarray
    exp_avg_sq: np.ndarray
    age: int = 0

    @staticmethod
    def zeros(size: int) -> State:
        return State(*(np.zeros(size, np.float32) for _ in range(3)))

    def copy(self) -> State:
        return State(self.weights.copy(), self.exp_avg.copy(), self.exp_avg_sq.copy(), self.age)

    def update(self, first: int, gradient: np.ndarray, u: Update, age: int) -> None:
        of = slice(first, first + len(gradient))
        scaled = gradient * np.float32(u.gradient_scale)
        self.exp_avg[of] = self.exp_avg[of] * np.float32(0.9) + scaled
        self.exp_avg_sq[of] = self.exp_avg_sq[of] * np.float32(0.99) + scaled * scaled
        self.weights[of] -= self.exp_avg[of] * np.float32(u.learning_rate / (age + 1))

    def raw(self, first: int, count: int) -> bytearray:
        parts = (self.weights, self.exp_avg, self.exp_avg_sq)
        return bytearray(b"".join(part[first : first + count].tobytes() for part in parts))

    def digest(self) -> str:
        return hashlib.sha256(self.raw(0, len(self.weights)) + self.age.to_bytes(8, "little")).hexdigest()


class Training:
    """The stage as all its replicas have it, and what was decided: also the learner's `Syllabus`."""

    def __init__(self, size: int, seed: int, keep: int = 2) -> None:
        self._rng = np.random.default_rng(seed)
        self.size, self.keep = size, keep
        self.state = State(*(self._rng.random(size, np.float32) for _ in range(3)), age=5)
        self.gradients: dict[int, np.ndarray] = {}
        self.updates: dict[int, Update] = {}
        self.digests = {5: self.state.digest()}
        self.listed: list[Contact] = []
        self.learner: Learner | None = None

    def commit(self) -> None:
        """One update at all replicas; the learner hears of it."""
        age = self.state.age
        self.gradients[age + 1] = self._rng.standard_normal(self.size, np.float32)
        self.updates[age + 1] = Update(0.5, 0.01 / (age + 1))
        self.state.update(0, self.gradients[age + 1], self.updates[age + 1], age)
        self.state.age += 1
        self.digests[age + 1] = self.state.digest()
        self.gradients.pop(age + 1 - self.keep, None)
        if self.learner:
            self.learner.wake()

    def facts(self, age: int) -> StateFacts:
        return StateFacts(f"state{age}", age + 10, age, 1.1, 2, self.digests[age])

    # the syllabus

    def donors(self, stage: int) -> tuple[Contact, ...]:
        return tuple(self.listed)

    def head(self, stage: int) -> str:
        return f"state{self.state.age}"

    def replays(self, stage: int, state_id: str, lr_factor: float) -> tuple[Replay, ...] | None:
        since = int(state_id.removeprefix("state"))
        if not self.state.age - MEMORY <= since <= self.state.age:
            return None
        ages = range(since + 1, self.state.age + 1)
        updates = {age: self.updates[age] for age in ages}
        return tuple(Replay(f"state{a}", a + 10, u.gradient_scale, u.learning_rate, lr_factor) for a, u in updates.items())


@dataclass
class ToyExecutor:
    """The learner's own seat."""

    state: State
    wait_s: float = 0.001

    async def adopt_range(self, stage: int, first: int, *parts: memoryview) -> None:
        await asyncio.sleep(self.wait_s)
        values = [np.frombuffer(part, np.float32) for part in parts]
        if not all(np.isfinite(v).all() for v in values):
            raise PeerError("", "values that are not finite")
        for vector, v in zip((self.state.weights, self.state.exp_avg, self.state.exp_avg_sq), values, strict=True):
            vector[first : first + len(v)] = v

    async def replay_range(self, stage: int, first: int, gradient: memoryview, update: Update, optimizer_age: int) -> None:
        await asyncio.sleep(self.wait_s)
        values = np.frombuffer(gradient, np.float32)
        if not np.isfinite(values).all():
            raise PeerError("", "values that are not finite")
        self.state.update(first, values, update, optimizer_age)

    async def adopted(self, stage: int, optimizer_age: int) -> SeatInfo:
        await asyncio.sleep(self.wait_s)
        self.state.age = optimizer_age
        return SeatInfo(stage, len(self.state.weights), 12 * len(self.state.weights), optimizer_age, self.state.digest())


Fault = Callable[["ToyDonor", StateRange], Awaitable[StateRange]]
"""What becomes of an answer that has come half of its way; may raise."""


@dataclass
class ToyDonor:
    """One replica: its link, over which answers come one after another, and its faults by the number of the answer (1 = first)
    that they strike."""

    peer: str
    training: Training
    rate: float = 1e6
    one_way_s: float = 0.005
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    link: asyncio.Lock = field(default_factory=asyncio.Lock)
    in_flight: int = 0
    most_in_flight: int = 0
    faults: dict[int, Fault] = field(default_factory=dict)
    always: Fault | None = None
    dead: bool = False
    lag_s: float = 0.0
    """How much later than the decision the replica has done an update (only gradients are looked at)."""
    num_calls: int = 0
    num_bytes: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    fired: int = 0
    struck: asyncio.Event = field(default_factory=asyncio.Event)

    async def state_range(self, stage: int, first: int, count: int) -> StateRange:
        def read() -> StateRange:
            state = self.training.state
            return StateRange(self.training.facts(state.age), state.raw(first, count))

        return await self._bring("state", read)

    async def gradient_range(self, stage: int, state_id: str, first: int, count: int) -> StateRange:
        age = int(state_id.removeprefix("state"))
        kept = self.training.gradients.get(age)
        if kept is None or (age == self.training.state.age and self.lag_s > 0):
            self.calls["not held"] += 1
            self.lag_s -= 0.1
            await asyncio.sleep(0.01)
            raise NotHeldError(self.peer, "does not hold that")
        found = StateRange(self.training.facts(age), kept[first : first + count].tobytes())
        return await self._bring("gradient", lambda: found)

    async def _bring(self, what: str, read: Callable[[], StateRange]) -> StateRange:
        """What waits its turn is read one ahead, as a real donor does."""
        self.calls[what] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.one_way_s)
            async with self.gate:
                found = read()
                size = len(found.data)
                await self.link.acquire()
            try:
                found = await self._send(found, size)
            finally:
                self.link.release()
            await asyncio.sleep(self.one_way_s)
        finally:
            self.in_flight -= 1
        self.num_bytes += size
        return found

    async def _send(self, found: StateRange, size: int) -> StateRange:
        self.num_calls += 1
        fault = self.faults.pop(self.num_calls, self.always)
        await asyncio.sleep(size / 2 / self.rate)
        if self.dead:
            raise PeerError(self.peer, "is gone")
        if fault:
            self.fired += 1
            self.struck.set()
            found = await fault(self, found)
        await asyncio.sleep(size / 2 / self.rate)
        return found


async def dies(donor: ToyDonor, _: StateRange) -> StateRange:
    donor.dead = True
    raise PeerError(donor.peer, "connection refused")


async def stalls(donor: ToyDonor, _: StateRange) -> StateRange:
    donor.dead = True
    await asyncio.sleep(PROGRESS_S)
    raise PeerError(donor.peer, "no answer in time")


async def dawdles(_: ToyDonor, found: StateRange) -> StateRange:
    await asyncio.sleep(DAWDLE_S)
    return found


async def resets(donor: ToyDonor, _: StateRange) -> StateRange:
    raise PeerError(donor.peer, "connection reset")


async def wrong_checksum(donor: ToyDonor, _: StateRange) -> StateRange:
    raise PeerError(donor.peer, "sent elements whose checksum is wrong")


async def not_a_number(_: ToyDonor, found: StateRange) -> StateRange:
    return replace(found, data=np.full(len(found.data) // 4, np.nan, np.float32).tobytes())


async def too_short(_: ToyDonor, found: StateRange) -> StateRange:
    return replace(found, data=bytes(found.data)[:-4])


async def other_values(_: ToyDonor, found: StateRange) -> StateRange:
    return replace(found, data=(np.frombuffer(found.data, np.float32) * np.float32(1.01)).tobytes())


async def other_digest(_: ToyDonor, found: StateRange) -> StateRange:
    return replace(found, facts=replace(found.facts, digest="0" * 64))


class School:
    """A learner and its donors. `run` ends when the script does; a wrong `Learned` fails the test at once."""

    def __init__(self, num_donors: int, seed: int, size: int = 100_003, ranges: int = 20, keep: int = 2) -> None:
        self.training = Training(size, seed, keep)
        self.given = [ToyDonor(f"peer{i}", self.training) for i in range(num_donors)]
        self.training.listed = [Contact(d.peer, f"{d.peer}:1") for d in self.given]
        self.executor = ToyExecutor(State.zeros(size))
        self.reports: list[LearningGoesOn] = []
        self.report_times: list[float] = []
        self.learned: list[Learned] = []
        self.faults: list[tuple[str, str]] = []
        self.range_elements = -(-size // ranges)
        self.num_visits = 0
        self._changed = asyncio.Event()

    @property
    def size(self) -> int:
        return self.training.size

    @asynccontextmanager
    async def visit(self, donor: Contact) -> AsyncIterator[ToyDonor]:
        self.num_visits += 1
        found = next(d for d in self.given if d.peer == donor.peer)
        await asyncio.sleep(0.05)
        if found.dead:
            raise PeerError(donor.peer, "connection refused")
        yield found

    def _tell(self, event: LearningGoesOn | Learned) -> None:
        if isinstance(event, LearningGoesOn):
            self.reports.append(event)
            self.report_times.append(asyncio.get_running_loop().time())
            return
        expected = self.training.facts(event.optimizer_age)
        told = StateFacts(event.state_id, event.step, event.optimizer_age, event.lr_factor, event.generation, event.digest)
        assert told == expected, "learned what never was"
        assert self.executor.state.digest() == expected.digest, "learned a mixed state"
        self.learned.append(event)
        self._changed.set()

    async def is_learned(self, age: int, within_s: float) -> float:
        """Until the state of this age (or a later one) is learned; how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(within_s):
            while not (self.learned and self.learned[-1].optimizer_age >= age):
                self._changed.clear()
                await self._changed.wait()
        return loop.time() - began

    def run(self, script: Callable[[], Awaitable[Any]], limit_s: float = 600.0) -> Learner:
        """Let the learner learn while the script runs."""
        made: list[Learner] = []

        async def main() -> None:
            means = Means(self, self.executor, self.training, VirtualClock())  # type: ignore[arg-type]
            fault = lambda e: self.faults.append((e.peer, e.reason))  # noqa: E731
            learner = Learner(STAGE, self.size, means, HEARTBEAT_S, self._tell, fault, self.range_elements)
            self.training.learner = learner
            made.append(learner)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(learner.run())
                await script()
                task.cancel()
            assert len(asyncio.all_tasks()) == 1, "tasks are left"

        run_virtual(main(), limit_s=limit_s)
        return made[0]
