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

from node.ports import Payload, PayloadPool, PeerError, PeerTransport, StageExecutor
from protocol.commands import Reduce
from protocol.ids import PeerId
from protocol.messages import ReduceHeader

PIECE_ELEMENTS = 1 << 20
MAX_EARLY_PIECES = 4096
PIECES_ON_THEIR_WAY = 4


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


Key = tuple[int, int, int]
"""(step, attempt, stage)"""
Slot = tuple[str, int, PeerId]
"""(kind, first element, sender)"""


@dataclass(slots=True)
class Box:
    """Pieces of one reduce that have arrived: handles by slot, and who waits for one."""

    handles: dict[Slot, int] = field(default_factory=dict)
    waiting: dict[Slot, asyncio.Future[int]] = field(default_factory=dict)
    taken: set[Slot] = field(default_factory=set)


class Reducer:
    """One per node. `run` may be called for several stages at once."""

    def __init__(
        self, me: PeerId, transport: PeerTransport, executor: StageExecutor, pool: PayloadPool, patience_s: float
    ) -> None:
        self._me, self._transport, self._executor, self._pool = me, transport, executor, pool
        self._patience_s = patience_s
        self._boxes: dict[Key, Box] = defaultdict(Box)
        self._done: Key = (0, 0, 0)
        self._early = 0

    def deliver(self, peer: PeerId, header: ReduceHeader, handle: int) -> None:
        """A piece arrived. One that nobody waits for is kept for the reduce that may come; repeated ones are released."""
        key, slot = (header.step, header.attempt, header.stage), (header.kind, header.first, peer)
        if key[:2] <= self._done[:2]:
            self._pool.release(handle)
            return
        box = self._boxes[key]
        if slot in box.handles or slot in box.taken or self._early >= MAX_EARLY_PIECES:
            self._pool.release(handle)
            return
        waiter = box.waiting.pop(slot, None)
        if waiter is not None and not waiter.done():
            box.taken.add(slot)
            waiter.set_result(handle)
            return
        self._early += 1
        box.handles[slot] = handle

    def discard(self, step: int, attempt: int) -> None:
        """Forget pieces of this attempt and of all before it; a `run` that still waits for one is cancelled by its owner."""
        self._done = max(self._done, (step, attempt, 0))
        for key in [k for k in self._boxes if k[:2] <= (step, attempt)]:
            box = self._boxes.pop(key)
            self._early -= len(box.handles)
            for handle in box.handles.values():
                self._pool.release(handle)

    async def run(self, command: Reduce, num_elements: int) -> tuple[str, float]:
        """(digest, squared norm) of the whole sum. Raises `PeerError` where a sibling does not do its part in time."""
        owners = [m.member.peer for m in command.members if m.role == "active"]
        others = [m.member.peer for m in command.members if m.member.peer != self._me]
        if not others:
            await self._executor.use_local(command.stage)
            return await self._executor.reduced(command.stage)
        job = _Job(command, cut(num_elements, owners), owners, others)
        try:
            async with asyncio.TaskGroup() as group:
                for owner in owners:
                    if owner != self._me and self._me in owners:
                        group.create_task(self._send_parts(job, owner), name=f"reduce parts to {owner[-8:]}")
                    group.create_task(self._finish(job, owner, group), name=f"reduce share of {owner[-8:]}")
        except* PeerError as group_error:
            raise _first(group_error) from None
        return await self._executor.reduced(command.stage)

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
        own = await self._executor.gradient_range(job.command.stage, piece.first, piece.count)
        parts = [own if p == self._me else await self._receive(job, "part", piece, p) for p in job.owners]
        return await self._executor.sum_range(job.command.stage, piece.first, parts)

    async def _install(self, job: _Job, piece: Piece, total: Payload, owner: PeerId) -> None:
        try:
            await self._executor.install_range(job.command.stage, piece.first, total)
        except PeerError as error:
            raise PeerError(owner, error.reason) from error

    async def _publish(self, job: _Job, piece: Piece, total: Payload, gate: asyncio.Semaphore) -> None:
        try:
            for peer in job.others:
                await self._send(job, peer, "sum", piece, total)
        finally:
            gate.release()

    async def _send(self, job: _Job, peer: PeerId, kind: str, piece: Piece, payload: Payload) -> None:
        c = job.command
        assert kind in ("part", "sum"), f"unknown kind of piece {kind}"
        header = ReduceHeader(c.ballot, c.step, c.attempt, c.stage, kind, piece.first, piece.count)  # type: ignore[arg-type]
        handle = self._pool.put(payload)
        try:
            await self._transport.send_payload(peer, header, handle)
        finally:
            self._pool.release(handle)

    async def _receive(self, job: _Job, kind: str, piece: Piece, peer: PeerId) -> Payload:
        """The piece from `peer`, which must be exactly as long as it should be."""
        c = job.command
        handle = await self._await_piece((c.step, c.attempt, c.stage), (kind, piece.first, peer))
        try:
            payload = self._pool.get(handle)
        finally:
            self._pool.release(handle)
        if payload.spec.shape != (piece.count,):
            raise PeerError(peer, f"its {kind} of stage {c.stage} has shape {payload.spec.shape}, not ({piece.count},)")
        return payload

    async def _await_piece(self, key: Key, slot: Slot) -> int:
        box = self._boxes[key]
        handle = box.handles.pop(slot, None)
        if handle is not None:
            self._early -= 1
            box.taken.add(slot)
            return handle
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        box.waiting[slot] = waiter
        try:
            async with asyncio.timeout(self._patience_s):
                return await waiter
        except TimeoutError:
            kind, first, peer = slot
            raise PeerError(peer, f"its {kind} of stage {key[2]} from element {first} did not come") from None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._pool.release(waiter.result())
            raise
        finally:
            box.waiting.pop(slot, None)


@dataclass(frozen=True, slots=True)
class _Job:
    command: Reduce
    pieces: list[Piece]
    owners: list[PeerId]
    others: list[PeerId]


def _first(group: BaseExceptionGroup[PeerError]) -> PeerError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, PeerError), f"not a peer's fault: {error!r}"
    return error
