"""Who may call this node: peers with a lease in the run's directory, which only the owner of a peer's key can sign, and, in
a run by invitation, with a ticket of the organiser in it.

The directory is a hint and may be late: a peer once seen stays welcome for `KEEP_S`, so that nobody is cut off by a lapse of
the directory; one that is not known yet waits while the directory is read again, at most once per `PAUSE_S` for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from node.admission import Judge, everybody
from node.ports import Clock, Lease
from protocol.ids import PeerId

KEEP_S = 2 * 3600.0
PAUSE_S = 1.0
"""Between two readings for the sake of strangers."""
MAX_WAITING = 64
"""Callers that wait for a reading at once; one more is told to come back."""
MAX_KNOWN = 4096

ReadLeases = Callable[[], Awaitable[list[Lease]]]


class Guests:
    """The peers that are known to have a lease. `me` itself is welcome: only it has its key."""

    def __init__(self, me: PeerId, clock: Clock) -> None:
        self._me = me
        self._clock = clock
        self._read: ReadLeases | None = None
        self._judge: Judge = everybody
        self._until: dict[PeerId, float] = {}
        self._unwelcome: dict[PeerId, str] = {}
        self._address: dict[PeerId, str] = {}
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._tried_at = self._read_at = float("-inf")

    def open(self, read: ReadLeases) -> None:
        """From now on leases can be read; before, only `note` makes anybody known."""
        self._read = read

    def judge_by(self, judge: Judge) -> None:
        """The manifest is known: from now on leases are judged like this, also those that were read before."""
        self._judge = judge
        self._until.clear()

    def note(self, leases: Iterable[Lease]) -> list[Lease]:
        """Leases were read from the directory: their peers are known; those that leave are no longer.

        Returns the leases that count: those of peers who may take part.
        """
        until, welcome = self._clock.monotonic() + KEEP_S, []
        for lease in leases:
            self._forget(lease.peer)  # puts it last, so that the first one is the longest unseen
            why = self._judge(lease)
            if why:
                self._unwelcome[lease.peer] = why
                continue
            welcome.append(lease)
            if not lease.leaving:
                self._until[lease.peer], self._address[lease.peer] = until, lease.address
        for known in (self._until, self._unwelcome):
            while len(known) > MAX_KNOWN:
                self._forget(next(iter(known)))
        return welcome

    def flaw_of(self, peer: PeerId) -> str:
        """What is wrong with the lease of a peer that is not admitted; '' where it has none."""
        return self._unwelcome.get(peer, "")

    async def admits(self, peer: PeerId) -> bool:
        """Whether this proven peer has a lease; reads the directory, if need be, as it is after the call."""
        return await self._holds(lambda: self._knows(peer))

    async def claims(self, peer: PeerId, address: str) -> bool:
        """Whether this peer's lease names this address; reads the directory as above."""
        return await self._holds(lambda: self._knows(peer) and self._address.get(peer) == address)

    async def _holds(self, is_true: Callable[[], bool]) -> bool:
        asked_at = self._clock.monotonic()
        if is_true():
            return True
        if self._read is None or self._num_waiting >= MAX_WAITING:
            return False
        self._num_waiting += 1
        try:
            async with self._turn:
                if not is_true() and self._read_at < asked_at:
                    await self._look(self._read)
                return is_true()
        finally:
            self._num_waiting -= 1

    async def _look(self, read: ReadLeases) -> None:
        await self._clock.sleep(max(0.0, self._tried_at + PAUSE_S - self._clock.monotonic()))
        begun_at = self._tried_at = self._clock.monotonic()
        leases = await read()
        self._read_at = begun_at  # only now: a reading that was cancelled tells those who wait nothing
        self.note(leases)

    def _forget(self, peer: PeerId) -> None:
        self._until.pop(peer, None)
        self._address.pop(peer, None)
        self._unwelcome.pop(peer, None)

    def _knows(self, peer: PeerId) -> bool:
        return peer == self._me or self._until.get(peer, float("-inf")) > self._clock.monotonic()
