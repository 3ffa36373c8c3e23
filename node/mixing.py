"""A neighbour's part in a rebuild: it mixes ranges of a lost stage of its own weights and those of the neighbour beyond it.

So a newcomer receives one stage and not two, from two nodes at once. Each neighbour mixes its own share before it is asked
(`node.ahead`), and ranges of another one's share on request, where that one is slow or gone. What is given is what the decided
`Rebuild` names: state_ids and coefficients. Nothing is mixed for anybody else's numbers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from node.ahead import Ahead, Means, Part
from node.halves import WORD_BYTES, Dtype, num_words, unpacked
from node.ports import Clock, Donor, Neighbour, Neighbours, NotHeldError, PeerError, StageExecutor, StateFacts, StateRange
from node.range_book import COPY_ELEMENTS, Piece, Rank, in_earnest
from protocol.averaging import averagers, holds
from protocol.commands import MixAhead
from protocol.ids import PeerId, StateId
from protocol.messages import Contact
from protocol.node_state import NodeState
from protocol.recipes import moment_shares
from protocol.records import Rebuild, Shadow, Source
from protocol.replays import Replay
from protocol.sizes import stage_parameters


@dataclass(frozen=True, slots=True)
class Mixer:
    """Of one node. Holds what was mixed ahead, a share of a stage's weights for each lost stage."""

    state: NodeState
    executor: StageExecutor
    neighbours: Neighbours
    clock: Clock
    piece: Piece = in_earnest
    kept: Callable[[int, Shadow, int, int], bytes | None] = lambda *_: None
    """Elements of a shadow that this node keeps, as they lie there."""
    _aheads: dict[int, Ahead] = field(default_factory=dict)
    _failures: dict[PeerId, int] = field(default_factory=dict)

    # ---- ahead ----

    def begin(self, command: MixAhead) -> Ahead:
        """Take up a share, with what is mixed of the same sources already; the caller runs it."""
        before = self._aheads.pop(command.stage, None)
        mine, other = sorted(command.sources, key=lambda source: not self._holds(source))
        means = Means(
            self.neighbours,
            self.clock,
            self.state.config.manifest.timing.heartbeat_s,
            lambda source: contacts_of_stage(self.state, source.stage),
            self._fetch,
            lambda first, count, theirs: self._mixed_with(command.sources, mine, first, count, theirs),
        )
        range_elements = self.piece(command.stage, COPY_ELEMENTS)
        share = share_of(command.part, command.parts, self._num_elements(command.stage), range_elements)
        ahead = Ahead(command, share, other, means, lambda: self.state.chain.state_ids[command.stage])
        if before:
            if before.command.sources == command.sources:
                ahead.ready |= before.ready
            before.close()
        self._aheads[command.stage] = ahead
        return ahead

    def stop(self, stage: int) -> None:
        """What was mixed of the stage is freed."""
        ahead = self._aheads.pop(stage, None)
        if ahead:
            ahead.close()

    def wake(self) -> None:
        """Something was decided."""
        for ahead in self._aheads.values():
            ahead.wake()

    @property
    def num_bytes(self) -> int:
        """Bytes that are mixed and kept."""
        return sum(part.num_bytes for ahead in self._aheads.values() for part in ahead.ready.values())

    def _num_elements(self, stage: int) -> int:
        return stage_parameters(self.state.config.manifest, stage)

    async def _mixed_with(self, sources: tuple[Source, ...], mine: Source, first: int, count: int, theirs: Part) -> Part:
        own = await self._own_part(mine, first, count)
        return await self._mix(sources, [own if source == mine else theirs for source in sources])

    # ---- arithmetic ----

    @property
    def vectors(self) -> int:
        """How many are mixed: the weights, or both moments too."""
        return 3 if self.state.config.manifest.recovery.moments == "averaged" else 1

    async def _mix(self, sources: tuple[Source, ...], parts: list[Part]) -> Part:
        shares = [source.coefficient for source in sources]
        if self.vectors == 1:
            return Part(0, await self.executor.mix([part.data for part in parts], shares))
        moments = moment_shares(shares, [part.age for part in parts], self.state.config.manifest.optimizer)
        whole = [memoryview(part.data).cast("B") for part in parts]
        mixed, size = [], len(whole[0]) // self.vectors
        for number, factors in enumerate((shares, moments.first, moments.second)):
            vector = slice(number * size, (number + 1) * size)
            mixed.append(await self.executor.mix([data[vector] for data in whole], list(factors)))
        return Part(moments.age, b"".join(mixed))

    # ---- on request ----

    async def mixed_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange | None:
        """Weights of the stage that is rebuilt as `state_id`, of its shadow in that one's form. None where no such rebuild is
        decided, or this node holds none of its sources (any more). Raises `PeerError` where nobody gives the other part."""
        rebuild = self._rebuild(stage, state_id)
        if rebuild is None or not 0 <= first < first + count <= self._num_elements(stage):
            return None
        if rebuild.shadow:
            data, shadow = self.kept(stage, rebuild.shadow, first, count), rebuild.shadow
            facts = facts_of(rebuild, state_id, shadow.lr_factor, shadow.optimizer_age)
            return None if data is None else StateRange(facts, data)
        if not any(self._holds(source) for source in rebuild.sources):
            return None
        ahead, mixed = self._aheads.get(stage), None
        if ahead and ahead.command.sources == rebuild.sources:
            mixed = await ahead.get(state_id, first, count)
        if mixed is None:
            mixed = await self._mix(rebuild.sources, [await self._part(s, first, count) for s in rebuild.sources])
        if self._rebuild(stage, state_id) is None:
            return None
        facts = facts_of(rebuild, state_id, self.state.config.manifest.recovery.lr_factor, mixed.age)
        return StateRange(facts, mixed.data)

    def _rebuild(self, stage: int, state_id: StateId) -> Rebuild | None:
        rebuild = self.state.chain.rebuilds.get(stage)
        return rebuild if rebuild and self.state.chain.state_ids[stage] == state_id else None

    def _holds(self, source: Source) -> bool:
        return holds(self.state.bench.seats, source)

    async def _own_part(self, source: Source, first: int, count: int) -> Part:
        """Raises `NotHeldError` where an update changed it, before or while it was read."""
        if self._holds(source):
            part = await self._read(source.stage, first, count)
            if self._holds(source):
                return part
        raise NotHeldError(self.state.config.member.peer, f"this node no longer holds stage {source.stage} as it is named")

    async def _read(self, stage: int, first: int, count: int) -> Part:
        if self.vectors == 1:
            return Part(0, await self.executor.export(stage, "weights", first, count))
        return Part(*await self.executor.export_state(stage, first, count))

    async def _fetch(self, neighbour: Neighbour, source: Source, first: int, count: int) -> Part:
        if self.vectors == 1:
            return Part(0, await neighbour.weights_range(source.stage, source.state_id, first, count))
        found = await neighbour.state_of(source.stage, source.state_id, first, count)
        if found.facts.optimizer_age < 0:
            raise PeerError("", f"a state of stage {source.stage} of age {found.facts.optimizer_age}")
        return Part(found.facts.optimizer_age, found.data)

    async def _part(self, source: Source, first: int, count: int) -> Part:
        if self._holds(source):
            return await self._own_part(source, first, count)
        failure = PeerError("", f"nobody holds stage {source.stage}, of which this one is to be made")
        contacts = contacts_of_stage(self.state, source.stage)
        for contact in sorted(contacts, key=lambda c: self._failures.get(c.peer, 0)):
            try:
                async with self.neighbours.visit(contact) as neighbour:
                    part = await self._fetch(neighbour, source, first, count)
                self._failures.pop(contact.peer, None)
                return part
            except PeerError as error:
                self._failures[contact.peer] = self._failures.get(contact.peer, 0) + 1
                failure = error
        raise failure


