"""The sum of a stage's gradient over its replica set, piece by piece over the network.

The flat gradient is cut into pieces; each piece has one owner among the active replicas. Every other active replica sends its
part to the owner, the owner adds the parts in roster order (its own one in the decoded form of what it would have sent) and
sends the sum to everybody else, passive replicas included. So all hold the same bytes, whatever the codec and the timing.
Knows nothing of steps being right or wrong: `NodeState` asked for it, and everything that does not fit is released.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from node.ports import BadTensorError, Payload, PayloadPool, PeerError, PeerTransport, StageExecutor
from protocol.commands import Reduce, StopReduce
from protocol.ids import PeerId
from protocol.messages import ReduceHeader

PIECE_ELEMENTS = 1 << 20
PIECES_ON_THEIR_WAY = 4
EARLY_BYTES_PER_ELEMENT = 8
"""Room for pieces that nobody waits for yet: a gradient of parts and one of sums, 4 bytes an element."""
SUM_PATIENCE = 2.0
"""A sum may be late because somebody's part is: who waits for the part speaks first, and so the right peer is named."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements first .. first + count of the flat gradient, summed by `owner`."""

    first: int
    count: int
    owner: PeerId


def cut(num_elements: int, owners: list[PeerId], piece_elements: int = PIECE_ELEMENTS) -> list[Piece]:
    """Pieces that cover the gradient exactly once; each owner gets one contiguous share of almost equal size."""
    pieces = []
    for index, owner in enumerate(owners):
        end = num_elements * (index + 1) // len(owners)
        first = num_elements * index // len(owners)
        while first < end:
            count = min(piece_elements, end - first)
            pieces.append(Piece(first, count, owner))
            first += count
    return pieces


Number = tuple[int, int, int]
"""(step, attempt, sum number)"""
Key = tuple[int, Number]
"""(stage, number)"""
AFTER_ALL = 1 << 63
Slot = tuple[str, int, PeerId]
"""(kind, first element, sender)"""


@dataclass(slots=True)
class Box:
    """Pieces of one reduce that have arrived: handles by slot, and who waits for one."""

    handles: dict[Slot, int] = field(default_factory=dict)
    num_bytes: int = 0
    waiting: dict[Slot, asyncio.Future[int]] = field(default_factory=dict)
    taken: set[Slot] = field(default_factory=set)


