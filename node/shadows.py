"""What this node keeps of stages that others hold (policy `shadow`), chunk by chunk, while they train on.

A chunk is asked for when the ledger says so and the share of the link allows it, of whatever state the stage's holder has then;
nothing is accepted but what was asked for, from a holder, of a state that the stage had by this node's own chain. So nobody can
make it keep more than the stage's size, or of another stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3

from node.halves import ELEMENT_BYTES, elements_of, filled, num_words, packed, unpacked
from node.mixing import contacts_of_stage
from node.ports import SHADOW_ELEMENTS, Clock, Neighbour, Neighbours, NotHeldError, PeerError, StateRange
from node.range_book import Piece, in_earnest
from node.waiting import wait_for_news
from protocol.commands import DropShadow, KeepShadow, SealShadow
from protocol.events import Event, ShadowSealed
from protocol.ids import PeerId
from protocol.link_share import LinkShare, LinkSpeed
from protocol.manifest import RecoverySection
from protocol.messages import Contact
from protocol.node_state import NodeState
from protocol.older_copy import age_of
from protocol.records import Shadow
from protocol.shadow_ledger import MAX_LR_FACTOR, Chunk, Ledger, is_close_enough
from protocol.sizes import stage_parameters

CHUNK_BYTES = 4 << 20
"""Of a chunk, about: activations need not wait long behind it, and its way there and back, which counts as time of the link,
is short beside it."""
MAX_PAUSE_S = 30.0
MAX_NORM = 1e15
"""Of a chunk; as of any foreign tensor (`node.stage.codec`)."""


def num_vectors(rules: RecoverySection) -> int:
    """How many are kept: the weights, or both moments too."""
    return 3 if rules.shadow_moments else 1


def chunk_elements(rules: RecoverySection) -> int:
    """Of a chunk of so many bytes."""
    return min(SHADOW_ELEMENTS, CHUNK_BYTES // (ELEMENT_BYTES[rules.shadow_dtype] * num_vectors(rules)))


@dataclass(slots=True)
class Kept:
    """Of one stage. `parts`: chunks by their first element, each vector's words behind one another."""

    ledger: Ledger
    parts: dict[int, bytes] = field(default_factory=dict)
    num_bytes: int = 0
    """That came, of all chunks of all times."""
    told_newest: int = -1
    speeds: dict[PeerId, LinkSpeed] = field(default_factory=dict)
    """Of the ways from its holders."""
    sealed: Shadow | None = None


