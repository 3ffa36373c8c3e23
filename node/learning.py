"""Catching up: a learner copies a stage's whole state from its living replicas while they go on training.

No donor pauses or keeps a copy. A range comes as of whatever state its donor holds at that moment; it is brought forward by
the reduced gradients that donors keep for a few updates, or fetched anew. When all ranges are of the newest state, their digest
must be the one that the donors tell for that state; only then the stage is `Learned`: nobody trains on a mixed state. What has
come is kept, whoever fails. A donor is asked for the next ranges while one is still on its way (`node.pace`). A `PeerError`
sets its donor aside for a growing while; where none is left, the learner waits and asks again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from node.pace import Flight, Pace
from node.ports import (
    BadTensorError,
    BusyError,
    Clock,
    Donor,
    Donors,
    NotHeldError,
    PeerError,
    StageExecutor,
    StateFacts,
    StateRange,
    Update,
)
from node.range_book import COPY_ELEMENTS, STATE_BYTES, WEIGHT_BYTES, Errand, RangeBook, Rank, as_it_comes
from node.waiting import first_fault, wait_for_news
from protocol.events import Learned, LearningGoesOn
from protocol.ids import PeerId, StateId
from protocol.messages import Contact
from protocol.replays import Replay

MAX_DONORS = 3
"""Asked at once; others take the place of one that fails or is slow."""
OUTPACED = 4.0
"""A donor so many times slower than the fastest one makes room for one that is not asked yet."""
STEAL_FACTOR, STEAL_S = 3.0, 1.0
"""Who has nothing else to do takes over what another donor has been at for so many times its own time for an errand, and for so
many seconds at least."""
PATIENCE_HEARTBEATS = 2.0
MAX_PAUSE_S = 30.0
POLLS_PER_HEARTBEAT = 8
MAX_STATES_TOLD = 8
MAX_MISSES = 8
"""In a row: so often a donor may say that it does not hold a state yet, of which it may hear later than the learner."""
NO_ESTIMATE_S = 1e9
"""Seconds left where nothing comes at present."""


class Syllabus(Protocol):
    """What a learner needs to know of decisions."""

    def donors(self, stage: int) -> tuple[Contact, ...]:
        """Who holds the stage's state, this node left out."""

    def head(self, stage: int) -> StateId:
        """The newest state."""

    def replays(self, stage: int, state_id: StateId, lr_factor: float) -> tuple[Replay, ...] | None:
        """See `protocol.replays.replays`."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a learner works with."""

    donors: Donors
    executor: StageExecutor
    syllabus: Syllabus
    clock: Clock
    is_new: bool = False
    """The state is made here for the first time: nobody can tell its digest."""
    state_bytes: int = STATE_BYTES
    """Of an element that is fetched; weights without moments are of a state whose moments are zero."""
    rank: Callable[[PeerId], Rank] = lambda _peer: as_it_comes
    """Which ranges a donor is asked for first."""
    digest: str = ""
    """Which the state has to have, where the record that made it says so."""
    sent_bytes: int = 0
    """Of an element that is fetched, as it goes over the wire; 0: as many."""

    def sent(self, num_bytes: int) -> int:
        """What so many bytes of state were on the wire."""
        return num_bytes * self.sent_bytes // self.state_bytes if self.sent_bytes else num_bytes


@dataclass(slots=True)
class Tally:
    """What is known of a donor."""

    pace: Pace = field(default_factory=Pace)
    failures: int = 0
    """In a row."""
    mismatches: int = 0
    """How often a state that it had a part in had another digest than was told, since it had a part in a right one."""
    aside_until: float = -math.inf
    misses: int = 0
    """How often in a row it did not hold a state at all."""
    quiet_until: float = -math.inf
    """It does not hold what was asked for yet."""


