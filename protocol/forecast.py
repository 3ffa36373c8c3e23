"""What joining a run would mean for a machine: which stage it would most likely get, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.manifest import Manifest
from protocol.sizes import (
    Traffic,
    data_bytes,
    fits,
    human_bytes,
    join_bytes,
    need_bytes,
    step_traffic,
    working_parameters,
)

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The stage, -1 where none fits, and why it is that one."""

    stage: int
    why: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What a node may use here, in bytes; memory 0 = not known."""

    memory_bytes: int
    disk_bytes: int
    has_tokens: bool
    """The token shards are here already."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one stage. Sizes in bytes; per hour only where the swarm's pace is known, else 0."""

    choice: Choice
    replicas: int
    """Active replicas with the newcomer."""
    need_bytes: int
    disk_bytes: int
    """What it writes in its state directory."""
    download_bytes: int
    step: Traffic
    hour: Traffic
    step_s: float


def likely_stage(manifest: Manifest, held: Mapping[int, int], memory_bytes: int, wished: int = -1) -> Choice:
    """What a newcomer would most likely get, of the stages that fit into its memory: one that nobody holds, else the one whose
    replicas together are slowest. `held`: replicas by stage; their speeds are not known here, all machines count as equal."""
    stages = range(manifest.num_stages) if wished < 0 else (wished,)
    fitting = [s for s in stages if fits(manifest, s, memory_bytes, held.get(s, 0) + 1)]
    if not fitting:
        return _nothing_fits(manifest, held, memory_bytes, wished)
    stage = min(fitting, key=lambda s: (held.get(s, 0) / working_parameters(manifest, s), s))
    count = held.get(stage, 0)
    if wished >= 0:
        return Choice(stage, "it was asked for")
    if not count:
        return Choice(stage, "nobody holds it")
    among = "" if len(fitting) == len(stages) else " of those that fit into the memory here"
    return Choice(stage, f"with {count} replica{'' if count == 1 else 's'} it is likely the slowest{among}")


def _nothing_fits(manifest: Manifest, held: Mapping[int, int], memory_bytes: int, wished: int) -> Choice:
    stages = range(manifest.num_stages) if wished < 0 else (wished,)
    needs = {s: need_bytes(manifest, s, held.get(s, 0) + 1) for s in stages}
    stage = min(needs, key=lambda s: needs[s])
    which = f"stage {stage}" if wished >= 0 else f"even the smallest stage, {stage},"
    return Choice(-1, f"{which} needs {human_bytes(needs[stage])} and the node may use {human_bytes(memory_bytes)}")


def forecast(manifest: Manifest, held: Mapping[int, int], machine: Machine, step_s: float = 0.0, wished: int = -1) -> Forecast:
    """`step_s`: seconds per step of the swarm now, 0 = not known. Where no stage fits, the figures are those of the wished
    stage or of the smallest one."""
    choice = likely_stage(manifest, held, machine.memory_bytes, wished)
    stage = choice.stage
    if stage < 0:
        stage = wished if wished >= 0 else min(range(manifest.num_stages), key=lambda s: need_bytes(manifest, s))
    replicas = held.get(stage, 0) + 1
    download = join_bytes(manifest, stage, machine.has_tokens)
    traffic = step_traffic(manifest, stage, replicas)
    return Forecast(
        choice=choice,
        replicas=replicas,
        need_bytes=need_bytes(manifest, stage, replicas),
        disk_bytes=data_bytes(manifest, stage, machine.has_tokens),
        download_bytes=download,
        step=traffic,
        hour=_per_hour(traffic, step_s),
        step_s=step_s,
    )


def _per_hour(traffic: Traffic, step_s: float) -> Traffic:
    steps = HOUR_S / step_s if step_s > 0 else 0.0
    return Traffic(round(traffic.bytes_in * steps), round(traffic.bytes_out * steps))
