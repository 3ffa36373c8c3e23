"""Policy `shadow` in swarms of real processes: the only holder of a stage is killed, and what the newcomer is given is, as a
`regrow debug dump` has it, bf16 of what the stage was after the step that its keeper names."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from node import http_client
from node.demo.process import NodeProcess
from tests.integration.ends import Ending
from tests.integration.test_redundant import digests, roles
from tests.tools.contract import violations
from tests.tools.material import write_manifest
from tests.tools.organiser import Organiser
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
LIMIT_S = 90.0
EVERY = 4
NUM_BLOCK_STAGES = 4

Arrays = dict[str, np.ndarray]


CHUNKS = {
    "policy": "shadow",
    "shadow_every": EVERY,
    "shadow_link_share": 0.5,
    "rebuild_grace_s": 0.5,
    "newcomer_wait_s": 600.0,
}


def a_run(folder: Path, rules: dict[str, Any] = CHUNKS) -> Path:
    return write_manifest(
        folder,
        model__num_hidden_layers=NUM_BLOCK_STAGES,
        num_block_stages=NUM_BLOCK_STAGES,
        max_steps=100_000,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=4,
        recovery=rules,
    )


def kill(*nodes: NodeProcess) -> None:
    endings = [Ending(node) for node in nodes]
    for ending in endings:
        ending.send(signal.SIGKILL)
    for ending in endings:
        ending.check()


def dump(made: Swarm, node: NodeProcess, stage: int) -> Arrays:
    return load(http_client.get(made.running(node).http, f"/debug/dump?stage={stage}"))


def halves(arrays: Arrays) -> Arrays:
    return {name: torch.from_numpy(array.copy()).to(torch.bfloat16).float().numpy() for name, array in arrays.items()}


def told(made: Swarm, stages: tuple[int, ...]) -> dict[int, list[dict[str, Any]]]:
    """Rounds of what is kept, by stage."""
    found: dict[int, list[dict[str, Any]]] = {stage: [] for stage in stages}
    for node in made.nodes:
        for event in made.events(node, "shadow"):
            if event["stage"] in found:
                found[event["stage"]].append(event)
    return found


def test_an_exact_shadow_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """`shadow_every` 1: a passive replica half way round takes over, with the bits of a run in which nothing is lost."""
    num_stages, lost, more = NUM_BLOCK_STAGES + 1, 2, 5
    rules = {"policy": "shadow", "shadow_every": 1, "rebuild_grace_s": 60.0}
    path = a_run(tmp_path, rules)
    with swarm(tmp_path / "struck") as made:
        nodes = list(made.launch(path, NUM_BLOCK_STAGES))
        made.wait_step(3, LIMIT_S)
        for stage, node in enumerate(nodes):
            assert roles(made, node) == {(stage, "active"), ((stage - num_stages // 2) % num_stages, "passive")}
        heir = nodes[(lost + num_stages // 2) % num_stages]
        kill(nodes[lost])
        wait_for("it is promoted", lambda: (lost, "active") in roles(made, heir), LIMIT_S, made.situation)
        last = made.status(heir)["step"] + more
        made.wait_step(last, LIMIT_S, heir)
        assert not [event for node in nodes for event in made.events(node, "rebuild")]
        told = [event["rung"] for node in nodes for event in made.events(node, "recovered")]
        assert told == ["promotion"]
        struck = digests(made)
    with swarm(tmp_path / "undisturbed") as made:
        made.launch(path, NUM_BLOCK_STAGES)
        made.wait_step(last, LIMIT_S)
        undisturbed = digests(made)
    compared = {key for key in struck if key in undisturbed and key[1] <= last}
    assert compared >= {(stage, step) for stage in range(num_stages) for step in range(1, last)}
    odd = {key for key in compared if len(struck[key] | undisturbed[key]) > 1}
    assert not odd, f"not as in the undisturbed run: {sorted(odd)[:5]}"


@pytest.mark.parametrize("lost", [(2,), (0, 1)], ids=["interior", "stage 0 and S1"])
def test_a_newcomer_is_given_what_was_kept_of_the_stage(tmp_path: Path, lost: tuple[int, ...]) -> None:
    with swarm(tmp_path) as made:
        nodes = list(made.launch(a_run(tmp_path), NUM_BLOCK_STAGES))
        made.wait_step(3, LIMIT_S)
        organiser = Organiser(made)
        was: dict[tuple[int, int], Arrays] = {}
        for _ in range(20):  # until what is kept is of a step at which the run stood still, so that a dump tells what that was
            organiser.order("pause")
            step = organiser.paused()
            was |= {(stage, step): dump(made, nodes[stage], stage) for stage in lost}
            rounds = told(made, lost)
            if all(any((stage, r["newest_step"]) in was for r in rounds[stage][-1:]) for stage in lost):
                break
            organiser.order("resume", "pause")
            organiser.paused(after=step)
        kill(*(nodes[stage] for stage in lost))
        living = next(node for stage, node in enumerate(nodes) if stage not in lost)
        newcomers = [made.join(made.running(living).invite, name=f"newcomer{n}") for n in range(len(lost))]

        def restored() -> dict[int, tuple[NodeProcess, dict[str, Any]]]:
            seen = {e["stage"]: (n, e) for n in newcomers for e in made.events(n, "provenance") if e["rung"] == "shadow"}
            return seen if len(seen) == len(lost) else {}

        found = wait_for("they are restored", restored, LIMIT_S, made.situation)
        for stage in lost:
            node, provenance = found[stage]
            assert provenance["oldest_step"] == provenance["newest_step"], "a stage of one chunk"
            wanted = halves(was[stage, provenance["newest_step"]])
            given = dump(made, node, stage)
            assert given.keys() == wanted.keys()
            assert all(np.array_equal(given[name], wanted[name]) for name in wanted)
            [seat] = made.status(node)["seats"]
            assert (seat["digest"], seat["optimizer_age"], seat["lr_factor"]) == (provenance["digest"], 0, 1.0)
            assert step - 2 * EVERY <= provenance["oldest_step"] <= step
        made.nodes.sort(key=lambda node: node.exit_code is not None)
        organiser.order("resume")
        made.wait_step(step + 2, LIMIT_S, newcomers[0])
        coordinator = [e for node in made.nodes for e in made.events(node, "recovered")]
        assert {e["stage"]: e["rung"] for e in coordinator} == dict.fromkeys(lost, "shadow")
        wrong = {line for node in made.nodes for event in made.events(node) for line in violations("event", event)}
        assert not wrong, "\n".join(sorted(wrong)[:20])
