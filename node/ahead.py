"""A neighbour's share of a lost stage, mixed before anybody asks for it and kept until the stage is back.

Range by range in order: the other source's elements come from any of its holders, over one connection with several requests in
flight; this node's own are read and the sum is kept. At most one share of one stage's weights (whole state, where moments are
averaged too) is held for each lost stage: half of it, where each source has one holder. While nobody asks this goes as fast as
the link; once a newcomer does, only little ahead of it, as what goes to it and to the other averager shares one uplink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import chain

from node.pace import Flight, Pace
from node.ports import BusyError, Clock, Neighbour, Neighbours, PeerError
from node.waiting import first_fault, wait_for_news
from protocol.commands import MixAhead
from protocol.ids import PeerId, StateId
from protocol.messages import Contact
from protocol.records import Source

AHEAD_RANGES = 4
"""Mixed beyond what a newcomer has asked for: what it asks next, and what must be on its way for what it asks then. So no more
goes to the other averager than to the newcomer, whose connection is the younger one: with 12 or 24 it was starved at times, on
the uplink that both share."""
WAIT_S = 8.0
"""For a range that is not mixed yet; who asks gives up after ten."""
MAX_PAUSE_S = 8.0


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a source, or of what is mixed: weights, or weights and both moments behind one another with their optimizer
    age (0 without moments)."""

    age: int
    data: bytes | bytearray | memoryview

    @property
    def num_bytes(self) -> int:
        """Of all vectors."""
        return len(memoryview(self.data).cast("B"))


@dataclass(frozen=True, slots=True)
class Means:
    """What an averager works with. `holders` lists who has a source; `fetch` gets a range (first, count) of it from one of
    them, and `mix` puts this node's own to it."""

    neighbours: Neighbours
    clock: Clock
    heartbeat_s: float
    holders: Callable[[Source], list[Contact]]
    fetch: Callable[[Neighbour, Source, int, int], Awaitable[Part]]
    mix: Callable[[int, int, Part], Awaitable[Part]]


