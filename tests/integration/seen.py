"""What tests look at from outside: /status, /metrics, event logs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from node import http_client
from node.demo.process import NodeProcess
from protocol.ids import members_of
from tests.tools.swarm import Swarm, wait_for

Events = list[dict[str, Any]]


def seat_phase(made: Swarm, node: NodeProcess) -> str:
    """Where its active seat stands in a step."""
    seats = made.status(node).get("seats", ())
    return next((seat["phase"] for seat in seats if seat["role"] == "active"), "")


def metric(made: Swarm, node: NodeProcess, name: str, **labels: str) -> float:
    """A sample of /metrics; 0 where there is none."""
    text = http_client.get(made.running(node).http, "/metrics").decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return next((sample.value for sample in samples if sample.name == name and sample.labels == labels), 0.0)


def says(node: NodeProcess, text: str) -> bool:
    """Was it on stderr of late?"""
    return any(text in line for line in node.last_words(40))


def waits(made: Swarm, node: NodeProcess, why: str, limit_s: float) -> None:
    """Until the node's phase is waiting and its sentence says why."""

    def told() -> bool:
        status = made.status(node)
        return status.get("phase") == "waiting" and why in status["sentence"]

    wait_for(f"{node.name} waits: {why}", told, limit_s, lambda: f"{made.status(node)}\n{made.situation()}")


def assert_counted_once(logs: dict[str, Events], num_microbatches: int) -> Counter[int]:
    """Per committed step and stage: the contributors' bitmaps are disjoint and complete, and each contributor noted what it is
    credited with, no more and no less, in the attempt that it reduced. `logs` by peer. Returns commits seen, by stage."""
    whole = Counter(range(num_microbatches))
    noted = {peer: _accumulated(events) for peer, events in logs.items()}
    commits: Counter[int] = Counter()
    for event in (e for events in logs.values() for e in events if e["type"] == "committed"):
        where = f"step {event['step']}, stage {event['stage']}"
        commits[event["stage"]] += 1
        credited = {peer: members_of(bits) for peer, bits in event["contributors"].items()}
        assert Counter(m for found in credited.values() for m in found) == whole, f"{where}: {credited}"
        for peer, found in credited.items():
            mine = noted[peer].get((event["stage"], event["step"]), [])
            assert sorted(mine) == found, f"{where}: {peer} noted {mine}"
    return commits


def credited(logs: dict[str, Events], stage: int) -> dict[int, list[int]]:
    """Step -> microbatches that count at this stage, by the committed lines of all logs, which agree."""
    found: dict[int, list[int]] = {}
    for event in (e for events in logs.values() for e in events if e["type"] == "committed" and e["stage"] == stage):
        mine = sorted(m for bits in event["contributors"].values() for m in members_of(bits))
        assert found.setdefault(event["step"], mine) == mine, f"step {event['step']}, stage {stage}"
    return found


def _accumulated(events: Events) -> dict[tuple[int, int], list[int]]:
    """(stage, step) -> microbatches that a node noted in the last attempt that it reduced at this step."""
    reduced: dict[tuple[int, int], int] = {}
    for e in events:
        if e["type"] == "reduced":
            key = e["stage"], e["step"]
            reduced[key] = max(e["attempt"], reduced.get(key, 0))
    found: dict[tuple[int, int], list[int]] = {}
    for e in events:
        if e["type"] == "accumulated" and e["attempt"] == reduced.get((e["stage"], e["step"])):
            found.setdefault((e["stage"], e["step"]), []).append(e["microbatch"])
    return found
