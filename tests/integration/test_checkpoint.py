"""Policy `checkpoint` in swarms of real processes: the only holder of a stage is killed, and everybody goes back to what was
saved.

What each node holds then is compared with the files, by `regrow debug dump`s of a run that the organiser has paused; after that
the steps that are repeated lead to the digests that they led to before.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, load_file

from node import http_client
from node.checkpoints.places import DirectoryPlace
from node.checkpoints.store import CheckpointStore
from node.demo.process import NodeProcess
from tests.integration.ends import Ending
from tests.tools.contract import violations
from tests.tools.material import write_manifest
from tests.tools.organiser import Organiser
from tests.tools.swarm import Swarm, swarm, wait_for

LIMIT_S = 90.0
EVERY = 4
STAGES = range(3)


def a_run(folder: Path, **more: Any) -> Path:
    saving = {"checkpoint_every": EVERY, "checkpoint_store": str(folder / "saved"), "rebuild_grace_s": 0.0}
    return write_manifest(
        folder,
        max_steps=100_000,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=4,
        recovery={"policy": "checkpoint", "newcomer_wait_s": 600.0} | saving | more,
    )


def kill(node: NodeProcess) -> None:
    ending = Ending(node)
    ending.send(signal.SIGKILL)
    ending.check()


def store_of(folder: Path) -> CheckpointStore:
    """Of the only run that saved there."""
    [run] = (folder / "saved").iterdir()
    return CheckpointStore(DirectoryPlace(run), run.name)


def whole_steps(folder: Path) -> list[int]:
    """After which all stages are saved, newest first."""
    stages: defaultdict[int, set[int]] = defaultdict(set)
    for saved in store_of(folder).survey() if list(folder.glob("saved/*")) else ():
        stages[saved.step].add(saved.stage)
    return sorted((step for step, found in stages.items() if found == set(STAGES)), reverse=True)


def gone_back(made: Swarm, nodes: list[NodeProcess], epoch: int = 1) -> dict[str, Any]:
    """The event, once each of these nodes has what was saved."""

    def restored() -> bool:
        return all(any(e.get("epoch") == epoch for e in made.events(node, "provenance")) for node in nodes)

    wait_for(f"everybody has gone back {epoch} times", restored, LIMIT_S, made.situation)
    return next(e for e in made.events(nodes[0], "rolled_back") if e["epoch"] == epoch)


def assert_as_saved(made: Swarm, folder: Path, nodes: dict[int, NodeProcess], step: int) -> None:
    """Every node is at the step, with the weights of its stage's file."""
    files = {saved.stage: saved for saved in store_of(folder).survey() if saved.step == step}
    for stage, node in nodes.items():
        status, saved = made.status(node), files[stage]
        [seat] = status["seats"]
        assert (status["step"], seat["step"], seat["stage"]) == (step, step, stage), status
        assert (seat["digest"], seat["optimizer_age"]) == (saved.digest, saved.optimizer_age)
        assert seat["provenance"]["source"] == saved.state_id != seat["state_id"]
        dump = load(http_client.get(made.running(node).http, f"/debug/dump?stage={stage}"))
        [path] = (folder / "saved").glob(f"*/{saved.name}")
        file = load_file(path)
        assert dump.keys() == {name for name in file if not name.startswith("exp_avg")}
        assert all(np.array_equal(dump[name], file[name]) for name in dump)


def assert_repeats(made: Swarm, nodes: list[NodeProcess]) -> int:
    """Each step of a stage led to one digest, however often it was made; returns how many were made twice."""
    digests: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for node in nodes:
        for event in made.events(node, "committed"):
            digests[event["stage"], event["step"]].append(event["digest"])
    odd = {where: found for where, found in digests.items() if len(set(found)) > 1}
    assert not odd, f"{odd}\n{made.situation()}"
    return sum(len(found) > 1 for found in digests.values())


@pytest.mark.full
@pytest.mark.timeout(240)
def test_everybody_goes_back_to_what_was_saved(tmp_path: Path) -> None:
    with swarm(tmp_path) as made:
        nodes = list(made.launch(a_run(tmp_path), num_block_stages=2))
        wait_for("a step is saved", lambda: whole_steps(tmp_path), LIMIT_S, made.situation)
        organiser = Organiser(made)
        made.wait_step(whole_steps(tmp_path)[0] + 2, LIMIT_S)
        organiser.order("pause")
        at = organiser.paused()
        saved = whole_steps(tmp_path)[0]
        kill(nodes[1])
        newcomer = made.join(made.running(nodes[0]).invite, name="newcomer")
        made.running(newcomer)
        now = {0: nodes[0], 1: newcomer, 2: nodes[2]}
        event = gone_back(made, list(now.values()))
        assert (event["from_step"], event["step"], event["stages"]) == (at, saved, [1])
        assert_as_saved(made, tmp_path, now, saved)
        organiser.order("resume")
        made.wait_step(at + 2, LIMIT_S, newcomer)
        assert assert_repeats(made, [*nodes, newcomer]) >= (at - saved) * len(STAGES)
        wait_for("told of", lambda: made.events(nodes[0], "recovered"), LIMIT_S, made.situation)
        assert made.events(nodes[0], "recovered")[0]["rung"] == "checkpoint"
        wrong = {line for node in made.nodes for event in made.events(node) for line in violations("event", event)}
        assert not wrong, "\n".join(sorted(wrong)[:20])


@pytest.mark.full
@pytest.mark.timeout(240)
def test_stage_0_is_saved_like_any_other(tmp_path: Path) -> None:
    """With it goes the coordinator, who founded the run."""
    with swarm(tmp_path) as made:
        first, *others = made.launch(a_run(tmp_path, rebuild_grace_s=0.5), num_block_stages=2)
        wait_for("a step is saved", lambda: whole_steps(tmp_path), LIMIT_S, made.situation)
        kill(first)
        newcomer = made.join(made.running(others[0]).invite, name="newcomer")
        made.running(newcomer)
        event = gone_back(made, [*others, newcomer])
        assert event["stages"] == [0] and event["step"] % EVERY == 0 < event["step"]
        made.wait_step(event["from_step"] + 2, LIMIT_S, newcomer)
        assert_repeats(made, [first, *others, newcomer])
