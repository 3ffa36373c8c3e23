"""State of other replicas in memory: `Donors` without sockets, with the latency and the rate of a link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from node.holdings import Holdings
from node.mixing import Mixer
from node.ports import Neighbour, NotHeldError, PeerError, StateRange
from node.shadows import shadow_form
from protocol.ids import PeerId, StateId
from protocol.manifest import RecoverySection
from protocol.messages import Contact


@dataclass(slots=True)
class MemoryLibrary:
    """What all nodes of a simulated world can give. Links have a latency of 10 to 20 ms and bring `rate` bytes per second."""

    rng: Random
    rate: float = 10e6
    rules: RecoverySection = field(default_factory=RecoverySection)
    """Of the run, for who keeps a shadow."""
    _held: dict[PeerId, Holdings] = field(default_factory=dict)
    _mixers: dict[PeerId, Mixer] = field(default_factory=dict)

    def add(self, peer: PeerId, holdings: Holdings, mixer: Mixer | None = None) -> None:
        """The peer is there."""
        self._held[peer] = holdings
        if mixer:
            self._mixers[peer] = mixer

    def mixer(self, peer: PeerId) -> Mixer:
        """Raises `PeerError` where it is gone."""
        self.of(peer)
        return self._mixers[peer]

    def remove(self, peer: PeerId) -> None:
        """It is not any more."""
        self._held.pop(peer, None)

    def of(self, peer: PeerId) -> Holdings:
        """Raises `PeerError` where it is gone."""
        if peer not in self._held:
            raise PeerError(peer, "it is gone")
        return self._held[peer]

    async def travel(self, stage: int, num_bytes: int, giver: PeerId, taker: PeerId) -> None:
        """The time that so many bytes of a stage take from one to the other; none: a question, or a connection."""
        await asyncio.sleep(self.rng.uniform(0.01, 0.02) + num_bytes / self.rate)


@dataclass(frozen=True, slots=True)
class MemoryDonors:
    """See `node.ports.Donors`."""

    library: MemoryLibrary
    me: PeerId = ""

    @asynccontextmanager
    async def visit(self, donor: Contact) -> AsyncIterator[Neighbour]:
        """See `Donors`."""
        await self.library.travel(0, 0, self.me, donor.peer)
        self.library.of(donor.peer)
        yield _MemoryDonor(self.library, donor.peer, self.me)


@dataclass(frozen=True, slots=True)
class _MemoryDonor:
    library: MemoryLibrary
    peer: PeerId
    me: PeerId

    async def state_range(self, stage: int, first: int, count: int) -> StateRange:
        """See `Donor`."""
        await self._ask(stage)
        return await self._bring(stage, await self.library.of(self.peer).state_range(stage, first, count))

    async def gradient_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """See `Donor`."""
        await self._ask(stage)
        return await self._bring(stage, await self.library.of(self.peer).gradient_range(stage, state_id, first, count))

    async def weights_range(self, stage: int, state_id: StateId, first: int, count: int) -> memoryview:
        """See `Neighbour`."""
        await self._ask(stage)
        found = await self.library.of(self.peer).vector_range(stage, state_id, "weights", first, count)
        if found is None:
            raise NotHeldError(self.peer, "does not hold that")
        await self.library.travel(stage, found.nbytes, self.peer, self.me)
        self.library.of(self.peer)
        return found

    async def state_of(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """See `Neighbour`."""
        found = await self.state_range(stage, first, count)
        if found.facts.state_id != state_id:
            raise NotHeldError(self.peer, "does not hold that")
        return found

    async def shadow_range(self, stage: int, first: int, count: int, num_words: int) -> StateRange:
        """See `Neighbour`."""
        await self._ask(stage)
        holdings, rules = self.library.of(self.peer), self.library.rules
        found = await holdings.shadow_range(stage, first, count, rules.shadow_moments)
        return await self._bring(stage, StateRange(found.facts, shadow_form(found, rules)) if found else None)

    async def mixed_range(self, stage: int, state_id: StateId, first: int, count: int, num_words: int) -> StateRange:
        """See `Neighbour`."""
        await self._ask(stage)
        return await self._bring(stage, await self.library.mixer(self.peer).mixed_range(stage, state_id, first, count))

    async def _ask(self, stage: int) -> None:
        await self.library.travel(stage, 0, self.me, self.peer)

    async def _bring(self, stage: int, found: StateRange | None) -> StateRange:
        if found is None:
            raise NotHeldError(self.peer, "does not hold that")
        await self.library.travel(stage, len(memoryview(found.data).cast("B")), self.peer, self.me)
        self.library.of(self.peer)
        return found
