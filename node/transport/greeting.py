"""Who may open a stream to whom, and where peers are. Pure; the same for sockets and for the in-memory network."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.ports import UnusableError
from node.transport.checks import FaultCode, WireError
from node.transport.config import Hello, TransportConfig, split_address
from protocol.ids import PeerId

REFUSALS: frozenset[FaultCode] = frozenset({"version", "run", "stale"})
"""Faults of a Hello that say: this node has no place in the run as it is. Others tell of a wrong address, or of bad luck."""


def admit(config: TransportConfig, hello: Hello) -> None:
    """The listener's judgement of a Hello. Raises `WireError` with a sentence for the person at the other end."""
    if hello.protocol_version != config.protocol_version:
        raise WireError(
            "version",
            f"this run speaks protocol version {config.protocol_version}, you speak {hello.protocol_version}:"
            " install the version of regrow that the run was started with",
        )
    if hello.run_id != config.run_id:
        raise WireError("run", f"this node belongs to run {config.run_id}, not to {hello.run_id[:64]}")
    if hello.to != config.peer:
        raise WireError("peer", f"peer {hello.to[-8:]} is not here: this is {config.peer[-8:]}")
    if not hello.peer or hello.peer == config.peer:
        raise WireError("peer", f"{hello.peer[-8:] or 'nobody'} is no peer that could call here")
    if hello.address:
        try:
            port = split_address(hello.address, "address")[1]
        except UnusableError as error:
            raise WireError("value", f"Hello.{error}") from None
        if not port:
            raise WireError("value", f"Hello.address {hello.address!r} has port 0, where nobody can be reached")


@dataclass(slots=True)
class AddressBook:
    """Where peers are reached: what the node was told last, or what they told themselves in a newer incarnation."""

    limit: int
    _entries: dict[PeerId, tuple[int, str]] = field(default_factory=dict)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._entries

    def __getitem__(self, peer: PeerId) -> str:
        return self._entries[peer][1]

    def introduce(self, peer: PeerId, address: str) -> bool:
        """The node knows where the peer is; returns whether that is news."""
        incarnation, known = self._entries.get(peer, (-1, ""))
        self._entries[peer] = (incarnation, address)
        return address != known

    def learn(self, peer: PeerId, incarnation: int, address: str) -> bool:
        """The peer says so itself; believed once per incarnation. Returns whether that is news."""
        seen, known = self._entries.get(peer, (-1, ""))
        if not address or incarnation <= seen or (peer not in self._entries and len(self._entries) >= self.limit):
            return False
        self._entries[peer] = (incarnation, address)
        return address != known

    def forget(self, peer: PeerId) -> None:
        """It left."""
        self._entries.pop(peer, None)
