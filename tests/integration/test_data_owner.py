"""The organiser's data folder is deleted and his node killed: whoever got the data from him goes on, and hands them on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.integration.ends import end_all_at_once
from tests.tools.crowd import Crowd
from tests.tools.material import write_manifest
from tests.tools.swarm import swarm

GOES_ON = 10


def write_run(folder: Path) -> Path:
    """The manifest names its shards by file name: they are found beside it, and nowhere else."""
    path = write_manifest(
        folder,
        num_block_stages=1,
        max_steps=100_000,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=6,
    )
    manifest = yaml.safe_load(path.read_text())
    for shard in (*manifest["data"]["train"], *manifest["data"]["validation"]):
        shard["sources"] = [Path(source).name for source in shard["sources"]]
    path.write_text(yaml.safe_dump(manifest))
    return path


@pytest.mark.full
@pytest.mark.timeout(240)
def test_the_run_outlives_the_owner_of_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with swarm(tmp_path) as made:
        organiser, _ = made.launch(write_run(data), 1)
        crowd = Crowd(made)
        crowd.wait_step(3)
        late = crowd.come("late", "--stage", "0")
        crowd.whole()
        assert len(list((late.state_dir / "data").glob("*.blob"))) == 2

        shutil.rmtree(data)
        crowd.go_on(2)
        crowd.kill(organiser)
        third = crowd.come("third", "--stage", "0")
        crowd.go_on(GOES_ON)
        told = crowd.whole()
        assert told["late"]["ballot"][1] == made.running(late).peer, "it holds stage 0 alone, and leads"
        assert len(list((third.state_dir / "data").glob("*.blob"))) == 2
        crowd.go_on(GOES_ON)
        for node in (late, third):
            last = made.events(node, "committed")[-1]
            assert {made.running(late).peer, made.running(third).peer} == set(last["contributors"])
        assert end_all_at_once(crowd.living()) == [0, 0, 0]
        losses = crowd.losses()
        assert sorted(losses) == list(range(1, len(losses) + 1))