@dataclass(slots=True)
class Shadowing:
    """Of one node. `tell` hears what was sealed, `note` writes to the event log; neither may block."""

    state: NodeState
    neighbours: Neighbours
    clock: Clock
    tell: Callable[[Event], None]
    note: Callable[[str, dict[str, Any]], None]
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    piece: Piece = in_earnest
    kept: dict[int, Kept] = field(default_factory=dict)
    share: LinkShare = field(init=False)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _link: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One chunk at a time, whatever the number of stages."""

    def __post_init__(self) -> None:
        self.share = LinkShare(self._rules.shadow_link_share)

    @property
    def _rules(self) -> RecoverySection:
        return self.state.config.manifest.recovery

    @property
    def vectors(self) -> int:
        """How many are kept: the weights, or both moments too."""
        return num_vectors(self._rules)

    @property
    def num_bytes(self) -> int:
        """Bytes that are held."""
        return sum(len(part) for kept in self.kept.values() for part in kept.parts.values())

    def wake(self) -> None:
        """Something was decided."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def do(self, command: KeepShadow | SealShadow | DropShadow) -> None:
        """One thing at a time is done about what is kept of a stage."""
        stage = command.stage
        if task := self._tasks.pop(stage, None):
            task.cancel()
        if isinstance(command, KeepShadow):
            self._tasks[stage] = self.spawn(self.keep(command), f"keep the shadow of stage {stage}")
        elif isinstance(command, SealShadow):
            self._tasks[stage] = self.spawn(self.seal(command), f"seal the shadow of stage {stage}")
        else:
            self.kept.pop(stage, None)

    # ---- keep ----

    async def keep(self, command: KeepShadow) -> None:
        """Fetch what is due, until cancelled."""
        kept = self._begun(command)
        failures, heartbeat_s = 0, self.state.config.manifest.timing.heartbeat_s
        while True:
            news = self._news
            contacts = contacts_of_stage(self.state, command.stage)
            try:
                if contacts:
                    await self._fetch_from(contacts[failures % len(contacts)], command.stage, kept)
                    failures = 0
                await wait_for_news(news, heartbeat_s)
            except PeerError:
                failures = min(failures + 1, 16)
                await self.clock.sleep(min(MAX_PAUSE_S, heartbeat_s * 2.0 ** (failures - 2)))

    def _begun(self, command: KeepShadow) -> Kept:
        """What is there of this generation is gone on with; what the stage was restored of is its state of that step."""
        stage, rules, before = command.stage, self._rules, self.kept.get(command.stage)
        if before and before.ledger.generation == command.generation:
            before.sealed = None
            return before
        size = stage_parameters(self.state.config.manifest, stage)
        kept = Kept(Ledger(size, self.piece(stage, chunk_elements(rules)), rules.shadow_every, command.generation))
        if before and before.sealed and command.as_of >= 0:
            kept.parts, shadow = before.parts, before.sealed
            for chunk in kept.ledger.chunks:
                kept.ledger.settle(chunk, command.as_of, shadow.optimizer_age, shadow.lr_factor)
        self.kept[stage] = kept
        return kept

    async def _fetch_from(self, donor: Contact, stage: int, kept: Kept) -> None:
        """All that is due now, over one connection; ends when nothing is."""
        async with AsyncExitStack() as stack:
            source: Neighbour | None = None
            while chunk := kept.ledger.next(self.state.chain.step):
                async with self._link:
                    await self.clock.sleep(self.share.wait_s(self.clock.monotonic()))
                    if donor not in contacts_of_stage(self.state, stage):
                        return
                    if source is None:
                        source = await stack.enter_async_context(self.neighbours.visit(donor))
                    found = await self._fetch(source, stage, chunk, kept.speeds.setdefault(donor.peer, LinkSpeed()))
                await self._take(donor, stage, kept, chunk, found)

    async def _fetch(self, source: Neighbour, stage: int, chunk: Chunk, speed: LinkSpeed) -> StateRange:
        """One that fails takes no share of the link: who has failed is not asked again for a while."""
        began = self.clock.monotonic()
        words = self.vectors * num_words(chunk.count, self._rules.shadow_dtype)
        found = await source.shadow_range(stage, chunk.first, chunk.count, words)
        self.share.moved(len(memoryview(found.data).cast("B")), began, self.clock.monotonic(), speed)
        return found

    async def _take(self, donor: Contact, stage: int, kept: Kept, chunk: Chunk, found: StateRange) -> None:
        facts, ledger, data = found.facts, kept.ledger, bytes(found.data)
        if not self._fits(chunk, data) or facts.optimizer_age < 0 or not 0 < facts.lr_factor <= MAX_LR_FACTOR:
            raise PeerError(donor.peer, f"elements {chunk.first}+{chunk.count} of stage {stage} that are none")
        age = await self._age_of(stage, facts.state_id)
        if age is None or facts.generation != ledger.generation:
            raise NotHeldError(donor.peer, f"it has a state of stage {stage} that is not known here")
        ledger.settle(chunk, self.state.chain.step - age, facts.optimizer_age, facts.lr_factor)
        kept.parts[chunk.first] = data
        kept.num_bytes += len(data)
        self._tell_round(stage, kept)

    def _fits(self, chunk: Chunk, data: bytes) -> bool:
        """As many words as were asked for, of finite numbers."""
        words = num_words(chunk.count, self._rules.shadow_dtype)
        if len(data) != 4 * words * self.vectors:
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            return all(float(np.linalg.norm(v)) <= MAX_NORM for v in self._vectors_of(chunk, data))

    def _vectors_of(self, chunk: Chunk, data: bytes) -> list[np.ndarray]:
        """In f32."""
        size, dtype = len(data) // self.vectors, self._rules.shadow_dtype
        return [unpacked(data[at : at + size], chunk.count, dtype) for at in range(0, len(data), size)]

    async def _age_of(self, stage: int, state_id: str) -> int | None:
        """How many steps ago the stage had the state; the donor may hear of a commit a little earlier."""
        if age_of(self.state.chain, stage, state_id) is None:
            await wait_for_news(self._news, self.state.config.manifest.timing.heartbeat_s)
        return age_of(self.state.chain, stage, state_id)

    def _tell_round(self, stage: int, kept: Kept) -> None:
        """All of it is newer than the newest chunk was when this was told last."""
        ledger = kept.ledger
        if not ledger.is_whole or ledger.oldest <= kept.told_newest:
            return
        kept.told_newest = ledger.newest
        facts = {"stage": stage, "step": self.state.chain.step, "oldest_step": ledger.oldest, "newest_step": ledger.newest}
        self.note("shadow", facts | {"bytes": kept.num_bytes})
        kept.num_bytes = 0

    # ---- seal, and give ----

    async def seal(self, command: SealShadow) -> None:
        """Outcome: ShadowSealed."""
        kept = self.kept.get(command.stage)
        if kept:
            kept.sealed = await self._shadow_of(kept)
        self.tell(ShadowSealed(command.stage, kept.sealed if kept else None))

    async def _shadow_of(self, kept: Kept) -> Shadow | None:
        ledger, step = kept.ledger, self.state.chain.step
        if not ledger.is_whole or not is_close_enough(ledger.oldest, ledger.newest, step, ledger.every):
            return None
        age = ledger.age if self.vectors > 1 else 0
        digest = await self._digest(kept, age)
        me = self.state.config.member
        return Shadow(me, digest, ledger.oldest, ledger.newest, age, ledger.lr_factor)

    async def _digest(self, kept: Kept, age: int) -> str:
        """As `node.stage.digest` has it of the state that is made of this, a chunk at a time; others get their turn."""
        hasher = blake3()
        for vector in range(3):
            for chunk in kept.ledger.chunks:
                is_there = vector < self.vectors
                part = self._vectors_of(chunk, kept.parts[chunk.first])[vector] if is_there else np.zeros(chunk.count, "<f4")
                hasher.update(part.tobytes())
                await asyncio.sleep(0)
        return hasher.update(age.to_bytes(8, "little")).hexdigest()

    def part_of(self, stage: int, shadow: Shadow, first: int, count: int) -> bytes | None:
        """Elements as they are kept, each vector's words behind one another, of what was sealed as this; None where it is not
        here any more."""
        kept, dtype, end = self.kept.get(stage), self._rules.shadow_dtype, first + count
        if kept is None or kept.sealed != shadow:
            return None
        rows: list[list[bytes]] = []
        for chunk in kept.ledger.covering(first, count):
            begin, stop = max(first, chunk.first) - chunk.first, min(end, chunk.first + chunk.count) - chunk.first
            rows.append(elements_of(kept.parts[chunk.first], chunk.count, self.vectors, dtype, begin, stop))
        return b"".join(filled(b"".join(row)) for row in zip(*rows, strict=True))


def shadow_form(found: StateRange, rules: RecoverySection) -> bytes:
    """A range of a state, its vectors behind one another in f32, as a keeper is given it."""
    data = memoryview(found.data).cast("B")
    size = data.nbytes // (3 if rules.shadow_moments else 1)
    return b"".join(packed(data[at : at + size], rules.shadow_dtype) for at in range(0, data.nbytes, size))
