"""Nodes of a training swarm are frozen and killed: what a static swarm does then, and that each microbatch counts once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import CHILD_LIMIT_S, Ending, end_all_at_once, gone, p2pd_of
from tests.integration.seen import assert_counted_once, metric, says, seat_phase, waits
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = pytest.mark.timeout(240)
HEARTBEAT_S, LAPSE_HEARTBEATS = 0.5, 4
LIMIT_S = 60.0
NUM_MICROBATCHES = 16


def launch(made: Swarm, num_block_stages: int, replicas_of_one: int) -> list[NodeProcess]:
    """Stage 0 and the last stage once, stage 1 as often as asked; in training."""
    path = write_manifest(
        made.folder,
        num_block_stages=num_block_stages,
        max_steps=100_000,
        batch__global_samples=2 * NUM_MICROBATCHES,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__heartbeat_s=HEARTBEAT_S,
        timing__lapse_heartbeats=LAPSE_HEARTBEATS,
    )
    invite = made.running(made.start(path, "--stage", "0")).invite
    for replica in range(replicas_of_one):
        made.running(made.join(invite, "--stage", "1", name=f"one{replica}"))
    for stage in range(2, num_block_stages + 1):
        made.running(made.join(invite, "--stage", str(stage), name=f"stage{stage}"))
    made.wait_step(2, LIMIT_S)
    return made.nodes


def test_losses_one_after_the_other(tmp_path: Path) -> None:
    with swarm(tmp_path) as made:
        first, one0, one1, one2, last = launch(made, num_block_stages=2, replicas_of_one=3)
        nap_within_the_lapse(made, one0)
        freeze_beyond_the_lapse(made, one1)
        kill_a_replica(made, one2)
        kill_the_sole_holder(made, last, stage=2)
        committed = [event for event in made.events(first, "committed") if event["stage"] == 0]
        assert end_all_at_once([first, one0, one1]) == [0, 0, 0]
        assert_all_counted_once(made)
        disturbed = [f"{event['type']}: {event['reason']}" for event in made.events(first, "voided", "rerouted")]
        print(f"{len(committed)} steps", *disturbed, sep="\n  ")


def test_coordinator_frozen_and_killed(tmp_path: Path) -> None:
    """While it is silent everybody waits and says so; when it comes back the run goes on, and not before."""
    with swarm(tmp_path) as made:
        first, *others = launch(made, num_block_stages=1, replicas_of_one=2)
        missed = f"the coordinator {made.running(first).peer[-8:]} is not heard"
        first.send(signal.SIGSTOP)
        for node in others:
            waits(made, node, missed, LIMIT_S)
        first.send(signal.SIGCONT)
        goes_on(made)
        for node in others:
            wait_for("it trains again", lambda node=node: made.status(node)["phase"] == "training", LIMIT_S, made.situation)
        assert made.events(first, "lost") == []

        first.send(signal.SIGKILL)
        for node in others:
            waits(made, node, missed, LIMIT_S)
        assert_no_progress(made, others)
        assert end_all_at_once(others) == [0, 0]
        assert_all_counted_once(made)


def assert_all_counted_once(made: Swarm) -> None:
    logs = {made.running(node).peer: made.events(node) for node in made.nodes}
    assert min(assert_counted_once(logs, NUM_MICROBATCHES).values()) >= 5


# ---- faults


def nap_within_the_lapse(made: Swarm, node: NodeProcess) -> None:
    """Frozen for a heartbeat: nothing is lost."""
    before = made.status(made.nodes[0])["step"]
    node.send(signal.SIGSTOP)
    wait_silent(made, node, 1.2 * HEARTBEAT_S)
    node.send(signal.SIGCONT)
    made.wait_step(before + 3, LIMIT_S)
    assert made.events(made.nodes[0], "lost") == []


def freeze_beyond_the_lapse(made: Swarm, node: NodeProcess) -> None:
    """Dropped while it is frozen. Continued, it finds that it has no seat, says so, and learns its stage anew."""
    node.send(signal.SIGSTOP)
    wait_lost(made, node, "not heard for")
    goes_on(made, without=node)
    node.send(signal.SIGCONT)
    wait_for("it says so", lambda: says(node, "the roster goes on without this node"), LIMIT_S, made.situation)
    row = {"stage": 1, "peer": made.running(node).peer, "role": "active"}
    wait_for("it computes again", lambda: row in made.status(made.nodes[0])["roster"], LIMIT_S, made.situation)
    goes_on(made)


def kill_a_replica(made: Swarm, node: NodeProcess) -> None:
    """Those that are left do its part of the open step, or, if its sum has begun, all of the step again."""
    wait_for("a step is open there", lambda: seat_phase(made, node) == "working", LIMIT_S, made.situation)
    before = num_disturbed(made)
    kill(made, node)
    wait_lost(made, node, "not heard for", "3 attempts at step", "cannot reach")  # whichever shows first at its closed port
    goes_on(made, without=node)
    assert num_disturbed(made) > before


def num_disturbed(made: Swarm) -> int:
    return sum(len(made.events(made.nodes[0], kind)) for kind in ("voided", "rerouted"))


def kill_the_sole_holder(made: Swarm, node: NodeProcess, stage: int) -> None:
    """Everybody waits and names the stage; nothing is committed."""
    kill(made, node)
    wait_lost(made, node, "not heard for")
    others = [each for each in made.nodes if each.exit_code is None]
    for each in others:
        waits(made, each, f"stage {stage} has no holder", LIMIT_S)
    assert_no_progress(made, others)


def kill(made: Swarm, node: NodeProcess) -> None:
    """kill -9; p2pd goes with its node, also one that hangs and cannot see that its node is gone."""
    daemon, ending = p2pd_of(node), Ending(node)
    daemon.suspend()
    ending.send(signal.SIGKILL)
    wait_for("p2pd is gone", lambda: gone(daemon), CHILD_LIMIT_S)
    assert ending.check() == 137


# ---- what is seen


def wait_silent(made: Swarm, node: NodeProcess, seconds: float) -> None:
    """Until the coordinator has not heard the node for so long."""
    peer = made.running(node).peer

    def silent() -> bool:
        rows = made.status(made.nodes[0]).get("view", ())
        return any(row["peer"] == peer and (row["seen_s"] or 0.0) >= seconds for row in rows)

    wait_for(f"{node.name} is silent", silent, LIMIT_S, made.situation)


def wait_lost(made: Swarm, node: NodeProcess, *reasons: str) -> None:
    peer = made.running(node).peer

    def lost() -> bool:
        told = [e["reason"] for e in made.events(made.nodes[0], "lost") if e["peer"] == peer]
        return any(reason in why for why in told for reason in reasons)

    wait_for(f"{node.name} is lost", lost, LIMIT_S, made.situation)


def goes_on(made: Swarm, without: NodeProcess | None = None) -> None:
    """Three more steps, to which `without` contributes nothing."""
    first = made.nodes[0]
    step = made.status(first)["step"]
    made.wait_step(step + 3, LIMIT_S)
    later = [event for event in made.events(first, "committed") if event["step"] > step]
    assert without is None or not any(made.running(without).peer in event["contributors"] for event in later)


def assert_no_progress(made: Swarm, nodes: list[NodeProcess]) -> None:
    """For longer than a lapse, by the nodes' own clocks: their heartbeats go on, their steps do not."""
    before = {node.name: made.status(node)["step"] for node in nodes}
    enough_beats = [beats(made, node) + LAPSE_HEARTBEATS + 1 for node in nodes]
    for node, enough in zip(nodes, enough_beats, strict=True):
        wait_for("heartbeats", lambda node=node, enough=enough: beats(made, node) >= enough, LIMIT_S, made.situation)
    assert {node.name: made.status(node)["step"] for node in nodes} == before


def beats(made: Swarm, node: NodeProcess) -> float:
    return metric(made, node, "regrow_messages_total", kind="Heartbeat", direction="sent")