@dataclass(slots=True)
class Learner:
    """Learns one stage, whose blank seat exists, until `run` is cancelled. `tell` hears how it goes, `on_fault` who did what
    wrong ('' where it cannot be said); neither may block. Call `wake` when something was decided."""

    stage: int
    num_elements: int
    means: Means
    heartbeat_s: float
    tell: Callable[[LearningGoesOn | Learned], None]
    on_fault: Callable[[PeerError], None] = lambda _: None
    range_elements: int = COPY_ELEMENTS
    tallies: dict[PeerId, Tally] = field(default_factory=dict)
    num_replayed: int = 0
    """Ranges brought forward by a kept gradient."""
    num_fetched: int = 0
    """Ranges of state that were fetched."""
    _book: RangeBook = field(init=False)
    _began: float = field(init=False)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _hands: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the seat is changed or looked at as a whole."""
    _listed: dict[PeerId, Contact] = field(default_factory=dict)
    _working: set[PeerId] = field(default_factory=set)
    _used: set[PeerId] = field(default_factory=set)
    _told: dict[StateId, dict[PeerId, str]] = field(default_factory=dict)
    _leads: dict[tuple[StateId, float], tuple[Replay, ...] | None] = field(default_factory=dict)
    _leads_to: StateId = ""
    _learned: StateId = ""
    _alone: bool = False
    """After a wrong digest one donor is asked at a time: a wrong one then spoils its own try only."""
    _num_bytes: int = 0
    _reported_at: float = -math.inf

    def __post_init__(self) -> None:
        patience_s = PATIENCE_HEARTBEATS * self.heartbeat_s
        self._book = RangeBook(self.num_elements, patience_s, self.range_elements, self.means.state_bytes)
        self._began = self.means.clock.monotonic()

    def wake(self) -> None:
        """Something changed: everybody who waits looks again."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def run(self) -> None:
        """Learn, and keep up. Ends only by being cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                news = self._news
                self._hire(group)
                await self._examine()
                self._report()
                await wait_for_news(news, self.heartbeat_s)

    # ---- donors ----

    def _hire(self, group: asyncio.TaskGroup) -> None:
        """Ask up to `MAX_DONORS`."""
        self._listed = {contact.peer: contact for contact in self.means.syllabus.donors(self.stage)}
        room = (1 if self._alone else MAX_DONORS) - len(self._working)
        for contact in self._free()[: max(0, room)]:
            self._working.add(contact.peer)
            group.create_task(self._work(contact), name=f"learn stage {self.stage} from {contact.peer[-8:]}")

    def _free(self) -> list[Contact]:
        """Who could be asked and is not; nobody who is less trustworthy than another one; those that failed and brought
        least so far come first, else as they are listed."""
        now = self.means.clock.monotonic()

        def order(contact: Contact) -> tuple[int, int]:
            tally = self._tally(contact.peer)
            return tally.failures, tally.pace.num_bytes

        free = [c for c in self._listed.values() if c.peer not in self._working and self._tally(c.peer).aside_until <= now]
        least = min((self._tally(peer).mismatches for peer in (*(c.peer for c in free), *self._working)), default=0)
        return sorted((c for c in free if self._tally(c.peer).mismatches == least), key=order)

    def _tally(self, peer: PeerId) -> Tally:
        return self.tallies.setdefault(peer, Tally())

    async def _work(self, donor: Contact) -> None:
        """Everything that one donor is asked for, over one connection, several ranges at a time."""
        peer = donor.peer
        try:
            async with self.means.donors.visit(donor) as source, asyncio.TaskGroup() as hands:
                while self._listed.get(peer) == donor and self._is_wanted(peer):
                    news = self._news
                    errand = self._next_errand(peer)
                    if errand:
                        self._send_for(errand, source, hands)
                    else:
                        await wait_for_news(news, self._look_after_s(peer))
        except* PeerError as errors:
            self._set_aside(peer, first_fault(errors))
        finally:
            self._working.discard(peer)
            self.wake()

    def _send_for(self, errand: Errand, source: Donor, hands: asyncio.TaskGroup) -> None:
        pace = self._tally(errand.peer).pace
        flight = pace.ask(self.means.clock.monotonic())

        def done(_: asyncio.Task[None]) -> None:  # also of a task that was cancelled before it began
            self._book.give_back(errand)
            flight.over(self.means.clock.monotonic())
            self.wake()

        name = f"elements {errand.part.first} of stage {self.stage} from {errand.peer[-8:]}"
        hands.create_task(self._do(errand, source, flight), name=name).add_done_callback(done)

    def _next_errand(self, peer: PeerId) -> Errand | None:
        tally, now = self._tally(peer), self.means.clock.monotonic()
        if not tally.pace.has_room or now < tally.quiet_until:
            return None
        return self._book.take(self._lead, now, self._steal_after_s(peer), peer, self.means.rank(peer))

    def _look_after_s(self, peer: PeerId) -> float:
        """When to look for errands again though there was no news: soon where somebody may be late or have more."""
        is_quiet = self.means.clock.monotonic() < self._tally(peer).quiet_until
        soon = is_quiet or any(part.takers for part in self._book.parts)
        return self.heartbeat_s / POLLS_PER_HEARTBEAT if soon else self.heartbeat_s

    def _steal_after_s(self, peer: PeerId) -> float:
        return max(STEAL_S, STEAL_FACTOR * self._tally(peer).pace.answer_s)

    def _is_wanted(self, peer: PeerId) -> bool:
        """Is it to be asked on? Not if it is much slower than the fastest one, while somebody else could be asked."""
        mine, now = self._tally(peer), self.means.clock.monotonic()
        if mine.aside_until > now or (self._alone and len(self._working) > 1):
            return False
        best = max(self._tally(p).pace.rate for p in self._working)
        if mine.pace.num_answers < 2 or mine.pace.rate * OUTPACED >= best or not self._free():
            return True
        mine.aside_until = now + MAX_PAUSE_S
        return False

    def _set_aside(self, peer: PeerId, error: PeerError) -> None:
        tally = self._tally(peer)
        tally.aside_until = self.means.clock.monotonic() + min(MAX_PAUSE_S, self.heartbeat_s * 2.0**tally.failures)
        tally.failures = min(tally.failures + 1, 16)
        self.on_fault(error.by(peer))

    # ---- ranges ----

    def _lead(self, facts: StateFacts) -> tuple[Replay, ...] | None:
        """`Syllabus.replays`, remembered as long as the newest state is the same."""
        head = self.means.syllabus.head(self.stage)
        if head != self._leads_to:
            self._leads.clear()
            self._leads_to = head
        key = facts.state_id, facts.lr_factor
        if key not in self._leads:
            self._leads[key] = self.means.syllabus.replays(self.stage, *key)
        return self._leads[key]

    async def _do(self, errand: Errand, source: Donor, flight: Flight) -> None:
        """Fetch what the errand wants, and put it in place."""
        tally = self._tally(errand.peer)
        try:
            found = await self._fetch(errand, source, flight)
        except NotHeldError:
            now = self.means.clock.monotonic()
            tally.quiet_until = now + self.heartbeat_s / POLLS_PER_HEARTBEAT
            if errand.replay:
                self._book.miss(errand, self._lead, now)
            elif tally.misses >= MAX_MISSES:
                raise
            tally.misses += errand.replay is None
            return
        except BusyError:
            if not tally.pace.yields():
                raise
            return
        async with self._hands:
            if not self._book.is_late(errand):
                await self._put(errand, found)
        self._num_bytes += self.means.sent(errand.num_bytes)
        tally.failures = tally.misses = 0

    async def _fetch(self, errand: Errand, source: Donor, flight: Flight) -> StateRange:
        part, replay, began = errand.part, errand.replay, self.means.clock.monotonic()
        if replay is None:
            found = await source.state_range(self.stage, part.first, part.count)
        else:
            found = await source.gradient_range(self.stage, replay.state_id, part.first, part.count)
        now = self.means.clock.monotonic()
        flight.pace.answered(self.means.sent(errand.num_bytes), now - began)
        flight.land(now)
        self.wake()
        return found

    async def _put(self, errand: Errand, found: StateRange) -> None:
        peer, part, replay, facts = errand.peer, errand.part, errand.replay, found.facts
        data = memoryview(found.data).cast("B")
        if not facts.state_id or facts.optimizer_age < 0 or facts.lr_factor <= 0 or len(data) != errand.num_bytes:
            raise PeerError(peer, f"elements {part.first}+{part.count} of stage {self.stage} that are none")
        if replay is None:
            size = len(data) * WEIGHT_BYTES // self.means.state_bytes
            vectors = [data[at : at + size] for at in range(0, len(data), size)]
            await self.means.executor.adopt_range(self.stage, part.first, *vectors)
            self.num_fetched += 1
        else:
            assert part.facts, "what is replayed is there"
            update = Update(replay.gradient_scale, replay.learning_rate)
            await self.means.executor.replay_range(self.stage, part.first, data, update, part.facts.optimizer_age)
            self.num_replayed += 1
        self._book.settle(errand, facts)
        self._used.add(peer)
        self._told.setdefault(facts.state_id, {})[peer] = facts.digest
        if len(self._told) > MAX_STATES_TOLD:
            del self._told[next(iter(self._told))]

    # ---- the whole ----

    async def _examine(self) -> None:
        """Is all of the newest state, and is it what the donors have?"""
        head = self.means.syllabus.head(self.stage)
        if head == self._learned or not self._book.is_of(head):
            return
        async with self._hands:
            states = self._book.states()
            facts = states.pop()
            if facts is None or facts.state_id != head or not self._book.is_of(head):
                return
            info = await self.means.executor.adopted(self.stage, facts.optimizer_age)
            if states:
                self._start_over(f"donors differ on what state {head[:8]} is")
            elif self.means.digest not in ("", info.digest):
                self._start_over(f"what came is not what was decided to be {head[:8]}: its digest is another")
            elif not self.means.is_new and set(self._told.get(head, {}).values()) != {info.digest}:
                self._start_over(f"what came is not state {head[:8]} as its donors tell it: its digest is another")
            else:
                self._learned, self._alone = head, False
                for peer in self._used:
                    self._tally(peer).mismatches = 0
                self._tell_learned(facts, info.digest)

    def _tell_learned(self, facts: StateFacts, digest: str) -> None:
        seconds = self.means.clock.monotonic() - self._began
        self.tell(
            Learned(
                self.stage,
                facts.state_id,
                facts.step,
                digest,
                facts.optimizer_age,
                facts.lr_factor,
                facts.generation,
                tuple(sorted(self._used)),
                self._num_bytes,
                seconds,
            )
        )

    def _start_over(self, reason: str) -> None:
        self._book.clear()
        self._told.clear()
        self._learned, self._alone = "", True
        for peer in sorted(self._used):
            self._tally(peer).mismatches += 1
            self._set_aside(peer, BadTensorError(peer, reason, "state"))
        self._used.clear()
        self.wake()

    def _report(self) -> None:
        now = self.means.clock.monotonic()
        if self._learned == self.means.syllabus.head(self.stage) or now - self._reported_at < self.heartbeat_s:
            return
        self._reported_at = now
        rate = sum(self._tally(peer).pace.rate for peer in self._working)
        left = self.means.sent(self._book.bytes_needed(self._lead)) / rate if rate else NO_ESTIMATE_S
        total = self.means.sent(self.means.state_bytes * self.num_elements)
        self.tell(LearningGoesOn(self.stage, self._num_bytes, total, min(left, NO_ESTIMATE_S), len(self._working)))