class Reducer:
    """One per node. `seat` says which stages are held and how large they are; `run` may be called for several at once."""

    def __init__(
        self, me: PeerId, transport: PeerTransport, executor: StageExecutor, pool: PayloadPool, patience_s: float
    ) -> None:
        self._me, self._transport, self._executor, self._pool = me, transport, executor, pool
        self._patience_s = patience_s
        self._boxes: dict[Key, Box] = defaultdict(Box)
        self._sizes: dict[int, int] = {}
        self._done: dict[int, Number] = {}

    def seat(self, stage: int, num_elements: int) -> None:
        """The node holds the stage from now on (0 elements: no more)."""
        self._sizes[stage] = num_elements
        if not num_elements:
            del self._sizes[stage]
            self.discard(stage, AFTER_ALL, 0)
            self._done.pop(stage, None)

    def deliver(self, peer: PeerId, header: ReduceHeader, handle: int) -> None:
        """A piece arrived. One that nobody waits for is kept for the reduce that may come, as far as there is room; what is
        repeated, over, or of a stage that is not held here is released."""
        key, slot = (header.stage, (header.step, header.attempt, header.sum_number)), (header.kind, header.first, peer)
        box = self._boxes.get(key)
        waiter = box.waiting.pop(slot, None) if box else None
        if box and waiter is not None and not waiter.done():
            box.taken.add(slot)
            waiter.set_result(handle)
        elif self._is_over(key) or (box and (slot in box.handles or slot in box.taken)) or not self._fits(header, handle):
            self._pool.release(handle)
        else:
            box = self._boxes[key]
            box.handles[slot] = handle
            box.num_bytes += self._pool.get(handle).data.nbytes

    def _is_over(self, key: Key) -> bool:
        return key[1] <= self._done.get(key[0], (0, 0, 0))

    def _fits(self, header: ReduceHeader, handle: int) -> bool:
        size = self._sizes.get(header.stage, 0)
        early = sum(box.num_bytes for key, box in self._boxes.items() if key[0] == header.stage)
        room = EARLY_BYTES_PER_ELEMENT * size - early
        return 0 <= header.first < size and self._pool.get(handle).data.nbytes <= room

    def discard(self, stage: int, step: int, attempt: int) -> None:
        """Forget the stage's pieces of this attempt and of all before it; a `run` that still waits for one is cancelled by
        its owner."""
        self._forget(stage, (step, attempt, AFTER_ALL))

    def begin_anew(self, command: StopReduce) -> None:
        """Forget the pieces of the sums before this one; its owner cancels a `run` of theirs."""
        self._forget(command.stage, (command.step, command.attempt, command.sum_number - 1))

    def _forget(self, stage: int, number: Number) -> None:
        self._done[stage] = max(self._done.get(stage, (0, 0, 0)), number)
        for key in [k for k in self._boxes if k[0] == stage and self._is_over(k)]:
            for handle in self._boxes.pop(key).handles.values():
                self._pool.release(handle)

    def close(self) -> None:
        """Release all that is kept."""
        for stage in list(self._sizes):
            self.seat(stage, 0)

    async def run(self, command: Reduce) -> tuple[str, float, tuple[PeerError, ...]]:
        """(digest, squared norm) of the whole sum, and which siblings could not be sent all of it. Raises `PeerError` where one
        does not do its part in time."""
        owners = [m.member.peer for m in command.members if m.role == "active"]
        others = [m.member.peer for m in command.members if m.member.peer != self._me]
        if not others:
            await self._executor.use_local(command.stage)
            return *await self._executor.reduced(command.stage), ()
        job = _Job(command, cut(self._sizes[command.stage], owners), owners, others)
        try:
            async with asyncio.TaskGroup() as group:
                for owner in owners:
                    if owner != self._me and self._me in owners:
                        group.create_task(self._send_parts(job, owner), name=f"reduce parts to {owner[-8:]}")
                    group.create_task(self._finish(job, owner, group), name=f"reduce share of {owner[-8:]}")
        except* PeerError as group_error:
            raise _first(group_error) from None
        return *await self._executor.reduced(command.stage), tuple(job.unsent.values())

    async def _send_parts(self, job: _Job, owner: PeerId) -> None:
        for piece in job.pieces:
            if piece.owner == owner:
                part = await self._executor.gradient_range(job.command.stage, piece.first, piece.count)
                await self._send(job, owner, "part", piece, part)

    async def _finish(self, job: _Job, owner: PeerId, group: asyncio.TaskGroup) -> None:
        """Bring one owner's share of the pieces into the reduced gradient."""
        gate = asyncio.Semaphore(PIECES_ON_THEIR_WAY)
        for piece in job.pieces:
            if piece.owner != owner:
                continue
            total = await (self._add(job, piece) if owner == self._me else self._receive(job, "sum", piece, owner))
            await self._install(job, piece, total, owner)
            if owner == self._me:
                await gate.acquire()
                group.create_task(self._publish(job, piece, total, gate), name=f"reduce sum {piece.first}")

    async def _add(self, job: _Job, piece: Piece) -> Payload:
        stage = job.command.stage
        own = await self._executor.gradient_range(stage, piece.first, piece.count)
        parts = [own if p == self._me else await self._receive(job, "part", piece, p) for p in job.owners]
        try:
            return await self._executor.sum_range(stage, piece.first, parts)
        except PeerError:
            for peer, part in zip(job.owners, parts, strict=True):
                await self._try(job, piece, peer, part)
            raise

    async def _try(self, job: _Job, piece: Piece, peer: PeerId, part: Payload) -> None:
        """Raises `PeerError` naming `peer` if its part is what cannot be added."""
        try:
            await self._executor.sum_range(job.command.stage, piece.first, [part])
        except PeerError as error:
            raise error.by(peer) from error

    async def _install(self, job: _Job, piece: Piece, total: Payload, owner: PeerId) -> None:
        try:
            await self._executor.install_range(job.command.stage, piece.first, total)
        except PeerError as error:
            raise error.by(owner) from error

    async def _publish(self, job: _Job, piece: Piece, total: Payload, gate: asyncio.Semaphore) -> None:
        """To all others. One that cannot be reached keeps nobody from having the sum."""
        try:
            for peer in job.others:
                if peer not in job.unsent:
                    await self._publish_to(job, peer, piece, total)
        finally:
            gate.release()

    async def _publish_to(self, job: _Job, peer: PeerId, piece: Piece, total: Payload) -> None:
        try:
            await self._send(job, peer, "sum", piece, total)
        except PeerError as error:
            job.unsent.setdefault(peer, error)

    async def _send(self, job: _Job, peer: PeerId, kind: str, piece: Piece, payload: Payload) -> None:
        c = job.command
        assert kind in ("part", "sum"), f"unknown kind of piece {kind}"
        header = ReduceHeader(c.ballot, c.step, c.attempt, c.stage, kind, piece.first, piece.count, c.sum_number)  # type: ignore[arg-type]
        handle = self._pool.put(payload)
        try:
            await self._transport.send_payload(peer, header, handle)
        finally:
            self._pool.release(handle)

    async def _receive(self, job: _Job, kind: str, piece: Piece, peer: PeerId) -> Payload:
        """The piece from `peer`, which must be exactly as long as it should be."""
        c = job.command
        key = c.stage, (c.step, c.attempt, c.sum_number)
        handle = await self._await_piece(key, (kind, piece.first, peer))
        try:
            payload = self._pool.get(handle)
        finally:
            self._pool.release(handle)
        if payload.spec.shape != (piece.count,):
            told = f"its {kind} of stage {c.stage} has shape {payload.spec.shape}, not ({piece.count},)"
            raise BadTensorError(peer, told, "shape")
        return payload

    async def _await_piece(self, key: Key, slot: Slot) -> int:
        box = self._boxes[key]
        if slot in box.handles:
            box.taken.add(slot)
            box.num_bytes -= self._pool.get(box.handles[slot]).data.nbytes
            return box.handles.pop(slot)
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        box.waiting[slot] = waiter
        kind, first, peer = slot
        arrived = False
        try:
            async with asyncio.timeout(self._patience_s * (SUM_PATIENCE if kind == "sum" else 1.0)):
                handle = await waiter
                arrived = True
                return handle
        except TimeoutError:
            raise PeerError(peer, f"its {kind} of stage {key[0]} from element {first} did not come") from None
        finally:
            box.waiting.pop(slot, None)
            if not arrived and waiter.done() and not waiter.cancelled():
                self._pool.release(waiter.result())


@dataclass(frozen=True, slots=True)
class _Job:
    command: Reduce
    pieces: list[Piece]
    owners: list[PeerId]
    others: list[PeerId]
    unsent: dict[PeerId, PeerError] = field(default_factory=dict)


def _first(group: BaseExceptionGroup[PeerError]) -> PeerError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, PeerError), f"not a peer's fault: {error!r}"
    return error
