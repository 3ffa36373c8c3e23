"""The only holder of a stage is killed in a swarm of real processes: its neighbours rebuild the stage, a newcomer holds it, and
training goes on from the current step, without a checkpoint.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node import http_client
from node.demo.process import NodeProcess
from tests.integration.ends import Ending, end_all_at_once
from tests.integration.seen import assert_counted_once
from tests.tools import saboteur
from tests.tools.contract import violations
from tests.tools.material import write_manifest
from tests.tools.swarm import Swarm, swarm, wait_for

LIMIT_S = 90.0
NUM_MICROBATCHES = 8


def a_run(folder: Path, num_block_stages: int, **more: Any) -> Path:
    return write_manifest(
        folder,
        num_block_stages=num_block_stages,
        model__num_hidden_layers=num_block_stages,
        max_steps=100_000,
        batch__global_samples=2 * NUM_MICROBATCHES,
        evaluation__every_steps=0,
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=4,
        **{"recovery__rebuild_grace_s": 0.0} | more,
    )


def kill(made: Swarm, node: NodeProcess) -> int:
    """kill -9; the step that the others were at."""
    ending = Ending(node)
    ending.send(signal.SIGKILL)
    ending.check()
    return max(event["step"] for other in made.nodes if other is not node for event in made.events(other, "loss"))


def recovery_figures(made: Swarm, nodes: list[NodeProcess]) -> dict[str, float]:
    """`regrow_recover...` of /metrics, summed over nodes as Prometheus would; without buckets."""
    total: dict[str, float] = {}
    for node in nodes:
        text = http_client.get(made.running(node).http, "/metrics").decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("regrow_recover") and sample.name.endswith(("_total", "_count")):
                    name = f"{sample.name} {next(iter(sample.labels.values()))}"
                    total[name] = total.get(name, 0.0) + sample.value
    return total


def seat_of(made: Swarm, node: NodeProcess, stage: int) -> dict[str, Any]:
    seats = made.status(node).get("seats", [])
    return next((seat for seat in seats if seat["stage"] == stage), {})


@pytest.mark.timeout(240)
def test_a_newcomer_takes_a_middle_stage_that_its_neighbours_rebuilt(tmp_path: Path) -> None:
    path = a_run(tmp_path, 3, recovery__policy="checkfree", recovery__newcomer_wait_s=60.0)
    with swarm(tmp_path) as made:
        nodes = made.launch(path, num_block_stages=3)
        made.wait_step(5, LIMIT_S)
        before = kill(made, nodes[2])
        newcomer = made.join(made.running(nodes[0]).invite, name="newcomer")
        made.wait_step(before + 5, LIMIT_S, newcomer)
        provenance = seat_of(made, newcomer, 2)["provenance"]
        assert provenance["rung"] == "recovery"
        assert [source["stage"] for source in provenance["sources"]] == [1, 3]
        assert sum(source["coefficient"] for source in provenance["sources"]) == pytest.approx(1.0)
        survivors = [nodes[0], nodes[1], nodes[3], newcomer]
        figures = {name: value for name, value in recovery_figures(made, survivors).items() if value}
        once = (
            "detect",
            "grace",
            "wait_for_newcomer",
            "average",
            "transfer",
            "first_commit",
        )  # a stage of one range: one share
        assert figures == {
            "regrow_recoveries_total recovery": 1,
            **{f"regrow_recovery_seconds_count {phase}": 1 for phase in once},
        }
        assert end_all_at_once(survivors) == [0] * 4
        logs = {made.running(node).peer: made.events(node) for node in made.nodes}
        assert_counted_once(logs, NUM_MICROBATCHES)
        assert not [line for log in logs.values() for event in log for line in violations("event", event)]


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_neighbour_takes_a_second_seat_until_somebody_comes(tmp_path: Path) -> None:
    path = a_run(tmp_path, 3, recovery__policy="checkfree", recovery__newcomer_wait_s=0.0, recovery__moments="averaged")
    with swarm(tmp_path) as made:
        nodes = made.launch(path, num_block_stages=3)
        made.wait_step(5, LIMIT_S)
        before = kill(made, nodes[3])
        made.wait_step(before + 5, LIMIT_S)
        held = [node for node in nodes if node is not nodes[3] and seat_of(made, node, 3)]
        assert len(held) == 1, made.situation()
        assert [s["stage"] for s in seat_of(made, held[0], 3)["provenance"]["sources"]] == [2], "S_N: a copy of its neighbour"
        regrown = seat_of(made, held[0], 3)
        assert regrown["optimizer_age"] == regrown["step"], "with the moments of its neighbour"
        newcomer = made.join(made.running(nodes[0]).invite, name="newcomer")

        def actives(node: NodeProcess) -> list[int]:
            return [seat["stage"] for seat in made.status(node).get("seats", []) if seat["role"] == "active"]

        def relieved() -> bool:
            """Every node computes for one stage."""
            mine = [actives(node) for node in (nodes[0], nodes[1], nodes[2], newcomer)]
            return sorted(mine) == [[0], [1], [2], [3]]

        wait_for("the newcomer relieves it", relieved, LIMIT_S, made.situation)
        assert end_all_at_once([nodes[0], nodes[1], nodes[2], newcomer]) == [0] * 4


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_holder_whose_device_hangs_while_its_heartbeats_flow(tmp_path: Path) -> None:
    """It alone knows: it gives attempt after attempt up, then goes with a code of its own, and its stage regrows."""
    path = a_run(tmp_path, 3, recovery__policy="checkfree", recovery__newcomer_wait_s=60.0)
    with swarm(tmp_path) as made:
        first = made.start(path, "--stage", "0")
        invite = made.running(first).invite
        hanging = saboteur.start("hang", 5, "hanging", ["join", invite, "--stage", "2"], made.folder / "hanging")
        made.nodes.append(hanging)
        made.running(hanging)
        for stage in (1, 3):
            made.join(invite, "--stage", str(stage), name=f"stage{stage}")
        made.wait_step(4, LIMIT_S)
        newcomer = made.join(invite, name="newcomer")
        wait_for("it gives up", lambda: hanging.exit_code is not None, LIMIT_S, made.situation)
        assert hanging.exit_code == 6, made.situation()
        assert "device does not answer" in " ".join(hanging.last_words()), made.situation()
        made.wait_step(8, LIMIT_S, newcomer)
        assert seat_of(made, newcomer, 2)["provenance"]["rung"] == "recovery"
        gave_up = [event["reason"] for event in made.events(first, "voided") if "has not ended after" in event["reason"]]
        assert len(gave_up) >= 2, made.events(first, "voided")


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("stage", [2, 0])
def test_a_replica_that_slept_brings_its_stage_back_as_it_was_some_steps_ago(tmp_path: Path, stage: int) -> None:
    """Its sibling went on without it and dies: the sleeper's state, a few steps old, is better than any average, and all
    that is left of stage 0."""
    more = {"recovery__policy": "checkfree", "recovery__newcomer_wait_s": 60.0, "recovery__embedding_copies": 0}
    path = a_run(tmp_path, 3, **more | {"recovery__rebuild_grace_s": 20.0})
    with swarm(tmp_path) as made:
        nodes = made.launch(path, num_block_stages=3)
        other, rest = nodes[stage], nodes[:stage] + nodes[stage + 1 :]
        first = rest[0]
        sleeper = made.join(made.running(first).invite, "--stage", str(stage), name="sleeper")
        made.running(sleeper)
        peer = made.running(sleeper).peer
        seated = {"stage": stage, "peer": peer, "role": "active"}
        wait_for("both compute", lambda: seated in made.status(first)["roster"], LIMIT_S, made.situation)
        sleeper.send(signal.SIGSTOP)
        wait_for("it is given up", lambda: seated not in made.status(first)["roster"], LIMIT_S, made.situation)
        made.wait_step(made.status(first)["step"] + 5, LIMIT_S, first)
        before = kill(made, other)
        lost = made.running(other).peer
        wait_for("it is lost", lambda: lost in str(made.events(first, "lost")), LIMIT_S, made.situation)
        sleeper.send(signal.SIGCONT)
        made.wait_step(before + 5, LIMIT_S, sleeper)
        provenance = seat_of(made, sleeper, stage)["provenance"]
        assert provenance["rung"] == "older_copy"
        assert 5 <= provenance["steps_behind"] <= 50
        assert seat_of(made, sleeper, stage)["lr_factor"] == 1.0
        [rebuild] = made.events(first, "rebuild")
        assert [source["stage"] for source in rebuild["sources"]] == [stage]
        logs = {made.running(node).peer: made.events(node) for node in made.nodes}
        assert not [line for log in logs.values() for event in log for line in violations("event", event)]
        assert end_all_at_once([*rest, sleeper]) == [0] * 4
        assert_counted_once(logs, NUM_MICROBATCHES)
