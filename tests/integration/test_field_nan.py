"""FIELD-CASE 5, NaN from one peer: a learning rate of 1e30 on one node, weights whose bytes flipped to 0x7F, a peer that speaks
the protocol and sends NaN, 1e38 or zeros.

Survived: honest weights and losses stay finite, a line names the peer, it is dropped and the others go on. Zeros are wrong but
plausible: see docs/assumptions.md. Bad values in single tensors: tests/numerics/test_executor.py, tests/unit/test_reduce.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node import http_client
from node.demo.process import NodeProcess
from tests.integration.seen import says
from tests.tools import saboteur
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
BEGINS = 4
WRONG_STATE = ("learning_rate", "flipped_weights")
NUMBERS = {"nan": "not_finite", "huge": "beyond_reason"}
LIMIT_S = 75.0


def launch(made: Swarm, kind: str, num_honest: int = 2) -> tuple[list[NodeProcess], NodeProcess]:
    """(honest nodes, the first of which founds the run; their dishonest sibling at stage 1)."""
    path = write_manifest(
        made.folder,
        max_steps=100_000,
        num_block_stages=2,
        start_replicas=1,
        timing__heartbeat_s=0.5,
        timing__first_microbatch_s=30,
    )
    first = made.start(path, "--stage", "0")
    invite = made.running(first).invite
    for number in range(num_honest):
        made.running(made.join(invite, "--stage", "1", name=f"honest{number}"))
    bad = saboteur.start(kind, BEGINS, "bad", ["join", invite, "--stage", "1"], made.folder / "bad")
    made.nodes.append(bad)
    made.running(bad)
    made.join(invite, "--stage", "2", name="last")
    return [node for node in made.nodes if node is not bad], bad


def assert_finite(made: Swarm, nodes: list[NodeProcess]) -> None:
    losses = [event["value"] for node in nodes for event in made.events(node, "loss")]
    assert losses
    assert all(math.isfinite(value) for value in losses), losses[-20:]


def lost(made: Swarm, node: NodeProcess) -> list[str]:
    peer = made.running(node).peer
    return [event["reason"] for event in made.events(made.nodes[0], "lost") if event["peer"] == peer]


def refused_tensors(made: Swarm, node: NodeProcess, fault: str) -> float:
    """As its /metrics tell."""
    text = http_client.get(made.running(node).http, "/metrics").decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(
        sample.value for sample in samples if sample.name == "regrow_refused_tensors_total" and sample.labels["fault"] == fault
    )


@pytest.mark.parametrize("kind", ["nan", "huge", "learning_rate", "flipped_weights"])
def test_who_sends_wrong_numbers_is_named_and_dropped(tmp_path: Path, kind: str) -> None:
    with swarm(tmp_path) as made:
        honest, bad = launch(made, kind)
        wait_for("it is dropped", lambda: lost(made, bad), LIMIT_S, made.situation)
        step = made.status(honest[0])["step"]
        made.wait_step(step + 3, LIMIT_S)
        assert_finite(made, honest)
        for node in honest:
            assert lost(made, node) == [], made.situation()
            assert node.exit_code is None, made.situation()
        assert says(honest[0], made.running(bad).peer[-8:]), made.situation()
        if kind in NUMBERS:
            assert sum(refused_tensors(made, node, NUMBERS[kind]) for node in honest) > 0, "an alert rests on it"
        if kind in WRONG_STATE:
            no_seat_after_three_strikes(made, bad)
        print(f"{kind}: {lost(made, bad)}")


def no_seat_after_three_strikes(made: Swarm, bad: NodeProcess) -> None:
    """It copies the state anew and spoils it again, and any copy of the embedding that it has: each time it is named, and no
    other is; in the end it is not let in any more."""
    first, peer = made.nodes[0], made.running(bad).peer
    wait_for("three strikes", lambda: len(made.events(first, "digest_mismatch")) >= 3, LIMIT_S, made.situation)

    def is_out() -> bool:
        return peer not in {row["peer"] for row in made.status(first)["roster"]}

    wait_for("it is out", is_out, LIMIT_S, made.situation)
    named = made.events(first, "digest_mismatch")
    assert {event["peer"] for event in named} == {peer}
    made.wait_step(made.status(first)["step"] + 10, LIMIT_S)
    assert is_out()
    assert made.events(first, "digest_mismatch") == named
