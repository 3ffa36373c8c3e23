"""The sending side: for each known peer a light and a bulk stream, opened when needed and again after they broke."""

from __future__ import annotations

import asyncio
import contextlib

from node.ports import PeerError
from node.transport.checks import check
from node.transport.config import Kind, Lane
from node.transport.frames import encode_chunk, encode_message
from node.transport.outbox import Backoff, Outbox
from node.transport.stream import RefusedError, Stream, Surroundings, dial
from protocol.ids import PeerId
from protocol.messages import Heartbeat, Message

MAX_SENDS = 3
"""Of one payload, over connections that break."""


class _Line:
    """What both streams to a peer have in common: dialing with back-off, noticing the end."""

    def __init__(self, around: Surroundings, lane: Lane, peer: PeerId, address: str) -> None:
        config = around.config
        self._around = around
        self._lane: Lane = lane
        self._peer = peer
        self._address = address
        self._backoff = Backoff(config.backoff_first_s, config.backoff_last_s, around.rng)
        self._stream: Stream | None = None
        self._opened_at = 0.0
        self._wait_until = 0.0
        self._refused = ""
        self._closed = ""
        self._opening: asyncio.Timeout | None = None
        self.wake = asyncio.Event()

    async def open(self) -> Stream:
        """The open stream, or a new one; waits out the back-off first. Raises `PeerError`."""
        while not self._closed:
            if self._stream is not None and self._stream.ended is None:
                return self._stream
            try:
                async with asyncio.timeout(None) as self._opening:
                    await asyncio.sleep(max(0.0, self._wait_until - asyncio.get_running_loop().time()))
                    self._opened(await dial(self._around, self._lane, self._peer, self._address))
            except TimeoutError:
                continue  # it moved, or the line was closed meanwhile
            except PeerError as error:
                self._note_failure(error)
                raise
            finally:
                self._opening = None
        raise PeerError(self._peer, self._closed)

    def _opened(self, stream: Stream) -> None:
        self._stream, self._refused = stream, ""
        self._opened_at = asyncio.get_running_loop().time()
        self._around.spawn(stream.watch(self._on_end), f"transport {self._lane} stream to {self._peer[-8:]}")

    def _note_failure(self, error: PeerError) -> None:
        self._around.arrivals.counts["failed_dials"] += 1
        self._wait_until = asyncio.get_running_loop().time() + self._backoff.after_failure()
        if isinstance(error, RefusedError) and error.reason != self._refused:
            self._refused = error.reason
            self._around.hooks.on_refused(self._peer, error.reason)

    def _on_end(self) -> None:
        """The watched stream ended. One that lived for a while makes the next dial a first try again."""
        now = asyncio.get_running_loop().time()
        if now - self._opened_at >= self._around.config.backoff_last_s:
            self._backoff.reset()
        if not self._closed:
            self._around.arrivals.counts["broken_streams"] += 1
            self._wait_until = max(self._wait_until, now + self._backoff.after_failure())
        self.wake.set()

    def move(self, address: str) -> None:
        """The peer is at another address now."""
        if address == self._address:
            return
        self._address = address
        self._backoff.reset()
        self._wait_until = 0.0
        self._interrupt("the peer moved to another address", may_go_on=True)

    def close(self, reason: str) -> None:
        """For good; sends in progress raise `PeerError`."""
        self._closed = reason
        self._interrupt(reason)

    def _interrupt(self, reason: str, *, may_go_on: bool = False) -> None:
        if self._stream is not None:
            self._stream.close(reason, may_go_on=may_go_on)
        if self._opening is not None and not self._opening.expired():
            self._opening.reschedule(asyncio.get_running_loop().time())


