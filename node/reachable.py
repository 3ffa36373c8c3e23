"""A newcomer finds out whether, and where, peers of the run reach it, before it wishes for a stage.

Where it cannot know its address (a router in between), peers tell from where they see it calling. Then up to `MAX_ASKED` peers
are asked to dial back; one that gets through is enough. That nobody gets through is the user's to mend; that nobody could try
is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from node.dial_back import PAUSE_S
from node.ports import Clock, PeerError, UnusableError
from node.reach import is_private, joined
from node.transport.config import DialBackAnswer
from protocol.addresses import parse_host_port
from protocol.messages import Contact

MAX_ASKED = 3
CANNOT_BE_REACHED = 3


class AsksBack(Protocol):
    """How a peer is asked."""

    async def dial_back(self, peer: Contact, own: str) -> DialBackAnswer:
        """Does it reach this node at `own`? Raises `PeerError`."""


@dataclass(slots=True)
class Reachable:
    """`show` puts an address into this node's lease and returns once peers can read it there."""

    asks: AsksBack
    show: Callable[[str], Awaitable[None]]
    say: Callable[[str], None]
    rng: Random
    clock: Clock
    grpc_port: int
    dht_port: int
    is_lan: bool = False
    """Private addresses will do."""
    _failures: dict[str, None] = field(default_factory=dict)
    """In the order in which they were heard."""

    async def settle(self, address: str, peers: Sequence[Contact]) -> str:
        """HOST:PORT at which peers reach this node: `address`, or, where that is '', where they see it. Said and left at that
        where no peer could try. Raises `UnusableError(3)` where peers tried and none got through."""
        asked = self.rng.sample(list(peers), min(MAX_ASKED, len(peers)))
        choices = [address] if address else await self._seen_at(asked)
        for number, choice in enumerate(choices):
            if number:
                await self.clock.sleep(PAUSE_S)  # nobody is dialled more often
            await self.show(choice)
            if await self._is_reached(choice, asked):
                self.say(f"peers reach this node at {choice}")
                return choice
        if not choices or self._failures:
            raise UnusableError(CANNOT_BE_REACHED, self._advice(address or ", ".join(choices)))
        self.say(f"no peer could try whether it reaches this node at {choices[-1]}; if none does, see --announce")
        return choices[-1]

    async def _seen_at(self, peers: Sequence[Contact]) -> list[str]:
        """Addresses at which peers see this node, that of most of them first."""
        seen: Counter[str] = Counter()
        for peer in peers:
            try:
                host = (await self.asks.dial_back(peer, "")).seen_host
            except PeerError as error:
                self.say(f"peer {peer.peer[-8:]} does not tell from where it is called: {error.reason}")
                continue
            if host and (self.is_lan or not is_private(host)):
                seen[joined(host, self.grpc_port)] += 1
            elif host:
                self._failures[f"peer {peer.peer[-8:]} sees it at the private address {host}"] = None
        return [address for address, _ in seen.most_common()]

    async def _is_reached(self, address: str, peers: Sequence[Contact]) -> bool:
        self.say(f"asking peers whether they reach this node at {address}")
        for peer in peers:
            try:
                answer = await self.asks.dial_back(peer, address)
            except PeerError as error:
                self.say(f"peer {peer.peer[-8:]} does not dial back: {error.reason}")
                continue
            if answer.reached:
                return True
            if answer.dialled:
                self._failures[answer.sentence] = None
            else:
                self.say(f"peer {peer.peer[-8:]} does not dial back: {answer.sentence}")
        return False

    def _advice(self, address: str) -> str:
        where = f"at {address}" if address else "at any address that this node knows of"
        why = "; ".join(self._failures) or "no peer says from where it is called"
        port = parse_host_port(address)[1] if address and ", " not in address else self.grpc_port
        return (
            f"no peer reaches this node {where} ({why[:600]}): let TCP ports {port} (streams) and {self.dht_port} (directory)"
            " through to this machine (on a router: forward them), or say with --listen, --dht-port and --announce HOST:PORT"
            " which others are; for a run inside one network give --lan"
        )
