"""FIELD-CASE 3, forming a group waits for the dead, the slow or nobody: three peers hold a stage; one is killed right before
its gradients are summed, one amid the sum, two at once; one is stopped and continued every half second; at first one is alone.

Survived: the step is done without them, at most one attempt is lost, and a lone replica waits for nobody. What the others
lose in speed, `make field` measures.

FIELD-CASE 10, metrics that jump with the number of peers, in the same swarm: its learning rate is 0, the stage has 1, 2, 3, 1
replicas, somebody scrapes every second. Survived: one loss, counters that never fall, samples per peer that add up.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import end_all_at_once
from tests.integration.seen import assert_counted_once, metric
from tests.integration.test_takeover import assert_one_history
from tests.tools import ambush
from tests.tools.crowd import Crowd
from tests.tools.material import write_manifest
from tests.tools.scraper import Scraper, scraping
from tests.tools.struck import MOST_VOIDED, Struck
from tests.tools.swarm import Swarm, swarm, wait_for

NUM_MICROBATCHES = 12
HEARTBEAT_S, LAPSE_HEARTBEATS = 1.0, 2
"""A lapse is shorter than the least deadline of a microbatch (three heartbeats): which of them comes first does not vary."""
TRIO = ("one0", "one1", "one2")
CALM_STEPS = 8
NAPS, NAP_S = 5, 0.5
NOISE = 0.02
"""Relative, of a step's loss around the mean of all: which samples it has."""


def write_run(folder: Path) -> Path:
    return write_manifest(
        folder,
        num_block_stages=1,
        max_steps=100_000,
        batch__global_samples=2 * NUM_MICROBATCHES,
        optimizer__learning_rate=0.0,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__heartbeat_s=HEARTBEAT_S,
        timing__lapse_heartbeats=LAPSE_HEARTBEATS,
    )


@pytest.mark.full
@pytest.mark.field(3)
@pytest.mark.timeout(420)
def test_nobody_waits_for_the_dead_the_slow_or_company(
    tmp_path: Path, times: int, record_property: Callable[[str, object], None]
) -> None:
    found: list[Struck] = []
    paces: list[float] = []
    with swarm(tmp_path) as made, scraping(made) as scraper:
        crowd = Crowd(made)
        alone(crowd)
        for _ in range(times):
            replicas = trio(crowd)
            paces.append(pace_beside_a_dozer(crowd, replicas[1]))
            if not found:
                assert_samples_add_up(made, replicas)
            for moment, number in (("before_sum", 1), ("in_sum", 1), ("before_sum", 2)):
                found.append(caught_and_killed(crowd, moment, trio(crowd)[:number]))
        crowd.go_on(3)  # the last one is alone again
        living = crowd.living()
        assert end_all_at_once(living) == [0] * len(living)
        assert_counted_once(crowd.logs(), NUM_MICROBATCHES)
        assert_one_history(made)
        assert_one_loss(crowd, scraper)
    record_property("attacks", len(found))
    record_property("voided", sum(each.voided for each in found))
    record_property("advance_s", [round(each.advance_s, 2) for each in found])
    record_property("pace_beside_a_dozer", [round(pace, 2) for pace in paces])
    record_property("scrapes", scraper.scrapes)


# ---- what happens


def alone(crowd: Crowd) -> None:
    """One peer a stage: steps are done, and no attempt is lost over it."""
    made = crowd.made
    invite = made.running(made.start(write_run(made.folder), "--stage", "0")).invite
    made.running(ambush.join(made, invite, "--stage", "1", name=TRIO[0]))
    crowd.wait_step(CALM_STEPS)
    assert [event for node in made.nodes for event in made.events(node, "voided", "suspected")] == []


def trio(crowd: Crowd) -> list[NodeProcess]:
    """Three peers of stage 1, at work; who is missing has come."""
    there = {node.name for node in crowd.living()}
    for name in TRIO:
        if name not in there:
            ambush.join(crowd.made, crowd.invite(crowd.made.nodes[:1]), "--stage", "1", name=name)
    crowd.whole()
    return sorted((node for node in crowd.living() if node.name in TRIO), key=lambda node: node.name)


def pace_beside_a_dozer(crowd: Crowd, node: NodeProcess) -> float:
    """Stopped and continued every half second: nobody is lost, and steps are done. How many, as a share of what is done without
    that in the same time."""
    made, first = crowd.made, crowd.made.nodes[0]
    crowd.go_on(CALM_STEPS)
    calm = statistics.median(_gaps(crowd)[-CALM_STEPS:])
    began, step = time.monotonic(), crowd.step()
    for _ in range(NAPS):
        for signum in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(node.process.pid, signum)
            until = time.monotonic() + NAP_S
            wait_for("half a second", lambda until=until: time.monotonic() >= until, 10)
    seconds = time.monotonic() - began
    done = sum(event["t"] >= began for event in made.events(first, "loss"))
    crowd.wait_step(step + 3)
    assert [event for event in made.events(first, "lost") if event["t"] >= began] == [], crowd.situation()
    return done * calm / seconds


def _gaps(crowd: Crowd) -> list[float]:
    at = [event["t"] for event in crowd.made.events(crowd.made.nodes[0], "loss")]
    return [after - before for before, after in itertools.pairwise(at)]


def caught_and_killed(crowd: Crowd, moment: ambush.Moment, victims: Sequence[NodeProcess]) -> Struck:
    """These are killed at this moment of one and the same step."""
    for node in victims:
        ambush.arm(node, moment)
    for node in victims:
        ambush.caught(node)
    since = time.monotonic()
    for node in victims:
        crowd.kill(node)
    struck = Struck.outcome(crowd, since)
    print(f"{len(victims)} killed, {moment}: {struck}")
    assert struck.voided <= MOST_VOIDED, crowd.situation()
    assert struck.lost == {crowd.made.running(node).peer for node in victims}
    assert len(crowd.living()) == 1 + len(TRIO) - len(victims), crowd.situation()
    return struck


# ---- what is shown


def assert_samples_add_up(made: Swarm, replicas: Sequence[NodeProcess]) -> None:
    """Of all steps so far, before anybody was killed; a step may be counted here and not there yet."""
    before = made.status(made.nodes[0])["step"]
    name, labels = "regrow_microbatches_total", {"stage": "1", "outcome": "committed"}
    counted = [metric(made, node, name, **labels) for node in replicas]
    after = made.status(made.nodes[0])["step"] + 1
    assert all(counted)
    assert NUM_MICROBATCHES * (before - 1) <= sum(counted) <= NUM_MICROBATCHES * after, (counted, before, after)


def assert_one_loss(crowd: Crowd, scraper: Scraper) -> None:
    losses = crowd.losses()
    assert sorted(losses) == list(range(1, len(losses) + 1))
    mean = statistics.mean(losses.values())
    shown = [*losses.values(), *scraper.losses]
    assert all(abs(value - mean) <= NOISE * mean for value in shown), (mean, min(shown), max(shown))
    assert scraper.wrong == []
    assert scraper.scrapes >= 20
