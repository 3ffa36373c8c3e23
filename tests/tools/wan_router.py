"""The middle of an emulated WAN, in a process of its own: `python -m tests.tools.wan_router PARENT LINK TUN...`.

Each TUN descriptor is a peer's access link. A packet read there comes out at the peer whose number its destination address
ends in: when both links have had time for it, and a delay later. TUN's offload is on: the kernel hands over, and takes, up to
64 kB of a TCP stream at once, with a header that says in which packets it would have gone; they are charged as those. A tenth
of a core carries 100 Mbit/s; what is not modelled is that the packets of a bundle arrive together.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from types import FrameType

from node.demo.child import die_with_parent

NETWORK = IPv4Network("10.88.0.0/24")
OFFLOAD_HEADER = struct.Struct("=BBHHHH")
"""Linux' virtio_net_hdr: flags, kind of bundle, header bytes, payload bytes of a packet, where the checksum begins, offset."""
MAX_READ_BYTES = OFFLOAD_HEADER.size + (1 << 16)
MAX_READS = 32
"""From one peer before others have their turn."""


@dataclass(frozen=True, slots=True)
class Link:
    """Every peer's access link. `rate`: bytes per second in each direction, headers included; `queue_s`: how long a packet may
    wait for a link before it is dropped; `loss`: the share of packets that vanish."""

    delay_s: float = 0.02
    rate: float = 100e6 / 8
    queue_s: float = 0.2
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a bundle of packets is on the wire."""

    num_bytes: int
    num_packets: int


@dataclass(slots=True)
class Schedule:
    """When packets arrive. Knows nothing of sockets; time comes in."""

    link: Link
    chance: random.Random
    num_packets: int = 0
    num_dropped: int = 0
    _up_free_at: dict[int, float] = field(default_factory=dict)
    _down_free_at: dict[int, float] = field(default_factory=dict)

    def crossed(self, sender: int, load: Load, now: float) -> float | None:
        """When a bundle that is sent now is at the receiver's link; None where it is dropped. A bundle is lost whole, as often
        as one of its packets would be."""
        self.num_packets += load.num_packets
        begins = max(now, self._up_free_at.get(sender, now))
        if begins - now > self.link.queue_s or self.chance.random() < 1 - (1 - self.link.loss) ** load.num_packets:
            self.num_dropped += load.num_packets
            return None
        self._up_free_at[sender] = begins + load.num_bytes / self.link.rate
        return self._up_free_at[sender] + self.link.delay_s

    def arrived(self, receiver: int, load: Load, now: float) -> float | None:
        """When a bundle that has crossed now is through the receiver's link; None where it is dropped. To be asked in the order
        in which bundles cross: none waits for one that is still on its way."""
        came = max(now, self._down_free_at.get(receiver, 0.0) + load.num_bytes / self.link.rate)
        if came - now > self.link.queue_s:
            self.num_dropped += load.num_packets
            return None
        self._down_free_at[receiver] = came
        return came


def weigh(frame: bytes) -> Load:
    """Of what was read from a TUN: a bundle's packets each carry the headers."""
    _, kind, _, payload, transport_at, _ = OFFLOAD_HEADER.unpack_from(frame)
    whole = len(frame) - OFFLOAD_HEADER.size
    if not kind or not payload:
        return Load(whole, 1)
    headers = transport_at + 4 * (frame[OFFLOAD_HEADER.size + transport_at + 12] >> 4)
    num_packets = max(1, -(-(whole - headers) // payload))
    return Load(whole + (num_packets - 1) * headers, num_packets)


def receiver_of(frame: bytes, num_peers: int) -> int | None:
    """The peer that the packet is for; None for nobody's."""
    packet = memoryview(frame)[OFFLOAD_HEADER.size :]
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    peer = int(IPv4Address(bytes(packet[16:20]))) - int(NETWORK.network_address) - 1
    return peer if 0 <= peer < num_peers else None


class Router:
    """Carries packets between the TUNs until it is stopped."""

    def __init__(self, link: Link, tuns: list[int]) -> None:
        self.schedule = Schedule(link, random.Random(0))
        self._tuns, self._peers = tuns, {tun: peer for peer, tun in enumerate(tuns)}
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self.stopped = False

    def run(self) -> None:
        """Until `stopped`."""
        poll = select.epoll()
        for tun in self._tuns:
            os.set_blocking(tun, False)
            poll.register(tun, select.EPOLLIN)
        while not self.stopped:
            wait_s = min(0.1, self._due[0][0] - time.monotonic()) if self._due else 0.1
            for tun, _ in poll.poll(max(0.0, wait_s)):
                self._take(tun)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                at, _, go_on = heapq.heappop(self._due)
                go_on(at)

    def _at(self, when: float | None, go_on: Callable[[float], None]) -> None:
        if when is not None:
            self._number += 1
            heapq.heappush(self._due, (when, self._number, go_on))

    def _take(self, tun: int) -> None:
        sender = self._peers[tun]
        for _ in range(MAX_READS):
            try:
                frame = os.read(tun, MAX_READ_BYTES)
            except BlockingIOError:
                return
            receiver = receiver_of(frame, len(self._tuns))
            if receiver is not None:
                load = weigh(frame)
                at = self.schedule.crossed(sender, load, time.monotonic())
                self._at(at, partial(self._queue, receiver, load, frame))

    def _queue(self, receiver: int, load: Load, frame: bytes, now: float) -> None:
        self._at(self.schedule.arrived(receiver, load, now), partial(self._deliver, receiver, frame))

    def _deliver(self, receiver: int, frame: bytes, _now: float) -> None:
        try:
            os.write(self._tuns[receiver], frame)
        except BlockingIOError:
            self.schedule.num_dropped += 1


def main() -> None:
    """See the module. When it is told to end, one line of JSON says what it did."""
    die_with_parent(int(sys.argv[1]))
    router = Router(Link(**json.loads(sys.argv[2])), [int(text) for text in sys.argv[3:]])

    def stop(_signal: int, _frame: FrameType | None) -> None:
        router.stopped = True

    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)
    router.run()
    schedule = router.schedule
    told = {"packets": schedule.num_packets, "dropped": schedule.num_dropped, "cpu_s": round(time.process_time(), 2)}
    print(json.dumps(told | asdict(schedule.link)), flush=True)


if __name__ == "__main__":
    main()
