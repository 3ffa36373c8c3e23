"""The only holder of a stage is told to go, in swarms of real processes: it hands over the exact state before it ends, to a
newcomer that trains on with the same bits, or to a neighbour that only keeps it until somebody comes who can compute it.

A step has one microbatch, so that each stage has one holder and whoever comes besides stands by.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.demo.process import NodeProcess
from node.manifest_file import load
from protocol.sizes import need_bytes, passive_bytes, state_bytes
from tests.integration.seen import assert_counted_once, says, waits
from tests.tools.command import regrow
from tests.tools.contract import violations
from tests.tools.material import write_manifest
from tests.tools.organiser import Organiser
from tests.tools.swarm import Swarm, swarm, wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]
LIMIT_S = 90.0
NUM_BLOCK_STAGES = 3
STAGES = range(NUM_BLOCK_STAGES + 1)
LEFT = 2
"""The stage whose holders go."""
LAST_STEP = 80

Digests = dict[tuple[int, int], set[str]]
"""Of weights, moments and optimizer age, by (stage, step)."""


def a_run(folder: Path) -> Path:
    return write_manifest(
        folder,
        num_block_stages=NUM_BLOCK_STAGES,
        model__num_hidden_layers=NUM_BLOCK_STAGES,
        batch__global_samples=2,
        max_steps=LAST_STEP,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=6,
        timing__linger_s=2.0,
        recovery__rebuild_grace_s=60.0,
    )


def end(made: Swarm) -> Digests:
    """Wait for the end of the run, check what every node did, and return the digests of all its steps."""
    made.wait_step(LAST_STEP, LIMIT_S)
    assert made.wait_ended(30) == [0] * len(made.nodes), made.situation()
    logs = {made.running(node).peer: made.events(node) for node in made.nodes}
    assert_counted_once(logs, 1)
    assert not [line for log in logs.values() for event in log for line in violations("event", event)]
    assert not [event for log in logs.values() for event in log if event["type"] in ("rebuild", "lost")]
    found: Digests = {}
    for event in (e for log in logs.values() for e in log if e["type"] == "committed"):
        found.setdefault((event["stage"], event["step"]), set()).add(event["digest"])
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """What a run computes in which nobody goes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with swarm(folder) as made:
        made.launch(a_run(folder), NUM_BLOCK_STAGES)
        found = end(made)
    assert found.keys() == {(stage, step) for stage in STAGES for step in range(1, LAST_STEP + 1)}
    assert {len(digests) for digests in found.values()} == {1}
    return found


def stands_by(made: Swarm) -> NodeProcess:
    """A newcomer that the run has no seat for; the others stand still until it is known."""
    organiser = Organiser(made)
    organiser.order("pause")
    newcomer = made.join(made.running(made.nodes[0]).invite, name="newcomer")
    wait_for("it is told how the run stands", lambda: made.status(newcomer).get("phase") == "paused", LIMIT_S, made.situation)
    organiser.order("resume")
    made.wait_step(made.status(made.nodes[0])["step"] + 2, LIMIT_S)
    return newcomer


def seat_of(made: Swarm, node: NodeProcess, stage: int = LEFT) -> dict[str, Any]:
    seats = made.status(node).get("seats", [])
    return next((seat for seat in seats if seat["stage"] == stage), {})


def ended(made: Swarm, node: NodeProcess) -> None:
    wait_for(f"{node.name} ended", lambda: node.exit_code is not None, LIMIT_S, made.situation)
    assert node.exit_code == 0, made.situation()
    assert says(node, f"leaving after handing over stage {LEFT}, within 120 s"), made.situation()


def test_bits_are_those_of_an_undisturbed_run_when_a_newcomer_takes_over(tmp_path: Path, undisturbed: Digests) -> None:
    with swarm(tmp_path) as made:
        nodes = made.launch(a_run(tmp_path), NUM_BLOCK_STAGES)
        made.wait_step(1, LIMIT_S)
        newcomer = stands_by(made)
        nodes[LEFT].send(signal.SIGTERM)
        ended(made, nodes[LEFT])
        assert end(made) == undisturbed
        assert made.events(newcomer, "committed"), "it took part"
        assert [(e["stage"], e["rung"]) for e in made.events(nodes[0], "recovered")] == [(LEFT, "handover")]


# ---- nobody has room to compute it ----


def sigterm(_: Swarm, node: NodeProcess) -> None:
    node.send(signal.SIGTERM)


def sigint(_: Swarm, node: NodeProcess) -> None:
    node.send(signal.SIGINT)


