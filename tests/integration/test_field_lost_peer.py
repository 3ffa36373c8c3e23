"""FIELD-CASE 1, a stage's peer is lost in the middle of a batch though another one holds the stage: its main process is killed,
or only its child (the directory's p2pd), while it computes a forward or a backward pass.

Survived: the step goes on without it, at most one attempt is lost, nobody else ends, every step counts exactly its samples. How
long it takes, `make field` measures. All nodes may open no more than 256 files, and one computes with more threads than
the machine has cores.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import end_all_at_once, gone, p2pd_of
from tests.integration.seen import assert_counted_once
from tests.integration.test_takeover import assert_one_history
from tests.tools import ambush
from tests.tools.crowd import Crowd
from tests.tools.material import write_manifest
from tests.tools.struck import MOST_VOIDED, Struck
from tests.tools.swarm import Swarm, swarm, wait_for

NUM_MICROBATCHES = 8
HEARTBEAT_S, LAPSE_HEARTBEATS = 1.0, 2
"""A lapse is shorter than the least deadline of a microbatch (three heartbeats): which of them comes first does not vary."""
T_S = HEARTBEAT_S * LAPSE_HEARTBEATS
MOMENTS: tuple[ambush.Moment, ...] = ("forward", "backward")
PAIR = ("one0", "one1")
MOST_FILES = 256
Strike = Callable[[Crowd, NodeProcess], None]


def launch(made: Swarm) -> Crowd:
    """Stages 0 and 2 once, stage 1 twice."""
    path = write_manifest(
        made.folder,
        num_block_stages=2,
        max_steps=100_000,
        batch__global_samples=2 * NUM_MICROBATCHES,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__heartbeat_s=HEARTBEAT_S,
        timing__lapse_heartbeats=LAPSE_HEARTBEATS,
    )
    invite = made.running(made.start(path, "--stage", "0")).invite
    made.join(invite, "--stage", "2", "--threads", str(2 + (os.cpu_count() or 1)), name="last")
    for name in PAIR:
        ambush.join(made, invite, "--stage", "1", name=name)
    for node in made.nodes:
        psutil.Process(node.process.pid).rlimit(psutil.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))
    for node in made.nodes:
        made.running(node)
    return Crowd(made)


def pair(crowd: Crowd) -> list[NodeProcess]:
    """Both peers of stage 1, at work; who was killed has come back."""
    missing = set(PAIR) - {node.name for node in crowd.living()}
    for name in missing:
        ambush.join(crowd.made, crowd.invite(crowd.made.nodes[:1]), "--stage", "1", name=name)
    crowd.whole()
    return sorted((node for node in crowd.living() if node.name in PAIR), key=lambda node: node.name)


def main_process(crowd: Crowd, node: NodeProcess) -> None:
    crowd.kill(node)


def only_its_child(crowd: Crowd, node: NodeProcess) -> None:
    """The node goes on at once; it sees to its child."""
    child = p2pd_of(node)
    child.kill()
    wait_for("its child is gone", lambda: gone(child), 10)
    os.kill(node.process.pid, signal.SIGCONT)


STRIKES: tuple[Strike, ...] = (only_its_child, main_process)


@pytest.mark.full
@pytest.mark.field(5)
@pytest.mark.timeout(420)
def test_a_peer_is_lost_in_the_middle_of_a_batch(
    tmp_path: Path, times: int, record_property: Callable[[str, object], None]
) -> None:
    found: list[Struck] = []
    with swarm(tmp_path) as made:
        crowd = launch(made)
        for number in range(times):
            for strike in STRIKES:
                found += [mid_batch(crowd, strike, moment, number) for moment in MOMENTS]
        living = crowd.living()
        assert end_all_at_once(living) == [0] * len(living)
        commits = assert_counted_once(crowd.logs(), NUM_MICROBATCHES)
        assert min(commits[stage] for stage in range(3)) >= 3 * len(found)
        assert_one_history(made)
    record_property("kills", len(found))
    record_property("voided", sum(each.voided for each in found))
    record_property("advance_s", [round(each.advance_s, 2) for each in found])
    record_property("within_2t", sum(each.advance_s <= 2 * T_S for each in found))


def mid_batch(crowd: Crowd, strike: Strike, moment: ambush.Moment, number: int) -> Struck:
    """One of the pair is caught in this pass and struck; what came of it."""
    made, victim = crowd.made, pair(crowd)[number % 2]
    child = p2pd_of(victim)
    ambush.arm(victim, moment)
    ambush.caught(victim)
    since = time.monotonic()
    strike(crowd, victim)
    struck = Struck.outcome(crowd, since)
    print(f"{strike.__name__}, {moment}: {struck}")
    assert struck.voided <= MOST_VOIDED, crowd.situation()
    if strike is main_process:
        assert struck.lost == {made.running(victim).peer}
        assert len(crowd.living()) == 3, crowd.situation()
    else:
        assert not struck.lost
        assert len(crowd.living()) == 4, crowd.situation()
        assert p2pd_of(victim).pid != child.pid
    return struck
