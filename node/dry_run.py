"""`regrow join --dry-run`: what joining would mean for this machine, told without taking part."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from node.ports import Clock, Lease, PeerError
from node.transport.config import Description
from protocol.forecast import Forecast, Machine, forecast
from protocol.manifest import Manifest
from protocol.messages import Contact
from protocol.sizes import Traffic, copied_stage, human_bytes, model_parameters, num_copies

MAX_ASKED = 32
"""Peers that are asked at once."""
PACE_S = 20.0
"""How long steps are watched for their pace."""
LOOK_S = 0.5
ENOUGH_COMMITS = 6


class Describes(Protocol):
    """How a peer is asked what it holds."""

    async def describe(self, peer: Contact) -> Description:
        """Raises `PeerError`."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Who holds what: by the peers' own words where they answer, else by their leases."""

    num_peers: int
    held: dict[int, int]
    """Active replicas by stage, as far as can be seen."""
    step: int
    fastest: Contact | None
    """The answering peer that is furthest."""


async def survey(leases: Sequence[Lease], asks: Describes, manifest: Manifest) -> Survey:
    """Asks up to `MAX_ASKED` peers at once; the rest count by their leases."""
    stages = {lease.peer: lease.stages for lease in leases}
    steps: dict[Contact, int] = {}

    async def ask(peer: Contact) -> None:
        try:
            told = (await asks.describe(peer)).stages
        except PeerError:
            return
        stages[peer.peer] = tuple(held.stage for held in told)
        steps[peer] = max((held.step for held in told), default=0)

    async with asyncio.TaskGroup() as group:
        for lease in leases[:MAX_ASKED]:
            group.create_task(ask(Contact(lease.peer, lease.address)), name=f"ask {lease.peer[-8:]}")
    fastest = max(steps, key=lambda peer: (steps[peer], peer.peer), default=None)
    return Survey(len(leases), _active(stages.values(), manifest), steps[fastest] if fastest else 0, fastest)


def _active(held: Iterable[tuple[int, ...]], manifest: Manifest) -> dict[int, int]:
    """Replicas by stage. Who holds stage 0 beside another one has an embedding copy, where the run keeps such; where each stage
    has a copy, one that goes with another one that is held is that. Two stages may be copies of each other, each beside the
    other one (exact shadows, of an even number of stages): which one a node computes cannot be seen, but that it computes one,
    and that of several such nodes some compute each."""
    counts: Counter[int] = Counter()
    mutual: Counter[tuple[int, ...]] = Counter()
    for stages in held:
        if manifest.copies_stages:
            copies = {copied_stage(manifest, s) for s in stages}
            computed = [s for s in stages if s not in copies]
            counts.update(computed)
            if not computed:
                mutual[tuple(sorted(stages))] += 1
            continue
        is_copy = len(stages) > 1 and num_copies(manifest) > 0
        counts.update(stage for stage in stages if stage or not is_copy)
    for stages, num_nodes in mutual.items():
        counts.update(stages[number % len(stages)] for number in range(max(num_nodes, len(stages)) if stages else 0))
    return dict(counts)


async def pace(peer: Contact, asks: Describes, clock: Clock, limit_s: float = PACE_S) -> float:
    """Seconds per step, by watching the peer commit; 0 where it does not commit twice within `limit_s`."""
    deadline, seen = clock.monotonic() + limit_s, -1
    commits: list[tuple[float, int]] = []
    while clock.monotonic() < deadline and len(commits) < ENOUGH_COMMITS:
        try:
            told = await asks.describe(peer)
        except PeerError:
            break
        step = max((held.step for held in told.stages), default=0)
        if 0 <= seen < step:
            commits.append((clock.monotonic(), step))
        seen = max(seen, step)
        await clock.sleep(LOOK_S)
    if len(commits) < 2:
        return 0.0
    (began, first), (ended, last) = commits[0], commits[-1]
    return (ended - began) / (last - first)


async def look(
    manifest: Manifest, leases: Sequence[Lease], asks: Describes, clock: Clock, machine: Machine, wished: int
) -> Report:
    """Asks around; takes up to `PACE_S`."""
    seen = await survey(leases, asks, manifest)
    step_s = await pace(seen.fastest, asks, clock) if seen.fastest and seen.step else 0.0
    return Report(manifest, seen, machine, forecast(manifest, seen.held, machine, step_s, wished))


@dataclass(frozen=True, slots=True)
class Report:
    """What is told in the end."""

    manifest: Manifest
    seen: Survey
    machine: Machine
    told: Forecast

    @property
    def obstacle(self) -> str:
        """Why joining would fail here; '' where nothing speaks against it."""
        if self.told.choice.stage < 0:
            return f"this run has no stage for this machine: {self.told.choice.why}; see --memory-limit"
        if self.told.disk_bytes > self.machine.disk_bytes:
            room = f"{human_bytes(self.told.disk_bytes)} for token shards, and {human_bytes(self.machine.disk_bytes)} are free"
            return f"stage {self.told.choice.stage} needs {room}; choose another --state-dir"
        return ""

    def rows(self) -> list[tuple[str, str]]:
        """For people."""
        m, told, machine = self.manifest, self.told, self.machine
        stage = f"{told.choice.stage} ({told.choice.why})" if told.choice.stage >= 0 else f"none: {told.choice.why}"
        may_use = (
            f"this node may use {human_bytes(machine.memory_bytes)}" if machine.memory_bytes else "what is free is not known"
        )
        return [
            ("run", f"{m.run_id}, step {self.seen.step} of {m.last_step}, {self.seen.num_peers} peers"),
            ("model", f"{model_parameters(m):,} parameters in {m.num_stages} stages"),
            ("stage", stage),
            ("memory", f"about {human_bytes(told.need_bytes)} needed; {may_use}"),
            ("disk", f"{human_bytes(told.disk_bytes)} needed; {human_bytes(machine.disk_bytes)} free"),
            (
                "download",
                human_bytes(told.download_bytes) if self.seen.step else f"{human_bytes(told.disk_bytes)} before step 1",
            ),
            ("traffic", _traffic(told)),
        ]

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`; `hour_bytes` is null where the swarm's pace could not be learned."""
        told = self.told
        return {
            "run_id": self.manifest.run_id,
            "peers": self.seen.num_peers,
            "step": self.seen.step,
            "last_step": self.manifest.last_step,
            "parameters": model_parameters(self.manifest),
            "num_stages": self.manifest.num_stages,
            "stage": told.choice.stage if told.choice.stage >= 0 else None,
            "why": told.choice.why,
            "replicas": told.replicas,
            "need_bytes": told.need_bytes,
            "memory_bytes": self.machine.memory_bytes,
            "disk_bytes": told.disk_bytes,
            "free_disk_bytes": self.machine.disk_bytes,
            "download_bytes": told.download_bytes,
            "step_bytes": _in_out(told.step),
            "step_s": round(told.step_s, 3) if told.step_s else None,
            "hour_bytes": _in_out(told.hour) if told.step_s else None,
        }


def _in_out(traffic: Traffic) -> dict[str, int]:
    return {"in": traffic.bytes_in, "out": traffic.bytes_out}


def _traffic(told: Forecast) -> str:
    step = f"{human_bytes(told.step.bytes_in)} in and {human_bytes(told.step.bytes_out)} out per step"
    if not told.step_s:
        return f"{step}; the swarm's pace could not be learned now"
    hour = f"{human_bytes(told.hour.bytes_in)} in and {human_bytes(told.hour.bytes_out)} out per hour"
    return f"{step}; {hour} at the present {told.step_s:.2g} s a step"
