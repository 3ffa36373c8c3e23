"""What has arrived at a node, and from whom; the same for sockets and for the in-memory network."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from node.ports import MessageHandler, Payload, PayloadHandler, PayloadPool
from protocol.ids import PeerId
from protocol.messages import Message, PayloadHeader


class Arrivals:
    """Hands messages and payloads to the node and remembers when each peer was heard.

    `clock` gives seconds; `max_peers` bounds the memory of who was heard. `counts` has a bounded set of keys.
    """

    def __init__(self, pool: PayloadPool, clock: Callable[[], float], max_peers: int) -> None:
        self.pool = pool
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._max_peers = max_peers
        self._heard_at: dict[PeerId, float] = {}
        self._on_message: MessageHandler | None = None
        self._on_payload: PayloadHandler | None = None
        self._closed = False

    def on_message(self, handler: MessageHandler) -> None:
        """Set who gets control messages."""
        self._on_message = handler

    def on_payload(self, handler: PayloadHandler) -> None:
        """Set who gets whole payloads."""
        self._on_payload = handler

    def note(self, peer: PeerId) -> None:
        """Bytes came from this peer just now."""
        self._heard_at.pop(peer, None)  # puts it last, so that the first one is the longest silent
        self._heard_at[peer] = self._clock()
        if len(self._heard_at) > self._max_peers:
            del self._heard_at[next(iter(self._heard_at))]

    def heard(self) -> dict[PeerId, float]:
        """Seconds since the last byte of each peer."""
        now = self._clock()
        return {peer: now - at for peer, at in self._heard_at.items()}

    def forget(self, peer: PeerId) -> None:
        """Stop measuring this peer's silence, until it is heard again."""
        self._heard_at.pop(peer, None)

    def message(self, peer: PeerId, incarnation: int, message: Message) -> None:
        """A checked message arrived."""
        if self._on_message is not None and not self._closed:
            self._on_message(peer, incarnation, message)

    def payload(self, peer: PeerId, header: PayloadHeader, payload: Payload) -> None:
        """A whole payload arrived: it gets a handle, which the handler owns."""
        if self._on_payload is not None and not self._closed:
            self._on_payload(peer, header, self.pool.put(payload), payload.data.nbytes)

    def own_message(self, peer: PeerId, incarnation: int, message: Message) -> None:
        """This node speaks to itself; arrives with the loop's next round."""
        asyncio.get_running_loop().call_soon(self.message, peer, incarnation, message)

    def own_payload(self, peer: PeerId, header: PayloadHeader, handle: int) -> None:
        """The same for a payload: one more hold on the same buffer, which the handler owns."""
        self.pool.hold(handle)
        asyncio.get_running_loop().call_soon(self._deliver_own, peer, header, handle)

    def _deliver_own(self, peer: PeerId, header: PayloadHeader, handle: int) -> None:
        if self._on_payload is None or self._closed:
            self.pool.release(handle)
        else:
            self._on_payload(peer, header, handle, self.pool.get(handle).data.nbytes)

    def close(self) -> None:
        """Deliver nothing from now on."""
        self._closed = True
