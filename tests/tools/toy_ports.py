"""All ports of one node as a toy that fails and waits as a test says, and a decision object that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from node.payloads import HandlePool
from node.ports import ComputeResult, Lease, Payload, SeatInfo, StateFacts, StateRange, TensorSpec, Update
from node.runtime import Ports, Runtime
from node.sim.loop import VirtualClock, run_virtual
from protocol.commands import (
    Command,
    Exit,
    PublishLease,
    ReduceMember,
    Work,
)
from protocol.events import (
    Event,
    LeasesSeen,
    LeaveAsked,
    Tick,
)
from protocol.ids import Ballot, Member, PeerId
from protocol.messages import (
    Contact,
    Goodbye,
    Hop,
    PipeHeader,
    ReduceHeader,
    Route,
)
from protocol.node_state import NodeConfig, NodeState
from tests.tools.core import a_manifest

BALLOT = Ballot(1, "lead")
ROUTE = Route(0, (Hop(0, "me"), Hop(1, "you"), Hop(2, "you"), Hop(0, "me")))
HEADER = PipeHeader(BALLOT, 1, 1, "parent", "forward", 1, ROUTE)
ROWS = (ReduceMember(Member("me", 1), "active", "f"), ReduceMember(Member("you", 1), "active", "0"))


class Defect(Exception):
    """Nobody's fault but ours."""


class Script(NodeState):
    """Returns for an event what the test says, and remembers events."""

    def __init__(self, answers: Callable[[Event], list[Command]]) -> None:
        super().__init__(NodeConfig(a_manifest(), Member("me", 1), "me", "me:1", founder=True))
        self.answers = answers
        self.seen: list[Event] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        if not isinstance(event, Tick | LeasesSeen):
            self.seen.append(event)
        if isinstance(event, LeaveAsked):
            return [PublishLease((), 1, False, leaving=True), Exit(0, event.reason)]
        return self.answers(event)

    def takes_piece(self, peer: PeerId, header: ReduceHeader) -> bool:
        return peer == "you"

    def of(self, kind: type) -> list[Any]:
        return [e for e in self.seen if isinstance(e, kind)]


@dataclass
class World:
    """All ports at once; `fail` maps a method to what it raises, `wait` to how long it takes."""

    fail: dict[str, Exception] = field(default_factory=dict)
    wait: dict[str, float] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    leases_published: list[Lease] = field(default_factory=list)
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    peer: PeerId = "me"
    directory_holds: list[Lease] = field(default_factory=list)
    donated: str = ""
    """The state that donors tell."""

    async def _do(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(self.wait.get(name, 0.01))
        if name in self.fail:
            raise self.fail[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: Any) -> None:
            self.calls.append(name)
            if name in self.fail:
                raise self.fail[name]

        return call

    # executor

    async def create(self, stage: int, generation: int = 0) -> SeatInfo:
        await self._do("create")
        return SeatInfo(stage, 4, 48, 0, "d0")

    async def blank(self, stage: int) -> SeatInfo:
        await self._do("blank")
        return SeatInfo(stage, 4, 48, 0, "")

    def parameters(self, stage: int) -> list[tuple[str, tuple[int, ...]]]:
        return [("weight", (2, 2))]

    async def adopt_range(self, stage: int, first: int, *parts: memoryview) -> None:
        await self._do("adopt_range")

    async def adopted(self, stage: int, optimizer_age: int) -> SeatInfo:
        await self._do("adopted")
        return SeatInfo(stage, 4, 48, optimizer_age, "digest")

    async def keep_gradients(self, stage: int, count: int) -> None:
        await self._do(f"keep {count}")

    async def drop(self, stage: int) -> None:
        await self._do("drop")

    async def compute(self, work: Work, payload: Payload | None) -> ComputeResult:
        await self._do("compute")
        return ComputeResult(a_payload() if work.op != "embed_backward" else None, 1.0, 8, 0.01)

    async def discard(self, stage: int, step: int, attempt: int) -> None:
        await self._do("discard")

    async def gradient_range(self, stage: int, first: int, count: int) -> Payload:
        await self._do("gradient_range")
        return a_payload(count)

    async def sum_range(self, stage: int, first: int, parts: list[Payload]) -> Payload:
        await self._do("sum_range")
        return parts[0]

    async def install_range(self, stage: int, first: int, payload: Payload) -> None:
        await self._do("install_range")

    async def use_local(self, stage: int) -> None:
        await self._do("use_local")

    async def forget_sum(self, stage: int) -> None:
        await self._do("forget_sum")

    async def reduced(self, stage: int) -> tuple[str, float]:
        await self._do("reduced")
        return "sum", 4.0

    async def apply(self, stage: int, update: Update) -> SeatInfo:
        await self._do("apply")
        return SeatInfo(stage, 4, 48, 1, "d1")

    # donors

    @asynccontextmanager
    async def visit(self, donor: Contact) -> AsyncIterator[World]:
        await self._do("visit")
        try:
            yield self
        finally:
            self.calls.append("visited")

    async def state_range(self, stage: int, first: int, count: int) -> StateRange:
        await self._do("state_range")
        return StateRange(StateFacts(self.donated, 5, 7, 1.1, 2, "digest"), bytes(12 * count))

    # directory, transport, sink

    async def publish(self, lease: Lease) -> None:
        await self._do("publish")
        self.leases_published.append(lease)

    async def leases(self) -> list[Lease]:
        await self._do("leases")
        return self.directory_holds

    async def send_payload(self, peer: PeerId, header: Any, handle: int) -> None:
        await self._do("send_payload")

    def heard(self) -> dict[PeerId, float]:
        return {}

    def on_message(self, handler: Any) -> None:
        self.message = handler

    def on_payload(self, handler: Any) -> None:
        self.payload = handler

    def note(self, type_: str, fields: dict[str, Any]) -> None:
        self.notes.append((type_, fields))


def a_payload(count: int = 2) -> Payload:
    return Payload(TensorSpec("f32", (count,)), memoryview(bytes(4 * count)))


class Life:
    """A runtime in its world."""

    def __init__(self, answers: Callable[[Event], list[Command]] = lambda _: [], **world: Any) -> None:
        self.world = World(**world)
        self.pool = HandlePool()
        self.state = Script(answers)
        w: Any = self.world
        self.runtime = Runtime(Ports(VirtualClock(), w, w, w, self.pool, w, w), self.state)

    def command(self, *commands: Command) -> None:
        """Have commands carried out, as if a message had led to them."""
        before, self.state.answers = self.state.answers, lambda _: list(commands)
        self.world.message("you", 1, Goodbye(Member("you", 1), ""))
        self.state.answers = before

    def go(self, script: Callable[[Life], Coroutine[Any, Any, None]] | None = None) -> Exit:
        """Run the node; the script runs beside it and asks it to leave at its end."""

        async def beside() -> None:
            await asyncio.sleep(0.5)
            if script:
                await script(self)
            self.runtime.leave("the end")

        async def main() -> Exit:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(self.runtime.run())
                group.create_task(beside())
            assert len(asyncio.all_tasks()) == 1, "tasks are left"
            return running.result()

        return run_virtual(main(), limit_s=600.0)