@dataclass(slots=True)
class Ahead:
    """`parts`: (first, count) of the ranges of this node's share, in order. `other`: the source that it does not hold.
    `target`: the newest state of the stage; what is asked for another one is not asked for any more."""

    command: MixAhead
    parts: list[tuple[int, int]]
    other: Source
    means: Means
    target: Callable[[], StateId]
    ready: dict[int, Part] = field(default_factory=dict)
    """Mixed ranges of the share by their first element."""
    num_fetched: int = 0
    closed: bool = False
    whole: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all of the share is mixed."""
    _asked: tuple[StateId, int] = ("", 0)
    """How many of the parts were asked for, for which state."""
    _extras: dict[tuple[int, int], asyncio.Future[Part | None]] = field(default_factory=dict)
    """Ranges of others' shares that somebody waits for; they are mixed once and not kept."""
    _taken: set[tuple[int, int]] = field(default_factory=set)
    _failures: dict[PeerId, int] = field(default_factory=dict)
    _fault: str = "its other source has not come"
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Something changed: everybody who waits looks again."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """The stage is back, or is to be made otherwise: nothing of this is given any more."""
        self.closed = True
        self.ready.clear()
        for waited_for in self._extras.values():
            if not waited_for.done():
                waited_for.set_result(None)
        self._extras.clear()
        self.wake()

    async def get(self, state_id: StateId, first: int, count: int) -> Part | None:
        """A range for the stage that is made as `state_id`, waited for where it is not mixed yet; one of another's share is
        mixed now. None: closed. Raises `PeerError` where it is not there in time."""
        try:
            async with asyncio.timeout(WAIT_S):
                if (first, count) not in self.parts:
                    return await self._extra(first, count)
                self._ask(state_id, self.parts.index((first, count)) + 1)
                while first not in self.ready and not self.closed:
                    await self._news.wait()
        except TimeoutError:
            what = f"elements {first}+{count} of stage {self.command.stage}"
            raise PeerError("", f"{what} are not mixed yet: {self._fault}") from None
        return self.ready.get(first)

    def _ask(self, state_id: StateId, number: int) -> None:
        before = self._asked[1] if self._asked[0] == state_id else 0
        self._asked = state_id, max(number, before)
        self.wake()

    async def _extra(self, first: int, count: int) -> Part | None:
        if self.closed:
            return None
        part = first, count
        waited_for = self._extras.setdefault(part, asyncio.get_running_loop().create_future())
        self.wake()
        try:
            return await asyncio.shield(waited_for)
        finally:
            if part not in self._taken:
                self._extras.pop(part, None)

    async def run(self) -> None:
        """Mix the share, and what else is asked for, until it is closed."""
        self._check_whole()
        while not self.closed:
            holder = self._next_holder()
            if holder is None:
                await wait_for_news(self._news, self.means.heartbeat_s)
                continue
            try:
                async with self.means.neighbours.visit(holder) as neighbour, asyncio.TaskGroup() as hands:
                    await self._fetch_all(neighbour, hands)
            except* PeerError as errors:
                self._fault = first_fault(errors).reason
                self._failures[holder.peer] = min(16, 1 + self._failures.get(holder.peer, 0))
            await self.means.clock.sleep(self._pause_s())

    def _next_holder(self) -> Contact | None:
        """Who failed least often comes first."""
        holders = self.means.holders(self.other)
        return min(holders, key=lambda holder: self._failures.get(holder.peer, 0), default=None)

    def _pause_s(self) -> float:
        """No pause while there is somebody who did not fail since the last range came."""
        fewest = min((self._failures.get(holder.peer, 0) for holder in self.means.holders(self.other)), default=0)
        return min(MAX_PAUSE_S, self.means.heartbeat_s / 8 * 2.0**fewest) if fewest else 0.0

    async def _fetch_all(self, neighbour: Neighbour, hands: asyncio.TaskGroup) -> None:
        pace = Pace()
        while not self.closed:
            news = self._news
            part = self._next_part() if pace.has_room else None
            if part:
                self._send_for(part, neighbour, pace, hands)
            else:
                await wait_for_news(news, self.means.heartbeat_s)

    def _next_part(self) -> tuple[int, int] | None:
        state_id, asked = self._asked
        limit = asked + AHEAD_RANGES if state_id and state_id == self.target() else len(self.parts)
        share = (part for part in self.parts[:limit] if part[0] not in self.ready)
        return next((part for part in chain(self._extras, share) if part not in self._taken), None)

    def _send_for(self, part: tuple[int, int], neighbour: Neighbour, pace: Pace, hands: asyncio.TaskGroup) -> None:
        flight = pace.ask(self.means.clock.monotonic())
        self._taken.add(part)

        def done(_: asyncio.Task[None]) -> None:
            self._taken.discard(part)
            flight.over(self.means.clock.monotonic())
            self.wake()

        name = f"mix elements {part[0]} of stage {self.command.stage}"
        hands.create_task(self._mix(part, neighbour, flight), name=name).add_done_callback(done)

    async def _mix(self, part: tuple[int, int], neighbour: Neighbour, flight: Flight) -> None:
        (first, count), began = part, self.means.clock.monotonic()
        try:
            theirs = await self.means.fetch(neighbour, self.other, first, count)
        except BusyError:
            if not flight.pace.yields():
                raise
            return
        now = self.means.clock.monotonic()
        flight.pace.answered(theirs.num_bytes, now - began)
        flight.land(now)
        self.wake()
        self.num_fetched += 1
        mixed = await self.means.mix(first, count, theirs)
        self._failures.clear()
        waited_for = self._extras.pop(part, None)
        if waited_for:
            waited_for.set_result(mixed)
        elif not self.closed and part in self.parts:
            self.ready[first] = mixed
            self._check_whole()

    def _check_whole(self) -> None:
        if all(first in self.ready for first, _ in self.parts):
            self.whole.set()
