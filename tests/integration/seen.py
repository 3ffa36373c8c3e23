"""What tests look at from outside: /status, /metrics, event logs."""

from __future__ import annotations

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from node import http_client
from node.demo.process import NodeProcess
from protocol.ids import members_of
from tests.tools.swarm import Swarm, wait_for
from tests.tools.tally import Events, count_microbatches


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
    """No microbatch is lost or doubled in any committed step (`count_microbatches`). Returns commits seen, by stage."""
    tally = count_microbatches(logs, num_microbatches)
    assert (tally.lost, tally.doubled) == ([], [])
    return tally.commits


def credited(logs: dict[str, Events], stage: int) -> dict[int, list[int]]:
    """Step -> microbatches that count at this stage, by the committed lines of all logs, which agree."""
    found: dict[int, list[int]] = {}
    for event in (e for events in logs.values() for e in events if e["type"] == "committed" and e["stage"] == stage):
        mine = sorted(m for bits in event["contributors"].values() for m in members_of(bits))
        assert found.setdefault(event["step"], mine) == mine, f"step {event['step']}, stage {stage}"
    return found
