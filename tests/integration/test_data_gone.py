"""Data without an owner: the organiser's folder is deleted and its node killed; another stage-0 replica goes on and serves."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import yaml

from tests.tools.material import tiny
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
LIMIT_S = 90.0


def test_the_organiser_and_its_folder_go(tmp_path: Path) -> None:
    folder = tmp_path / "organiser"
    folder.mkdir()
    values = tiny(folder, num_block_stages=1, start_replicas=2, max_steps=100_000, recovery__policy="none")
    for shard in (*values["data"]["train"], *values["data"]["validation"]):
        shard["sources"] = [Path(shard["sources"][0]).name]  # beside the manifest: nobody else finds them
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    with swarm(tmp_path) as made:
        made.launch(folder / "run.yaml", 1, replicas=2)
        organiser, heir = made.nodes[0], next(node for node in made.nodes if node.name == "s0r1")
        made.wait_step(6, LIMIT_S)
        assert len(list((heir.state_dir / "data").glob("*.blob"))) == 2, "it did not get the shards from the organiser"
        shutil.rmtree(folder)
        before = step_of(made, organiser)
        wait_for("the organiser trains on", lambda: step_of(made, organiser) >= before + 20, LIMIT_S, made.situation)
        organiser.send(signal.SIGKILL)
        organiser.process.wait()
        before = step_of(made, heir)
        wait_for("the others go on without it", lambda: step_of(made, heir) >= before + 20, LIMIT_S, made.situation)
        newcomer = made.join(made.running(heir).invite, "--stage", "0", name="newcomer")
        made.running(newcomer)
        wait_for("a newcomer trains at stage 0", lambda: contributes(made, newcomer.name), LIMIT_S, made.situation)
        for node in made.nodes:
            node.send(signal.SIGKILL)


def step_of(made: Swarm, node: object) -> int:
    [found] = [made.status(other) for other in made.nodes if other is node]
    return int(found.get("step", 0))


def contributes(made: Swarm, name: str) -> bool:
    [status] = [made.status(node) for node in made.nodes if node.name == name]
    return bool((status.get("contribution") or {}).get("steps"))