def share_of(part: int, parts: int, num_elements: int, range_elements: int) -> list[tuple[int, int]]:
    """(first, count) of the ranges of share number `part` of `parts`, which are equal but for a range."""
    total = -(-num_elements // range_elements)
    firsts = range(part * total // parts * range_elements, (part + 1) * total // parts * range_elements, range_elements)
    return [(first, min(range_elements, num_elements - first)) for first in firsts]


def facts_of(rebuild: Rebuild, state_id: StateId, lr_factor: float, age: int) -> StateFacts:
    """What is known of the state that is made. Its digest is not, before it is whole."""
    return StateFacts(state_id, rebuild.step, age, lr_factor, rebuild.generation, "")


def contacts_of_stage(state: NodeState, stage: int) -> list[Contact]:
    """Others that hold the stage and can be reached, in roster order."""
    me, addresses = state.config.member.peer, state.bench.addresses
    peers = [s.member.peer for s in state.chain.holders(stage) if s.member.peer != me]
    return [Contact(peer, addresses[peer]) for peer in peers if peer in addresses]


@dataclass(frozen=True, slots=True)
class RebuildSyllabus:
    """`node.learning.Syllabus` of one who makes a lost stage: its donors are all that hold a source, or who keeps its shadow,
    itself included."""

    state: NodeState
    stage: int
    state_id: StateId
    sources: tuple[Source, ...]
    range_elements: int = COPY_ELEMENTS
    keeper: PeerId = ""
    """Of the shadow; '' = it is made of the sources."""

    def donors(self, _stage: int) -> tuple[Contact, ...]:
        """Those that can mix, averagers first."""
        me, chain = self.state.config.member.peer, self.state.chain
        if self.keeper:
            address = self.state.bench.addresses.get(self.keeper, "")
            return (Contact(self.keeper, address),) if address or self.keeper == me else ()
        found = {c.peer: c for source in self.sources for c in contacts_of_stage(self.state, source.stage)}
        others = [source.stage for source in self.sources if source.stage != self.stage]
        if any(s.member.peer == me for stage in others for s in chain.holders(stage)):
            found[me] = Contact(me, "")
        team = averagers(chain, self.sources)
        return tuple(found[peer] for peer in dict.fromkeys([*team, *found]) if peer in found)

    def rank(self, peer: PeerId) -> Rank:
        """A donor is asked for its own share in the order in which it is mixed, then for those of others from their end."""
        team, num_elements = averagers(self.state.chain, self.sources), self.num_elements
        mine = set[int]()
        if peer in team:
            mine = {first for first, _ in share_of(team.index(peer), len(team), num_elements, self.range_elements)}
        return lambda first: first if first in mine else 2 * num_elements - first

    @property
    def num_elements(self) -> int:
        """Of the stage."""
        return stage_parameters(self.state.config.manifest, self.stage)

    def head(self, _stage: int) -> StateId:
        """What is to be made."""
        return self.state_id

    def replays(self, _stage: int, state_id: StateId, _lr_factor: float) -> tuple[Replay, ...] | None:
        """There is nothing to be done again."""
        return () if state_id == self.state_id else None


@dataclass(frozen=True, slots=True)
class MixedDonors:
    """`Donors` whose ranges of state are mixed: weights alone where the moments are zero, which need not be sent. `dtype`: how
    elements are sent; they are told in f32."""

    neighbours: Neighbours
    mixer: Mixer
    me: PeerId
    state_id: StateId
    vectors: int
    dtype: Dtype = "fp32"

    @asynccontextmanager
    async def visit(self, donor: Contact) -> AsyncIterator[Donor]:
        """See `Donors`; this node itself needs no connection."""
        if donor.peer == self.me:
            yield _Mixed(self._own_range, self.state_id, self.vectors, self.dtype)
            return
        async with self.neighbours.visit(donor) as neighbour:
            yield _Mixed(neighbour.mixed_range, self.state_id, self.vectors, self.dtype)

    async def _own_range(self, stage: int, state_id: StateId, first: int, count: int, _num_words: int) -> StateRange:
        found = await self.mixer.mixed_range(stage, state_id, first, count)
        if found is None:
            raise NotHeldError(self.me, f"this node can no longer mix stage {stage}")
        return found


@dataclass(frozen=True, slots=True)
class _Mixed:
    mixed_range: Callable[[int, StateId, int, int, int], Awaitable[StateRange]]
    state_id: StateId
    vectors: int
    dtype: Dtype

    async def state_range(self, stage: int, first: int, count: int) -> StateRange:
        """See `Donor`."""
        num_words_each = num_words(count, self.dtype)
        found = await self.mixed_range(stage, self.state_id, first, count, self.vectors * num_words_each)
        if self.dtype == "fp32":
            return found
        data, size = memoryview(found.data).cast("B"), WORD_BYTES * num_words_each
        vectors = [unpacked(data[at : at + size], count, self.dtype).tobytes() for at in range(0, len(data), size)]
        return replace(found, data=b"".join(vectors))

    async def gradient_range(self, stage: int, state_id: StateId, first: int, count: int) -> StateRange:
        """See `Donor`; a state that is made here has no update that led to it."""
        raise NotHeldError("", f"no gradient of stage {stage} leads to {state_id}, elements {first}+{count}")