class LightLink:
    """Control messages to one peer, in order, heartbeats in front."""

    def __init__(self, around: Surroundings, peer: PeerId, address: str) -> None:
        self.line = _Line(around, "light", peer, address)
        self.outbox: Outbox[Message] = Outbox(around.config.max_queued_messages)
        self._around = around
        self._peer = peer
        self._task = around.spawn(self._run(), f"transport messages to {peer[-8:]}")

    def put(self, message: Message) -> None:
        """Queue it; dropped and counted when there is no room. Raises `WireError` for what no peer would accept."""
        check(message)
        before = self.outbox.dropped_messages, self.outbox.dropped_heartbeats
        self.outbox.put(message, isinstance(message, Heartbeat))
        counts = self._around.arrivals.counts
        counts["dropped_messages"] += self.outbox.dropped_messages - before[0]
        counts["dropped_heartbeats"] += self.outbox.dropped_heartbeats - before[1]
        self.line.wake.set()

    async def _run(self) -> None:
        while True:
            await self._something()
            try:
                stream = await self.line.open()
                while stream.ended is None:
                    await self._write_all(stream)
                    await self._something(stream)
            except PeerError:
                continue  # counted where it arose; what is queued waits for the next stream

    async def _something(self, stream: Stream | None = None) -> None:
        """Wait for a queued message, or for the end of `stream`."""
        while not len(self.outbox) and (stream is None or stream.ended is None):
            self.line.wake.clear()
            await self.line.wake.wait()

    async def _write_all(self, stream: Stream) -> None:
        """Encoded only now, because what a stream names once it names by number later."""
        while (message := self.outbox.pop()) is not None:
            data = encode_message(message, stream.names)
            await stream.write(data)
            kind: Kind = "heartbeat" if isinstance(message, Heartbeat) else "control"
            self._around.hooks.on_bytes(kind, "out", len(data))

    def close(self, reason: str) -> None:
        """For good; what is queued is lost."""
        self.line.close(reason)
        self._task.cancel()


class BulkLink:
    """Payloads to one peer, one after the other in the order of the calls; what was on its way when a connection broke is sent
    again."""

    def __init__(self, around: Surroundings, peer: PeerId, address: str) -> None:
        self.line = _Line(around, "bulk", peer, address)
        self.num_waiting = 0
        self._around = around
        self._peer = peer
        self._turn = asyncio.Lock()
        self._failed_opens = 0
        self._reason = ""

    async def send(self, kind: Kind, head: bytes, data: memoryview) -> None:
        """Returns when the peer says that it has the payload whole. Raises `PeerError`; the peer may have it all the same."""
        if self.num_waiting >= self._around.config.max_queued_payloads:
            raise PeerError(self._peer, f"{self.num_waiting} payloads wait for it already")
        failed_opens = self._failed_opens
        self.num_waiting += 1
        try:
            for _ in range(MAX_SENDS - 1):
                if await self._try(failed_opens, kind, head, data):
                    return
            if not await self._try(failed_opens, kind, head, data):
                raise PeerError(self._peer, f"the stream broke {MAX_SENDS} times amid one payload")
        finally:
            self.num_waiting -= 1

    async def _try(self, failed_opens: int, kind: Kind, head: bytes, data: memoryview) -> bool:
        """Whether it has arrived; False where the connection broke and another one may do."""
        stream: Stream | None = None
        try:
            async with self._turn:
                if failed_opens != self._failed_opens:
                    # The peer was found out of reach while this one waited: it need not find out again.
                    raise PeerError(self._peer, self._reason)
                stream = await self._open()
                await self._write(stream, kind, head, data)
                number = stream.num_begun
            await stream.received(number)
        except PeerError:
            if stream is None or not stream.may_go_on:
                raise
            return False
        return True

    async def open_ahead(self) -> None:
        """Open the stream before there is something to send, if nothing is being sent or opened."""
        if not self._turn.locked():
            with contextlib.suppress(PeerError):  # counted where it arose; who has something to send tries again
                async with self._turn:
                    await self._open()

    async def _open(self) -> Stream:
        try:
            return await self.line.open()
        except PeerError as error:
            self._failed_opens += 1
            self._reason = error.reason
            raise

    async def _write(self, stream: Stream, kind: Kind, head: bytes, data: memoryview) -> None:
        count, size = self._around.hooks.on_bytes, self._around.config.chunk_bytes
        pace = self._around.hooks.pace_out
        stream.num_begun += 1
        self._around.hooks.on_sending(1)
        try:
            await stream.write(head)
            count(kind, "out", len(head))
            for position in range(0, len(data), size):
                frame = encode_chunk(position, data[position : position + size])
                if pace is not None:
                    await pace(len(frame))
                await stream.write(frame)
                count(kind, "out", len(frame))
        except BaseException:
            stream.close("a payload was broken off")
            raise
        finally:
            self._around.hooks.on_sending(-1)

    def close(self, reason: str) -> None:
        """For good; sends raise `PeerError`."""
        self.line.close(reason)
