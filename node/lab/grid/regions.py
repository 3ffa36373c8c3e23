"""Links between regions, and what is copied over them: as much as the large model's tensors would be."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from node.lab.grid.plan import MIB, Rig
from node.sim.donors import MemoryLibrary
from node.sim.network import Network, Weather
from protocol.ids import PeerId
from protocol.messages import PayloadHeader, PipeHeader, ReduceHeader

STORE = "store of "


class Regions(Network):
    """Latency and rate by pair of regions. A node has one line up and one down: what it sends to two others goes one after the
    other, and so does what it gets from two."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        super().__init__(rng, Weather())
        self._rig = rig
        self.place: dict[PeerId, str] = {}
        """Where each node is."""

    def latency(self, one: PeerId, other: PeerId) -> float:
        """See `Network`."""
        return self._rig.link(self._at(one), self._at(other)).latency_s

    def _seconds(self, sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, float]:
        seconds = num_bytes / (self._rig.link(self._at(sender), self._at(receiver)).mib_s * MIB)
        return seconds, seconds

    def _at(self, peer: PeerId) -> str:
        """The store has a line for each node: it is no bottleneck."""
        return self._rig.store if peer.startswith(STORE) else self.place[peer]


@dataclass(frozen=True, slots=True)
class Scale:
    """What bytes here are charged as."""

    activations: float
    weights: tuple[float, ...]

    def payload(self, header: PayloadHeader, num_bytes: int) -> int:
        """Of one payload."""
        if isinstance(header, PipeHeader):
            return round(num_bytes * self.activations)
        return self.state(header.stage if isinstance(header, ReduceHeader) else 1, num_bytes)

    def state(self, stage: int, num_bytes: int) -> int:
        """Of weights, moments or gradients of a stage."""
        return round(num_bytes * self.weights[stage])

    def piece(self, stage: int, num_elements: int) -> int:
        """Elements here that stand for so many of the large model: a stage comes in as many pieces as that one's would."""
        return max(1, round(num_elements / self.weights[stage]))


@dataclass(slots=True)
class RegionLibrary(MemoryLibrary):
    """Copies share the lines with all else."""

    links: Regions | None = None
    scale: Scale | None = None
    counted: Counter[str] = field(default_factory=Counter)
    """Bytes by kind."""

    async def travel(self, stage: int, num_bytes: int, giver: PeerId, taker: PeerId) -> None:
        """See `MemoryLibrary`."""
        assert self.links and self.scale, "it is told at once"
        if num_bytes:
            await self._carry("transfer", self.scale.state(stage, num_bytes), giver, taker)
        else:
            await asyncio.sleep(self.links.latency(giver, taker))

    async def _carry(self, kind: str, num_bytes: int, giver: PeerId, taker: PeerId) -> None:
        assert self.links, "it is told at once"
        now = asyncio.get_running_loop().time()
        [arrives] = self.links.payload(giver, taker, now, num_bytes).arrivals
        self.counted[kind] += num_bytes
        await asyncio.sleep(arrives - now)

    async def saved(self, peer: PeerId, stage: int, num_bytes: int) -> None:
        """The time until a node's stage is in the store."""
        assert self.scale, "it is told at once"
        await self._carry("save", self.scale.state(stage, num_bytes), peer, STORE + peer)

    async def loaded(self, peer: PeerId, stage: int, num_bytes: int) -> None:
        """The time until it has one from there."""
        assert self.scale, "it is told at once"
        await self._carry("restore", self.scale.state(stage, num_bytes), STORE + peer, peer)


@dataclass(slots=True)
class StoreLine:
    """`node.savings.InThread` of a node: calls at once, and takes the time that the bytes take to or from the store."""

    library: RegionLibrary
    peer: PeerId

    async def __call__(self, what: Any, /, *args: Any) -> Any:
        name, begun = what.__name__, self.library.links
        assert begun, "it is told at once"
        if name == "save":
            file, state = args[0], args[2]
            await self.library.saved(self.peer, file.stage, len(memoryview(state).cast("B")))
        else:
            await asyncio.sleep(2 * begun.latency(self.peer, STORE + self.peer))
        found = what(*args)
        if name == "load":
            await self.library.loaded(self.peer, args[0], len(found[1]))
        return found
