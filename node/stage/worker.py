"""One compute thread with a priority queue; results go back to the event loop that asked."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from node.ports import PeerError

T = TypeVar("T")
LAST_WORD_S = 0.5
"""From the moment when a thread says that it ends to its end: microseconds, unless the machine is very busy."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece of work stands in the queue: lower `rank` first, then lower `microbatch`, then as it came.

    `stage` and `attempt` let `ComputeThread.forget` find it again.
    """

    rank: int
    microbatch: int = 0
    stage: int = -1
    attempt: tuple[int, int] = (0, 0)


@dataclass(order=True, slots=True)
class _Item:
    rank: int
    microbatch: int
    serial: int
    place: Place = field(compare=False)
    run: Callable[[], Any] = field(compare=False)
    loop: asyncio.AbstractEventLoop = field(compare=False)
    future: asyncio.Future[Any] = field(compare=False)


class ComputeThread:
    """Runs one callable at a time. Starts with the first one; a daemon, so that a crashed node does not hang on it."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._num_threads = num_threads
        self._serial = itertools.count()
        self._heap: list[_Item] = []
        self._changed = threading.Condition()
        self._closing = False
        self._on_end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def run(self, place: Place, what: Callable[[], T]) -> T:
        """The result of `what`, or its exception. Cancelling the caller takes it out of the queue if it has not begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._changed:
            assert not self._closing, "the executor is closed"
            if not self._thread.is_alive():
                self._thread.start()
            serial = next(self._serial)
            heapq.heappush(self._heap, _Item(place.rank, place.microbatch, serial, place, what, loop, future))
            self._changed.notify()
        return await future

    def forget(self, stage: int, attempt: tuple[int, int]) -> None:
        """Take queued work of this stage and attempt, or older, out of the queue; who waits for it gets `PeerError`."""
        with self._changed:
            stale = [i for i in self._heap if i.place.stage == stage and i.place.attempt <= attempt]
            self._heap = [item for item in self._heap if item not in stale]
            heapq.heapify(self._heap)
        for item in stale:
            _deliver(item, None, PeerError("", "the attempt was given up"))

    async def close(self) -> None:
        """Cancel what waits, let what runs finish, end the thread. Where that never ends, the caller may stop waiting: nothing
        else waits for a hung thread, the interpreter neither."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        with self._changed:
            waiting, self._heap, self._closing = self._heap, [], True
            self._on_end = lambda: loop.call_soon_threadsafe(ended.set)
            self._changed.notify()
        for item in waiting:
            _deliver(item, None, asyncio.CancelledError())
        if self._thread.is_alive():
            await ended.wait()
            self._thread.join(LAST_WORD_S)

    def _next(self) -> _Item | None:
        with self._changed:
            self._changed.wait_for(lambda: self._heap or self._closing)
            return heapq.heappop(self._heap) if self._heap else None

    def _work(self) -> None:
        torch.set_num_threads(self._num_threads)
        while (item := self._next()) is not None:
            if item.future.cancelled():
                continue
            result, error = None, None
            try:
                result = item.run()
            except BaseException as raised:  # noqa: BLE001 - carried to who awaits it
                error = raised
            _deliver(item, result, error)
            del item, result, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._on_end()


def _deliver(item: _Item, result: Any, error: BaseException | None) -> None:
    try:
        item.loop.call_soon_threadsafe(_settle, item.future, result, error)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
