"""FIELD-CASE 7, killed or out of disk while saving, in a swarm that saves after every second step (policy `checkpoint`): a
holder is killed at a random moment, again and again; the newest file is cut short, or has a byte flipped; the disk is full; the
store cannot be written, or is removed.

Survived: everybody goes on from the newest step that is saved whole, and says so where it is not the newest one; what cannot be
saved is said, and training goes on; no temporary files pile up.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.checkpoints.places import TEMP_PREFIX, DirectoryPlace
from node.checkpoints.store import CheckpointStore
from node.demo.process import NodeProcess
from tests.integration.test_checkpoint import LIMIT_S, a_run, assert_repeats, gone_back, kill, store_of, whole_steps
from tests.tools.command import ROOT
from tests.tools.organiser import Organiser
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = pytest.mark.full
MOST_TEMPORARIES = 3
"""One for each stage that may be saved at this moment, or whose holder was killed amid that."""
DISK_BYTES = 2 << 20


def newest_step(made: Swarm, node: NodeProcess) -> int:
    return int(max((event["step"] for event in made.events(node, "loss")[-1:]), default=0))


def wait_saved(made: Swarm, folder: Path, beyond: int) -> int:
    """The newest step that is saved whole, once there is one beyond this."""

    def found() -> int:
        steps = whole_steps(folder)
        return steps[0] if steps and steps[0] > beyond else 0

    return int(wait_for(f"a step beyond {beyond} is saved", found, LIMIT_S, made.situation))


def replace(made: Swarm, nodes: dict[int, NodeProcess], stage: int, name: str) -> None:
    """The holder of the stage is killed, and somebody else comes. How long a process takes to start is no part of the case."""
    kill(nodes[stage])
    nodes[stage] = made.join(made.running(nodes[0]).invite, name=name)
    made.running(nodes[stage])


@pytest.mark.field(30)
@pytest.mark.timeout(300)
def test_killed_while_saving(tmp_path: Path, seed: int, times: int) -> None:
    rng = random.Random(seed)
    with swarm(tmp_path) as made:
        nodes = dict(enumerate(made.launch(a_run(tmp_path, checkpoint_every=2), num_block_stages=2)))
        every = list(nodes.values())
        for kills in range(1, times + 1):
            saved = wait_saved(made, tmp_path, newest_step(made, nodes[0]))
            moment = time.monotonic() + rng.uniform(0.0, 2.0)
            wait_for("the moment", lambda moment=moment: time.monotonic() >= moment, LIMIT_S)  # type: ignore[misc]
            replace(made, nodes, rng.choice((1, 2)), f"newcomer{kills}")
            every.append(made.nodes[-1])
            event = gone_back(made, list(nodes.values()), epoch=kills)
            assert event["step"] >= saved, made.situation()
            assert len([f for f in os.listdir(store_of(tmp_path).place.where) if f.startswith(TEMP_PREFIX)]) <= MOST_TEMPORARIES
        made.wait_step(event["from_step"] + 2, LIMIT_S, nodes[1])
        print(f"{times} kills, {assert_repeats(made, every)} steps of stages repeated to the bit")


@pytest.mark.timeout(300)
def test_what_is_damaged_or_cannot_be_saved(tmp_path: Path) -> None:
    with swarm(tmp_path) as made:
        nodes = dict(enumerate(made.launch(a_run(tmp_path, checkpoint_every=20), num_block_stages=2)))
        wait_saved(made, tmp_path, wait_saved(made, tmp_path, 0))
        organiser = Organiser(made)
        organiser.order("pause")
        newest = organiser.paused() // 20 * 20
        wait_for("it is saved", lambda: whole_steps(tmp_path)[:2] == [newest, newest - 20], LIMIT_S, made.situation)
        store = store_of(tmp_path)
        run = Path(store.place.where)
        file = next(run / saved.name for saved in store.survey() if (saved.step, saved.stage) == (newest, 2))
        whole = file.read_bytes()
        file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 0x40]) + whole[-8:])
        replace(made, nodes, 1, "newcomer")
        event = gone_back(made, list(nodes.values()), epoch=2)
        assert (event["step"], event["stages"]) == (newest - 20, []), made.situation()
        [failed] = made.events(nodes[2], "restore_failed")
        assert "its bytes are not those that were saved" in failed["reason"]

        file = next(run / saved.name for saved in store.survey() if (saved.step, saved.stage) == (newest - 20, 0))
        file.write_bytes(file.read_bytes()[:-1])
        replace(made, nodes, 2, "another")
        event = gone_back(made, list(nodes.values()), epoch=3)
        assert event["step"] in (0, newest - 40), "cut short is as good as gone"
        organiser.order("resume")
        made.wait_step(newest + 2, LIMIT_S, nodes[2])

        run.rename(tmp_path / "away")
        run.write_bytes(b"")  # root may write to a directory that is read-only
        failed = wait_for("told", lambda: made.events(nodes[0], "save_failed"), LIMIT_S, made.situation)[0]
        assert failed["reason"] == f"{run} cannot be written: Not a directory"
        step = newest_step(made, nodes[0])
        made.wait_step(step + 2, LIMIT_S)
        run.unlink()  # removed: it is made again
        wait_saved(made, tmp_path, step)


def test_a_full_disk_keeps_what_it_has(tmp_path: Path) -> None:
    """2 MB, and stages that take 1 and then 3."""
    script = f"mount -t tmpfs -o size={DISK_BYTES} none {tmp_path} && {sys.executable} -m tests.tools.saved --full {tmp_path}"
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    said, *left = ended.stdout.splitlines()
    assert said == f"{tmp_path} cannot be written: No space left on device"
    assert len(left) == 1 and left[0].startswith("step-00000001.stage-00.")
    assert CheckpointStore(DirectoryPlace(tmp_path), "run").survey() == [], "it was mounted for that process alone"
