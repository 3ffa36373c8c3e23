"""FIELD-CASE 8, stopping: INT to the group, INT twice within a second, in averaging, in a step; what neighbours do then.

Survived: gone within 10 s, no children, ports free, exit code 0 or 128+n, no traceback (`Ending.check`); the neighbours hear of
it and do not wait for a lapse. During start-up, with an unreachable bootstrap, HUP and TERM, while waiting, in an evaluation,
with a hanging or dead p2pd: `test_shutdown.py`. This version saves nothing while it runs.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import Ending
from tests.integration.seen import seat_phase
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
LIMIT_S = 90.0
HEARTBEAT_S = 0.5


def test_nodes_that_are_stopped_one_after_the_other(tmp_path: Path) -> None:
    """Four replicas of stage 1; large gradients, so that averaging takes a moment."""
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        max_steps=100_000,
        timing__heartbeat_s=HEARTBEAT_S,
        batch__global_samples=32,
        model__hidden_size=128,
        model__intermediate_size=512,
        recovery__embedding_copies=0,
    )
    with swarm(tmp_path) as made:
        first = made.start(path, "--stage", "0")
        invite = made.running(first).invite
        replicas = [made.join(invite, "--stage", "1", name=f"one{number}") for number in range(4)]
        for node in replicas:
            made.running(node)
        made.wait_step(1, LIMIT_S)
        wait_for("all of them train", lambda: len(contributors(made, first)) == 5, LIMIT_S, made.situation)
        int_to_the_group(made, replicas[0])
        in_averaging(made, replicas[1])
        int_twice(made, replicas[2])
        for node in replicas[:2]:
            assert "not heard" not in why_lost(made, node), made.situation()
        endings = [Ending(node) for node in (first, replicas[3])]
        for ending in endings:
            os.killpg(ending.node.process.pid, signal.SIGINT)
        assert [ending.check() for ending in endings] == [0, 0]


def contributors(made: Swarm, node: NodeProcess) -> set[str]:
    """Of the newest committed step, and the node itself."""
    steps = [event for each in made.nodes if each.exit_code is None for event in made.events(each, "committed")]
    newest = max((event["step"] for event in steps), default=0)
    return {peer for event in steps if event["step"] == newest for peer in event["contributors"]} | {made.running(node).peer}


def int_to_the_group(made: Swarm, node: NodeProcess) -> None:
    """As Ctrl-C in a terminal does: p2pd gets it too."""
    ending = Ending(node)
    wait_for("a step is open", lambda: seat_phase(made, node) == "working", LIMIT_S, made.situation)
    os.killpg(node.process.pid, signal.SIGINT)
    assert ending.check({0}) == 0
    goes_on_without(made, node)


def in_averaging(made: Swarm, node: NodeProcess) -> None:
    ending = Ending(node)
    wait_for("it sums gradients", lambda: seat_phase(made, node) in ("ready", "reducing", "reduced"), LIMIT_S, made.situation)
    ending.send(signal.SIGTERM)
    assert ending.check({0}) == 0
    goes_on_without(made, node)


def int_twice(made: Swarm, node: NodeProcess) -> None:
    """The second one ends it at once, whatever the first one is waiting for; or it has left already."""
    ending = Ending(node)
    wait_for("a step is open", lambda: seat_phase(made, node) == "working", LIMIT_S, made.situation)
    ending.send(signal.SIGINT)
    wait_for(
        "it is leaving", lambda: made.status(node).get("phase") != "training" or node.exit_code is not None, 5, made.situation
    )
    asked = time.monotonic()
    node.send(signal.SIGINT)
    assert ending.check({0, 130}) in (0, 130)
    print(f"INT twice: ended {time.monotonic() - asked:.2f} s after the second one")
    goes_on_without(made, node)


def goes_on_without(made: Swarm, node: NodeProcess) -> None:
    """Three more steps to which it does not contribute. That it left was told, and not found out by a lapse."""
    first, peer = made.nodes[0], made.running(node).peer
    step = made.status(first)["step"]
    made.wait_step(step + 3, LIMIT_S)
    later = [e for each in made.nodes if each.exit_code is None for e in made.events(each, "committed") if e["step"] > step + 1]
    assert later
    assert not any(peer in event["contributors"] for event in later)
    assert any(event["peer"] == peer for event in made.events(first, "left")), made.situation()


def why_lost(made: Swarm, node: NodeProcess) -> set[str]:
    """The first words of why the coordinator took it off the roster; none where it left in order."""
    peer = made.running(node).peer
    return {" ".join(e["reason"].split()[:2]) for e in made.events(made.nodes[0], "lost") if e["peer"] == peer}
