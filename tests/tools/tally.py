"""What the event logs of a run say: microbatches counted once, one history, one digest per state. Findings are sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.ids import members_of

Events = list[dict[str, Any]]
Logs = Mapping[str, Events]
"""By peer, all its lives in one."""
Window = tuple[float, float]
"""Monotonic seconds, from and to: a log had no room for its lines meanwhile."""
Work = tuple[int, int]
"""(stage, step)."""
STEP_LIMIT_S = 60.0
"""Between a microbatch and the commit of its step lies at most so much."""


@dataclass
class Tally:
    """What was found. `commits`: lines seen, by stage."""

    lost: list[str] = field(default_factory=list)
    """A microbatch that no contributor is credited with, or that its contributor never noted."""
    doubled: list[str] = field(default_factory=list)
    """One that two are credited with, that is noted twice, or noted by a contributor who is not credited with it."""
    commits: Counter[int] = field(default_factory=Counter)


def count_microbatches(logs: Logs, num_microbatches: int, gaps: Mapping[str, Sequence[Window]] | None = None) -> Tally:
    """Per committed step and stage: the contributors' bitmaps are disjoint and complete, and each contributor noted what it is
    credited with, no more and no less, in the attempt that it reduced. `gaps`: by peer; what it noted then is not looked at.
    """
    noted = {peer: _accumulated(events) for peer, events in logs.items()}
    at = _committed_at(logs)
    tally = Tally()
    for event in (e for events in logs.values() for e in events if e["type"] == "committed"):
        work = event["stage"], event["step"]
        tally.commits[event["stage"]] += 1
        credited = {peer: members_of(bits) for peer, bits in event["contributors"].items()}
        _compare(tally, f"step {work[1]}, stage {work[0]}", Counter(range(num_microbatches)), Counter(_every(credited)))
        for peer, found in credited.items():
            if not _in_gap(at[work], (gaps or {}).get(peer, ())):
                mine = noted.get(peer, {}).get(work, [])
                _compare(tally, f"step {work[1]}, stage {work[0]}, as noted by {peer}", Counter(found), Counter(mine))
    return tally


def _compare(tally: Tally, where: str, wanted: Counter[int], found: Counter[int]) -> None:
    if missing := wanted - found:
        tally.lost.append(f"{where}: {sorted(missing.elements())}")
    if extra := found - wanted:
        tally.doubled.append(f"{where}: {sorted(extra.elements())}")


def _every(credited: Mapping[str, list[int]]) -> Iterator[int]:
    for found in credited.values():
        yield from found


def _in_gap(at: float, gaps: Sequence[Window]) -> bool:
    return any(since <= at <= until + STEP_LIMIT_S for since, until in gaps)


def _committed_at(logs: Logs) -> dict[Work, float]:
    """When somebody first knew."""
    found: dict[Work, float] = {}
    for event in (e for events in logs.values() for e in events if e["type"] == "committed"):
        work = event["stage"], event["step"]
        found[work] = min(event["t"], found.get(work, event["t"]))
    return found


def _accumulated(events: Events) -> dict[Work, list[int]]:
    """The microbatches that a node noted in the last attempt that it reduced at this step."""
    reduced: dict[Work, int] = {}
    for e in events:
        if e["type"] == "reduced":
            key = e["stage"], e["step"]
            reduced[key] = max(e["attempt"], reduced.get(key, 0))
    found: dict[Work, list[int]] = {}
    for e in events:
        if e["type"] == "accumulated" and e["attempt"] == reduced.get((e["stage"], e["step"])):
            found.setdefault((e["stage"], e["step"]), []).append(e["microbatch"])
    return found


def two_children(logs: Logs) -> list[str]:
    """Records that were decided after one and the same parent."""
    child: dict[str, str] = {}
    found = []
    for peer, event in ((peer, e) for peer, events in logs.items() for e in events if e["type"] == "decided"):
        known = child.setdefault(event["parent"], event["record"])
        if known != event["record"]:
            found.append(f"{peer} decided {event['record']} at step {event['step']}; after the same parent came {known}")
    return found


def digests(logs: Logs) -> tuple[dict[str, str], list[str]]:
    """The digest of each committed state_id; and who has another one."""
    digest: dict[str, str] = {}
    found = []
    for peer, event in ((peer, e) for peer, events in logs.items() for e in events if e["type"] == "committed"):
        known = digest.setdefault(event["state_id"], event["digest"])
        if known != event["digest"]:
            found.append(f"{peer} has {event['digest']} at stage {event['stage']}, step {event['step']}; another {known}")
    return digest, found


def losses(logs: Logs) -> tuple[dict[int, float], list[str]]:
    """The loss of each committed step; and where logs do not agree."""
    loss: dict[int, float] = {}
    found = []
    for peer, event in ((peer, e) for peer, events in logs.items() for e in events if e["type"] == "loss"):
        known = loss.setdefault(event["step"], event["value"])
        if known != event["value"]:
            found.append(f"{peer} has a loss of {event['value']} at step {event['step']}; another {known}")
    return loss, found
