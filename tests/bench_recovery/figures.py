"""From what was seen from outside to the figures of one cell. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

LINK_SHARE = 0.75
DOWNLOAD_OVER_STAGE = 1.1
DETECTION_EXTRA_S = 0.5
COMMIT_EXTRA_S = 2.0
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """`logs`: events by node, `holder` the one that was killed at `killed_at` (wall clock), `newcomer` the one that came;
    `downloaded`: bytes that its interface counted from the kill to the transfer's end; `link_mbit`: iperf3's rate."""

    lost: int
    heartbeat_s: float
    lapse_s: float
    killed_at: float
    holder: str
    newcomer: str
    logs: Mapping[str, Sequence[Event]]
    stage_bytes: int
    link_rate: float | None = None
    """Bytes per second that the emulator lets through in each direction, headers included."""
    link_mbit: float | None = None
    downloaded: int | None = None

    def living(self, type_: str) -> list[Event]:
        """Events of this type after the kill, at those that live, oldest first."""
        found = [e for name, log in self.logs.items() if name != self.holder for e in log if e["type"] == type_]
        return sorted((e for e in found if e["wall"] >= self.killed_at), key=lambda e: float(e["wall"]))


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, bytes and shares; None where there is nothing to be measured."""

    heartbeat_s: float
    detect_s: float
    step_s: float
    stage_bytes: int
    kill_to_commit_s: float
    transfer_s: float | None
    link_share: float | None
    download_over_stage: float | None


def figures_of(seen: Seen) -> Figures:
    """The cell's figures. Raises `ValueError` where the stage did not come back."""
    moments = moments_of(seen)
    comes = "transfer" in moments and "promoted" not in moments
    transfer_s = moments["transfer"] - moments["granted"] if comes else None
    share = None
    if transfer_s and seen.link_mbit:
        share = seen.stage_bytes / transfer_s / (seen.link_mbit * 1e6 / 8)
    return Figures(
        heartbeat_s=seen.heartbeat_s,
        detect_s=moments["lost"],
        step_s=step_seconds(seen),
        stage_bytes=seen.stage_bytes,
        kill_to_commit_s=moments["committed"],
        transfer_s=transfer_s,
        link_share=share,
        download_over_stage=seen.downloaded / seen.stage_bytes if comes and seen.downloaded is not None else None,
    )


def stage_of(event: Event, otherwise: int) -> int:
    """The stage that an event is about; `otherwise` where it is about none."""
    if event["type"] == "transfer":
        return int(str(event["what"]).removeprefix("stage "))
    return int(event.get("stage", otherwise))


def moments_of(seen: Seen) -> dict[str, float]:
    """Seconds from the kill to each thing that followed, in order: where the time goes. Raises `ValueError`."""

    def first(type_: str, after: float = 0.0) -> float | None:
        events = [e for e in seen.living(type_) if stage_of(e, seen.lost) == seen.lost]
        return next((e["wall"] for e in events if e["wall"] >= after), None)

    found = {"suspected": first("suspected"), "lost": first("lost"), "rebuild": first("rebuild"), "granted": first("granted")}
    if found["lost"] is None:
        raise ValueError(f"nobody noticed that stage {seen.lost} was lost")
    found |= {"promoted": first("promoted"), "averaged": first("averaged"), "transfer": first("transfer")}
    back = max(at for at in found.values() if at is not None)
    found |= {"accumulated": first("accumulated", back), "committed": first("committed", back)}
    if found["committed"] is None:
        raise ValueError(f"nothing was committed with stage {seen.lost} again")
    return {name: at - seen.killed_at for name, at in found.items() if at is not None}


def step_seconds(seen: Seen) -> float:
    """Of the steps before the kill, the first one left out."""
    decided: dict[int, float] = {}
    for event in _losses(seen):
        decided[event["step"]] = min(event["wall"], decided.get(event["step"], seen.killed_at))
    walls = sorted(wall for wall in decided.values() if wall < seen.killed_at)
    if len(walls) < 3:
        raise ValueError(f"only {len(walls)} steps before the kill: there is no step to compare with")
    return statistics.median(b - a for a, b in pairwise(walls[1:]))


def _losses(seen: Seen) -> Iterable[Event]:
    return (event for log in seen.logs.values() for event in log if event["type"] == "loss")


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and what it should be; `is_met` None where it was not measured."""

    name: str
    value: float | None
    bound: float
    at_least: bool = False

    @property
    def is_met(self) -> bool | None:
        """Is it as it should be?"""
        if self.value is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        word = {None: "not measured", True: "met", False: "MISSED"}[self.is_met]
        value = "-" if self.value is None else f"{self.value:.2f}"
        return f"{self.name} {value} ({'>=' if self.at_least else '<='} {self.bound:.2f}): {word}"


def goals(seen: Seen, found: Figures) -> list[Goal]:
    """What the cell that counts has to reach."""
    transfer_s = seen.stage_bytes / (LINK_SHARE * seen.link_rate) if seen.link_rate else 0.0
    commit_s = found.detect_s + COMMIT_EXTRA_S + found.step_s + transfer_s
    return [
        Goal("detect_s", found.detect_s, seen.lapse_s + DETECTION_EXTRA_S),
        Goal("kill_to_commit_s", found.kill_to_commit_s, commit_s),
        Goal("link_share", found.link_share, LINK_SHARE, at_least=True),
        Goal("download_over_stage", found.download_over_stage, DOWNLOAD_OVER_STAGE),
    ]
