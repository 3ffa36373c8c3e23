"""An open stream to another peer: dialed, welcomed, written to, and watched until it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
from grpc import aio

from node.ports import PeerError
from node.transport.arrivals import Arrivals
from node.transport.channel import Security, sentence_of, within
from node.transport.checks import WireError
from node.transport.config import Closing, Hello, Hooks, Lane, Receipt, TransportConfig, Welcome
from node.transport.frames import decode_answer, encode_hello
from node.transport.greeting import REFUSALS
from node.transport.names import Names
from protocol.ids import PeerId

METHODS: dict[Lane, str] = {"light": "/regrow.v1.Streams/Light", "bulk": "/regrow.v1.Streams/Bulk"}

RawCall = aio.StreamStreamCall[bytes, bytes]


class RefusedError(PeerError):
    """The peer says that this node has no place in the run as it is; `reason` is its sentence."""


@dataclass(slots=True)
class Surroundings:
    """What all streams of one node share. `group` owns every task."""

    config: TransportConfig
    group: asyncio.TaskGroup
    rng: Random
    hooks: Hooks
    security: Security
    arrivals: Arrivals
    announced: str
    """HOST:PORT for other peers; '' where none is known to be reachable."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of the node's group that `tasks_done` waits for."""
        task = self.group.create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def tasks_done(self) -> None:
        """Wait for all tasks of the streams."""
        while self.tasks:
            await asyncio.wait(set(self.tasks))

    def cancel_tasks(self) -> None:
        """End what is left of them."""
        for task in self.tasks:
            task.cancel()


class Stream:
    """Writes frames; knows why it ended. Its watcher, a task of the node's group, frees the connection."""

    def __init__(self, peer: PeerId, channel: aio.Channel, call: RawCall, progress_s: float) -> None:
        self.names = Names()
        """Of the messages that were written to it."""
        self.ended: str | None = None
        self.may_go_on = False
        """It ended for no reason that would keep another stream to the peer from doing better."""
        self.num_begun = 0
        """Payloads of which something was written: the listener may have the last one before the writer knows."""
        self._num_received = 0
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._peer = peer
        self._channel = channel
        self._call = call
        self._progress_s = progress_s

    async def write(self, frame: bytes) -> None:
        """Returns when gRPC took the frame. Raises `PeerError`; the stream is over then."""
        try:
            if self.ended is None:
                await within(self._progress_s, self._call.write(frame))
        except TimeoutError:
            self.close(f"took no bytes for {self._progress_s:g} s")
        except (aio.AioRpcError, asyncio.InvalidStateError):
            await self._over.wait()  # the watcher knows better why
        except asyncio.CancelledError:
            if self.ended is None or _is_cancelled():
                self.close("the sender gave up")
                raise
        if self.ended is not None:
            raise PeerError(self._peer, self.ended)

    async def received(self, number: int) -> None:
        """Returns when the listener says that it has the first `number` payloads. Raises `PeerError` where the stream ends
        before, or where nothing more is received for as long as a write may take."""
        while self._num_received < number and self.ended is None:
            news = self._news
            try:
                await within(self._progress_s, news.wait())
            except TimeoutError:
                self.close(f"took no payload for {self._progress_s:g} s")
        if self._num_received < number:
            raise PeerError(self._peer, self.ended or "closed")

    async def watch(self, on_end: Callable[[], None]) -> None:
        """Waits for the end, whoever causes it, and frees the connection."""
        try:
            reason = await self._last_words()
            self.close(reason)
        finally:
            self.close("closed")
            self._over.set()
            on_end()
            await self._channel.close()

    async def _last_words(self) -> str:
        """What the listener says after its Welcome: receipts, and why it ends the stream."""
        try:
            while isinstance(data := await self._call.read(), bytes):
                answer = decode_answer(data)
                if isinstance(answer, Closing):
                    return answer.sentence
                self._take(answer)
            return self._broke(await self._call.code(), await self._call.details())
        except aio.AioRpcError as error:
            return self._broke(error.code(), error.details())
        except WireError as error:
            return str(error)
        except asyncio.CancelledError:
            if self.ended is None or _is_cancelled():
                raise
            return self.ended

    def _take(self, answer: Welcome | Receipt) -> None:
        if isinstance(answer, Welcome):
            raise WireError("order", "it answered twice")
        if not self._num_received < answer.num_payloads <= self.num_begun:
            raise WireError("order", f"it has {answer.num_payloads} of {self.num_begun} payloads")
        self._num_received = answer.num_payloads
        self._tell()

    def _broke(self, code: grpc.StatusCode, details: str | None) -> str:
        self.may_go_on = self.ended is None
        return "the stream broke: " + sentence_of(code, details)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self, reason: str, *, may_go_on: bool = False) -> None:
        """End it, if it has not ended; a write in progress raises `PeerError`."""
        if self.ended is None:
            self.ended = reason
            self.may_go_on |= may_go_on
        self._call.cancel()
        self._tell()


def _is_cancelled() -> bool:
    """Whether somebody wants the current task to end. gRPC raises CancelledError for cancelled calls, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def dial(around: Surroundings, lane: Lane, peer: PeerId, address: str) -> Stream:
    """A welcomed stream, watched by nobody yet. Raises `RefusedError` and other `PeerError`."""
    config = around.config
    hello = Hello(config.protocol_version, config.run_id, config.peer, config.incarnation, around.announced, peer)
    channel: aio.Channel | None = None
    stream: Stream | None = None
    try:
        channel = await within(config.dial_s, around.security.channel(address, peer))
        call: RawCall = channel.stream_stream(METHODS[lane])()
        answer = await within(config.dial_s, _greet(call, encode_hello(hello)))
        if isinstance(answer, Closing):
            raise (RefusedError if answer.code in REFUSALS else PeerError)(peer, answer.sentence)
        if answer.peer != peer:
            raise PeerError(peer, f"{address} answers as {answer.peer[-8:]}")
        around.arrivals.note(peer)
        stream = Stream(peer, channel, call, config.progress_s)
        return stream
    except aio.AioRpcError as error:
        raise PeerError(peer, f"cannot reach {address}: {sentence_of(error.code(), error.details())}") from None
    except TimeoutError:
        raise PeerError(peer, f"cannot reach {address}: no answer within {config.dial_s:g} s") from None
    except WireError as error:
        raise PeerError(peer, f"{address} does not speak our protocol: {error}") from None
    finally:
        if stream is None and channel is not None:
            await channel.close()


async def _greet(call: RawCall, hello: bytes) -> Welcome | Closing:
    with contextlib.suppress(asyncio.InvalidStateError):  # it ended already; the read tells why
        await call.write(hello)
    data = await call.read()
    if not isinstance(data, bytes):
        raise WireError("frame", "no answer to a Hello")
    answer = decode_answer(data)
    if isinstance(answer, Receipt):
        raise WireError("order", "no answer to a Hello")
    return answer
