"""An observer's view of one node after another: a connection to each stays open from one look to the next."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from grpc import aio

from node.ports import PeerError
from node.transport import swarm_pb2_grpc
from node.transport.channel import Security, peer_faults, within
from node.transport.config import Observation, ObserveRequest
from node.transport.library import MAX_PART_BYTES
from node.transport.wire import to_pb
from protocol.messages import Contact

LOOK_S = 5.0
"""For the connection and the answer."""


class Sight:
    """Not more than `max_open` connections at once; `close` ends them."""

    def __init__(self, security: Security, max_open: int = 512) -> None:
        self._security = security
        self._max_open = max_open
        self._open: dict[Contact, aio.Channel] = {}

    async def look(self, node: Contact, asked: ObserveRequest) -> Observation:
        """What the node tells: a stranger's bytes, of bounded size. Raises `PeerError`."""
        with peer_faults(node.peer, f"cannot look at {node.address}"):
            try:
                channel = self._open.pop(node, None)
                if channel is None:
                    channel = await within(LOOK_S, self._security.channel(node.address, node.peer))
                self._open[node] = channel
                pb = await within(LOOK_S, swarm_pb2_grpc.LibraryStub(channel).Observe(to_pb(asked)))
            except BaseException:
                await self.forget(node)
                raise
        await self._close_oldest()
        if max(map(len, (pb.status, pb.metrics, pb.chronicle, pb.proofs))) > MAX_PART_BYTES:
            raise PeerError(node.peer, f"{node.address} tells more than {MAX_PART_BYTES} bytes")
        return Observation(pb.status, pb.metrics, pb.chronicle, pb.proofs)

    async def forget(self, node: Contact) -> None:
        """End the connection to it, if there is one."""
        if (channel := self._open.pop(node, None)) is not None:
            await channel.close()

    async def close(self) -> None:
        """End all connections."""
        with suppress(asyncio.InvalidStateError):
            await asyncio.gather(*(self.forget(node) for node in list(self._open)))

    async def _close_oldest(self) -> None:
        while len(self._open) > self._max_open:
            await self.forget(next(iter(self._open)))
