"""Bytes of control messages on the wire, as the transport encodes them: by node, direction and kind, heartbeats apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from node.transport.frames import encode_message
from node.transport.names import Names
from protocol.ids import PeerId
from protocol.messages import Decide, Heartbeat, Message, Propose

FRAME_BYTES = 14
"""Around each message: gRPC's prefix (5) and the header of an HTTP/2 DATA frame (9)."""


@dataclass(slots=True)
class Traffic:
    """Every message is encoded, so it is for a few steps of a large swarm. A record is a kind of its own. Each ordered pair of
    nodes has one stream, which never breaks."""

    sent: defaultdict[PeerId, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    received: defaultdict[PeerId, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _counts: Counter[str] = field(default_factory=Counter)
    _names: defaultdict[tuple[PeerId, PeerId], Names] = field(default_factory=lambda: defaultdict(Names))

    def note(self, sender: PeerId, receiver: PeerId, message: Message) -> None:
        """The message goes over the wire; what a node says to itself does not."""
        if sender != receiver:
            kind, size = kind_of(message), len(encode_message(message, self._names[sender, receiver])) + FRAME_BYTES
            self.sent[sender][kind] += size
            self.received[receiver][kind] += size
            self._counts[kind] += 1

    def forget(self) -> None:
        """Count from here on. What the streams have named stays known."""
        self.sent.clear()
        self.received.clear()
        self._counts.clear()

    def end(self) -> None:
        """Nothing more is counted."""
        self._names.clear()

    def mean(self, kind: str) -> float:
        """Bytes of one message."""
        return sum(sent[kind] for sent in self.sent.values()) / max(1, self._counts[kind])

    def of(self, peers: Iterable[PeerId]) -> Counter[str]:
        """Bytes that these nodes sent and received, by kind; those without heartbeats together as 'control'."""
        total: Counter[str] = Counter()
        for peer in peers:
            total.update(self.sent[peer])
            total.update(self.received[peer])
        total["control"] = sum(total.values()) - total[Heartbeat.__name__]
        return total


def kind_of(message: Message) -> str:
    """Name of a message's class, and of its record's."""
    name = type(message).__name__
    return f"{name} {type(message.record).__name__}" if isinstance(message, Decide | Propose) else name