def command(made: Swarm, node: NodeProcess) -> None:
    """It takes a second to start: the run stands still meanwhile."""
    organiser = Organiser(made)
    organiser.order("pause")
    ended = regrow("leave", "--state-dir", node.state_dir)
    assert ended.code == 0, ended.err
    assert ended.out == "left\n"
    organiser.order("resume")


def launch_without_room(made: Swarm, path: Path) -> list[NodeProcess]:
    """A swarm whose nodes have room for the state of one more stage, and not for computing it."""
    manifest = load(path)

    def limit(stage: int) -> str:
        copy = passive_bytes(manifest) if stage in (1, NUM_BLOCK_STAGES) else 0
        exactly = need_bytes(manifest, stage) + copy + state_bytes(manifest, LEFT)
        return f"{(exactly + 1) / 1e6:.6f}MB"

    first = made.start(path, "--stage", "0", "--memory-limit", limit(0), name="s0")
    invite = made.running(first).invite
    for stage in STAGES[1:]:
        made.join(invite, "--stage", str(stage), "--memory-limit", limit(stage), name=f"s{stage}")
    for node in made.nodes:
        made.running(node)
    return made.nodes


def leave_and_park(made: Swarm, leaver: NodeProcess, leave: Callable[[Swarm, NodeProcess], None]) -> NodeProcess:
    """The leaver goes, the run waits; returns whoever keeps its stage, with exactly what the leaver had."""
    leave(made, leaver)
    ended(made, leaver)
    waits(made, made.nodes[0], f"stage {LEFT} is parked at", LIMIT_S)
    last = made.events(leaver, "committed")[-1]
    keepers = [node for node in made.nodes if node.exit_code is None and seat_of(made, node)]
    assert len(keepers) == 1, made.situation()
    seat = seat_of(made, keepers[0])
    assert (seat["role"], seat["phase"]) == ("parked", "idle")
    assert (seat["state_id"], seat["digest"], seat["step"]) == (last["state_id"], last["digest"], last["step"])
    assert made.status(made.nodes[0])["step"] == last["step"]
    return keepers[0]


def test_a_neighbour_parks_it_and_the_run_goes_on_exactly_when_somebody_comes(tmp_path: Path, undisturbed: Digests) -> None:
    with swarm(tmp_path) as made:
        leaver = launch_without_room(made, a_run(tmp_path))[LEFT]
        for number, leave in enumerate((sigterm, sigint, command)):
            made.wait_step(made.status(made.nodes[0])["step"] + 2, LIMIT_S)
            keeper = leave_and_park(made, leaver, leave)
            parked = seat_of(made, keeper)
            leaver = made.join(made.running(made.nodes[0]).invite, name=f"newcomer{number}")
            made.wait_step(parked["step"] + 1, LIMIT_S, leaver)
            copied = made.events(leaver, "transfer")[-1]
            assert (copied["state_id"], copied["from"]) == (parked["state_id"], [made.running(keeper).peer])
            assert not seat_of(made, keeper), "it is not kept any longer"
        assert end(made) == undisturbed
        assert [(e["stage"], e["rung"]) for e in made.events(made.nodes[0], "recovered")] == [(LEFT, "parked")] * 3


# ---- a large one ----


def test_a_stage_of_100_mb_is_handed_over(tmp_path: Path) -> None:
    """25 million parameters: weights of 100 MB, a state of 300 MB. How long it takes is printed; the bound is the notice."""
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        model__hidden_size=1024,
        model__intermediate_size=6827,
        model__num_hidden_layers=1,
        batch__microbatch_samples=1,
        batch__global_samples=1,
        max_steps=100_000,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__lapse_heartbeats=10,
    )
    manifest = load(path)
    with swarm(tmp_path) as made:
        _, leaver = made.launch(path, 1)
        made.wait_step(2, LIMIT_S)
        newcomer = stands_by(made)
        began = time.monotonic()
        leaver.send(signal.SIGTERM)
        wait_for("the leaver ended", lambda: leaver.exit_code is not None, LIMIT_S, made.situation)
        seconds = time.monotonic() - began
        assert leaver.exit_code == 0, made.situation()
        moved = made.events(newcomer, "transfer")[-1]
        last = made.events(leaver, "committed")[-1]
        assert moved["state_id"] == last["state_id"]
        assert moved["bytes"] == state_bytes(manifest, 1)
        made.wait_step(last["step"] + 2, LIMIT_S, newcomer)
        size, took = moved["bytes"] / 1e6, moved["s"]
        print(f"{size:.0f} MB of state in {took:.1f} s ({size / took:.0f} MB/s); told to go to gone: {seconds:.1f} s")
