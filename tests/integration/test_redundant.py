"""Policy `redundant` in swarms of real processes: the holder of a stage is killed, the holder of the stage before goes on with
its copy at once, and what is trained is to the bit what an undisturbed run trains.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load

from node import http_client
from node.demo.process import NodeProcess
from node.manifest_file import load as load_manifest
from protocol.sizes import state_bytes
from tests.integration.ends import Ending, end_all_at_once
from tests.integration.seen import assert_counted_once, metric
from tests.tools.contract import violations
from tests.tools.material import write_manifest
from tests.tools.organiser import Organiser
from tests.tools.swarm import Swarm, swarm, wait_for

LIMIT_S = 90.0
NUM_BLOCK_STAGES = 3
STAGES = range(NUM_BLOCK_STAGES + 1)
NUM_MICROBATCHES = 4
MORE_STEPS = 5


def a_run(folder: Path) -> Path:
    return write_manifest(
        folder,
        num_block_stages=NUM_BLOCK_STAGES,
        model__num_hidden_layers=NUM_BLOCK_STAGES,
        max_steps=100_000,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=4,
        recovery={"policy": "redundant", "rebuild_grace_s": 60.0},
    )


def seat_of(made: Swarm, node: NodeProcess, stage: int) -> dict[str, Any]:
    seats = made.status(node).get("seats", [])
    return next((seat for seat in seats if seat["stage"] == stage), {})


def dump(made: Swarm, node: NodeProcess, stage: int) -> dict[str, bytes]:
    """The bytes of each tensor."""
    found = load(http_client.get(made.running(node).http, f"/debug/dump?stage={stage}"))
    return {name: array.tobytes() for name, array in found.items()}


def digests(made: Swarm) -> dict[tuple[int, int], set[str]]:
    """By stage and step: what the state was after it (weights, both moments, age), at whoever held the stage."""
    found: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for node in made.nodes:
        for event in made.events(node, "committed"):
            found[event["stage"], event["step"]].add(event["digest"])
    return found


def roles(made: Swarm, node: NodeProcess) -> set[tuple[int, str]]:
    return {(seat["stage"], seat["role"]) for seat in made.status(node).get("seats", [])}


def assert_held_and_passed_twice(made: Swarm, manifest: Any, step: int) -> None:
    """Each node holds two stages, and has run as many forward passes of the next stage as of its own."""
    is_smooth = not [event for node in made.nodes for event in made.events(node, "voided")]
    for stage, node in enumerate(made.nodes):
        after = (stage + 1) % len(STAGES)
        assert roles(made, node) == {(stage, "active"), (after, "passive")}
        assert metric(made, node, "regrow_stage_bytes", role="active") == state_bytes(manifest, stage)
        assert metric(made, node, "regrow_stage_bytes", role="passive") == state_bytes(manifest, after)
        own = "forward" if stage else "embed"
        for op in (own, "redundant"):
            passes = metric(made, node, "regrow_computations_total", op=op)
            assert passes == step * NUM_MICROBATCHES or (passes > step * NUM_MICROBATCHES and not is_smooth), (stage, op)
        assert metric(made, node, "regrow_compute_seconds_total", op="redundant") > 0


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lost", [2, 0])
def test_a_killed_holders_stage_goes_on_at_the_stage_before_as_if_nothing_had_been(tmp_path: Path, lost: int) -> None:
    """Stage 2 of three block stages; and stage 0, with the coordinator, which comes back from the last stage's holder."""
    path = a_run(tmp_path)
    manifest = load_manifest(path)
    with swarm(tmp_path / "struck") as made:
        nodes = made.launch(path, num_block_stages=NUM_BLOCK_STAGES)
        organiser = Organiser(made)
        made.wait_step(3, LIMIT_S)
        organiser.order("pause")
        at = organiser.paused()
        assert_held_and_passed_twice(made, manifest, at)
        heir = nodes[lost - 1]
        before = dump(made, nodes[lost], lost)
        assert dump(made, heir, lost) == before, "the copy has the very weights"
        assert seat_of(made, heir, lost)["digest"] == seat_of(made, nodes[lost], lost)["digest"], "and moments"
        if lost:
            assert_goes_on_where_it_was(made, organiser, nodes, lost, before)
        else:
            organiser.order("resume")
            made.wait_step(at + 1, LIMIT_S)
            kill(nodes[0])
        last = max(event["step"] for node in nodes for event in made.events(node, "loss")) + MORE_STEPS
        made.wait_step(last, LIMIT_S, heir)
        seat = seat_of(made, heir, lost)
        assert (seat["role"], seat["generation"], seat["lr_factor"]) == ("active", 0, 1.0)
        assert seat["provenance"]["rung"] == "promotion"
        assert not [event for node in nodes for event in made.events(node, "rebuild")]
        newcomer = made.join(made.running(heir).invite, name="newcomer")

        def everybody_holds_two() -> bool:
            living = [node for node in made.nodes if node is not nodes[lost]]
            held = sorted(sorted(roles(made, node)) for node in living)
            return held == sorted(sorted({(s, "active"), ((s + 1) % len(STAGES), "passive")}) for s in STAGES)

        wait_for("a newcomer makes the swarm as it was", everybody_holds_two, LIMIT_S, made.situation)
        last = made.status(heir)["step"] + MORE_STEPS
        made.wait_step(last, LIMIT_S, newcomer)
        struck = digests(made)
        living = [node for node in made.nodes if node is not nodes[lost]]
        assert end_all_at_once(living) == [0] * len(living)
        logs = {made.running(node).peer: made.events(node) for node in made.nodes}
        assert_counted_once(logs, NUM_MICROBATCHES)
        wrong = {line for log in logs.values() for event in log for line in violations("event", event)}
        assert not wrong, "\n".join(sorted(wrong)[:20])
    with swarm(tmp_path / "undisturbed") as made:
        made.launch(path, num_block_stages=NUM_BLOCK_STAGES)
        made.wait_step(last, LIMIT_S)
        undisturbed = digests(made)
    compared = {key for key in struck if key in undisturbed and key[1] <= last}
    assert compared >= {(stage, step) for stage in STAGES for step in range(1, last)}
    odd = {key: (struck[key], undisturbed[key]) for key in compared if len(struck[key] | undisturbed[key]) > 1}
    assert not odd, f"not as in the undisturbed run: {sorted(odd)[:5]}"


def kill(node: NodeProcess) -> None:
    ending = Ending(node)
    ending.send(signal.SIGKILL)
    ending.check()


def assert_goes_on_where_it_was(
    made: Swarm, organiser: Organiser, nodes: list[NodeProcess], lost: int, before: dict[str, bytes]
) -> None:
    """While the run is paused; no grace, though the manifest has a long one."""
    heir = nodes[lost - 1]
    kill(nodes[lost])
    wait_for("it is promoted", lambda: (lost, "active") in roles(made, heir), LIMIT_S, made.situation)
    assert dump(made, heir, lost) == before
    organiser.order("resume")
