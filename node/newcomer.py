"""A node that has an invite and does not know the run yet: it shows itself, then asks who is there for the manifest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Protocol

from node.ports import Clock, Directory, Lease, PeerError, UninvitedError, UnusableError
from protocol.invite import Invite
from protocol.manifest import Manifest, from_mapping
from protocol.messages import Contact

LEASE_S = 15.0
ASK_AGAIN_S = 1.0
ROUNDS = 3
"""So often in a row somebody must say that a ticket is needed, and nobody give the manifest: one alone may lie, or err."""


class Asks(Protocol):
    """How a peer is asked."""

    async def manifest(self, peer: Contact, digest: str) -> bytes:
        """The canonical manifest with this digest. Raises `PeerError`."""


class Newcomer:
    """`lease` is what it claims: no stage, and not to coordinate; the expiry is set with each renewal.

    `flaw` is what it says at its end if peers want a ticket; '' where it has a good one, which they have only to see yet."""

    def __init__(
        self, lease: Lease, directory: Directory, asks: Asks, clock: Clock, say: Callable[[str], None], flaw: str = ""
    ) -> None:
        self._lease, self._directory, self._asks, self._clock, self._say = lease, directory, asks, clock, say
        self._flaw = flaw
        self._rounds_uninvited = 0
        self._is_shown = asyncio.Event()

    async def show(self) -> None:
        """Renew the lease until cancelled. Peers answer only whom they find in the directory, so this comes first."""
        while True:
            await self._directory.publish(replace(self._lease, expires=self._clock.wall() + LEASE_S))
            self._is_shown.set()
            await self._clock.sleep(LEASE_S / 3)

    async def hide(self) -> None:
        """A tombstone over the lease, for one who only looked; `show` must have been cancelled."""
        if self._is_shown.is_set():
            expires = self._clock.wall() + LEASE_S
            await self._directory.publish(replace(self._lease, leaving=True, expires=expires))

    async def move(self, address: str) -> None:
        """From now on it is reached at this HOST:PORT; returns when the directory was told."""
        self._lease = replace(self._lease, address=address)
        await self._directory.publish(replace(self._lease, expires=self._clock.wall() + LEASE_S))

    async def peers(self, why: str, look: Callable[[], Awaitable[object]]) -> list[Lease]:
        """Who is there; waits until somebody is. `why` is said while nobody is, `look` awaited before each try."""
        await self._is_shown.wait()
        while not (leases := await self._others()):
            self._say(why)
            await look()
            await self._clock.sleep(ASK_AGAIN_S)
        return leases

    async def manifest(self, invite: Invite) -> tuple[Manifest, list[Lease]]:
        """The run's manifest, checked against the invite's digest, and who was there; waits until somebody gives it.

        Raises `UnusableError(4)` where peers want a ticket and there is none that they could take.
        """
        await self._is_shown.wait()
        while True:
            leases = await self._others()
            found = await self._first_manifest(leases, invite)
            if found is not None:
                return found, leases
            if not leases:
                self._say("waiting for a peer of the run")
            await self._clock.sleep(ASK_AGAIN_S)

    async def _others(self) -> list[Lease]:
        return [x for x in await self._directory.leases() if x.address and not x.leaving and x.peer != self._lease.peer]

    async def _first_manifest(self, leases: Iterable[Lease], invite: Invite) -> Manifest | None:
        uninvited = False
        for lease in leases:
            try:
                found = await self._asks.manifest(Contact(lease.peer, lease.address), invite.manifest_digest)
                return from_mapping(json.loads(found))
            except (PeerError, ValueError) as error:
                uninvited |= isinstance(error, UninvitedError)
                self._say(f"peer {lease.peer[-8:]} does not give the manifest: {error}")
        self._rounds_uninvited = self._rounds_uninvited + 1 if uninvited else 0
        if self._flaw and self._rounds_uninvited >= ROUNDS:
            raise UnusableError(4, self._flaw)
        return None
