"""Dialling back: a peer that comes from outside asks whether it is reached at the address in its lease.

Bounded, and of no use for scanning: only a proven peer is dialled, only at its own lease's address, `MAX_DIALS` at once and
each caller once in `PAUSE_S`. Reached means that this very peer answered there, by its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from node.ports import Clock, PeerError
from node.reach import host_of, is_private
from node.transport.config import DialBackAnswer
from protocol.ids import PeerId
from protocol.messages import Contact

DIAL_S = 5.0
PAUSE_S = 5.0
MAX_DIALS = 4
MAX_REMEMBERED = 1024

Claims = Callable[[PeerId, str], Awaitable[bool]]
"""Whether this address is in the peer's lease."""
Prove = Callable[[Contact], Awaitable[None]]
"""Dials; raises `PeerError` where that peer does not answer there."""


class DialBack:
    """The answering side."""

    is_near = False
    """Private addresses may be dialled. In a public run nobody may look into this node's own network by it."""

    def __init__(self, claims: Claims, prove: Prove, clock: Clock) -> None:
        self._claims, self._prove, self._clock = claims, prove, clock
        self._dialled_at: dict[PeerId, float] = {}
        self._num_dials = 0

    async def answer(self, caller: PeerId, address: str, seen_host: str) -> DialBackAnswer:
        """For a caller whose peer id is proven. Takes little more than `DIAL_S`."""

        def not_dialled(sentence: str) -> DialBackAnswer:
            return DialBackAnswer(False, False, sentence, seen_host)

        if not address:
            return not_dialled("no address to dial")
        now = self._clock.monotonic()
        if now - self._dialled_at.pop(caller, float("-inf")) < PAUSE_S:
            self._note(caller, now)
            return not_dialled(f"a caller is dialled once in {PAUSE_S:g} s")
        if self._num_dials >= MAX_DIALS:
            return not_dialled(f"{MAX_DIALS} others are being dialled; try another peer")
        self._note(caller, now)
        self._num_dials += 1
        try:
            return await self._dial(Contact(caller, address), seen_host)
        finally:
            self._num_dials -= 1

    def _note(self, caller: PeerId, now: float) -> None:
        self._dialled_at[caller] = now
        while len(self._dialled_at) > MAX_REMEMBERED:
            del self._dialled_at[next(iter(self._dialled_at))]

    async def _dial(self, caller: Contact, seen_host: str) -> DialBackAnswer:
        if not await self._claims(caller.peer, caller.address):
            return DialBackAnswer(False, False, "only the address in the caller's own lease is dialled", seen_host)
        if not self.is_near and is_private(host_of(caller.address)):
            return DialBackAnswer(False, False, "private addresses are not dialled in a public run", seen_host)
        try:
            async with asyncio.timeout(DIAL_S):
                await self._prove(caller)
        except PeerError as error:
            return DialBackAnswer(True, False, error.reason, seen_host)
        except TimeoutError:
            return DialBackAnswer(True, False, f"no answer from {caller.address} within {DIAL_S:g} s", seen_host)
        return DialBackAnswer(True, True, "", seen_host)
