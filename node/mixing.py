"""A neighbour's part in a rebuild: it mixes ranges of a lost stage of its own weights and those of the neighbour beyond it.

So a newcomer receives one stage and not two, from two nodes at once, and no node needs more than a few ranges of memory. What
is mixed is what the decided `Rebuild` names: state_ids and coefficients. Nothing is mixed for anybody else's numbers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from node.ports import Donor, Neighbours, NotHeldError, PeerError, StageExecutor, StateFacts, StateRange
from node.range_book import STATE_BYTES
from protocol.ids import PeerId, StateId
from protocol.messages import Contact
from protocol.node_state import NodeState
from protocol.records import Rebuild, Source
from protocol.replays import Replay
from protocol.seat import SeatPhase

WEIGHT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Mixer:
    """Of one node. Holds nothing between two calls."""

    state: NodeState
    executor: StageExecutor
    neighbours: Neighbours

    async def mixed_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange | None:
        """Weights of the stage that is rebuilt as `state_id`. None where no such rebuild is decided, or this node holds none of
        its sources (any more). Raises `PeerError` where nobody gives the other part."""
        rebuild = self.state.chain.rebuilds.get(stage)
        if rebuild is None or self.state.chain.state_ids[stage] != state_id:
            return None
        if not any(self._holds(source) for source in rebuild.sources):
            return None
        parts = [await self._part(source, first, count) for source in rebuild.sources]
        data = await self.executor.mix(parts, [source.coefficient for source in rebuild.sources])
        return StateRange(facts_of(rebuild, state_id, self.state.config.manifest.recovery.lr_factor), data)

    def _holds(self, source: Source) -> bool:
        seat = self.state.bench.seats.get(source.stage)
        return seat is not None and seat.phase is not SeatPhase.LEARNING and seat.state.state_id == source.state_id

    async def _part(self, source: Source, first: int, count: int) -> bytes | bytearray | memoryview:
        if self._holds(source):
            return await self.executor.export(source.stage, "weights", first, count)
        failure = PeerError("", f"nobody holds stage {source.stage}, of which this one is to be made")
        for contact in contacts_of_stage(self.state, source.stage):
            try:
                async with self.neighbours.visit(contact) as neighbour:
                    return await neighbour.weights_range(source.stage, source.state_id, first, count)
            except PeerError as error:
                failure = error
        raise failure


def facts_of(rebuild: Rebuild, state_id: StateId, lr_factor: float) -> StateFacts:
    """What is known of the state that is made. Its digest is not, before it is whole."""
    return StateFacts(state_id, rebuild.step, 0, lr_factor, rebuild.generation, "")


def contacts_of_stage(state: NodeState, stage: int) -> list[Contact]:
    """Others that hold the stage and can be reached, in roster order."""
    me, addresses = state.config.member.peer, state.bench.addresses
    peers = [s.member.peer for s in state.chain.holders(stage) if s.member.peer != me]
    return [Contact(peer, addresses[peer]) for peer in peers if peer in addresses]


@dataclass(frozen=True, slots=True)
class RebuildSyllabus:
    """`node.learning.Syllabus` of one who makes a lost stage: its donors are all that hold a source, itself included."""

    state: NodeState
    stage: int
    state_id: StateId
    sources: tuple[Source, ...]

    def donors(self, _stage: int) -> tuple[Contact, ...]:
        """Those that can mix."""
        me = self.state.config.member.peer
        found = {c.peer: c for source in self.sources for c in contacts_of_stage(self.state, source.stage)}
        if any(s.member.peer == me for source in self.sources for s in self.state.chain.holders(source.stage)):
            found[me] = Contact(me, "")
        return tuple(found.values())

    def head(self, _stage: int) -> StateId:
        """What is to be made."""
        return self.state_id

    def replays(self, _stage: int, state_id: StateId, _lr_factor: float) -> tuple[Replay, ...] | None:
        """There is nothing to be done again."""
        return () if state_id == self.state_id else None


@dataclass(frozen=True, slots=True)
class MixedDonors:
    """`Donors` whose ranges of state are mixed weights, with moments of zero that need not be sent."""

    neighbours: Neighbours
    mixer: Mixer
    me: PeerId
    state_id: StateId

    @asynccontextmanager
    async def visit(self, donor: Contact) -> AsyncIterator[Donor]:
        """See `Donors`; this node itself needs no connection."""
        if donor.peer == self.me:
            yield _Mixed(self._own_range, self.state_id)
            return
        async with self.neighbours.visit(donor) as neighbour:
            yield _Mixed(neighbour.mixed_range, self.state_id)

    async def _own_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        found = await self.mixer.mixed_range(stage, state_id, first, count)
        if found is None:
            raise NotHeldError(self.me, f"this node can no longer mix stage {stage}")
        return found


@dataclass(frozen=True, slots=True)
class _Mixed:
    mixed_range: Callable[[int, StateId, int, int], Awaitable[StateRange]]
    state_id: StateId

    async def state_range(self, stage: int, first: int, count: int) -> StateRange:
        """See `Donor`."""
        found = await self.mixed_range(stage, self.state_id, first, count)
        data = bytearray(STATE_BYTES * count)
        data[: WEIGHT_BYTES * count] = found.data
        return StateRange(found.facts, data)

    async def gradient_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """See `Donor`; a state that is made here has no update that led to it."""
        raise NotHeldError("", f"no gradient of stage {stage} leads to {state_id}, elements {first}+{count}")
