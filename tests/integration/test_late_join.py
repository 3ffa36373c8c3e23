"""A replica that joins late trains as its donor does: the same learning rate, optimizer age and digests, step after step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from node.manifest_file import load
from protocol.schedule import learning_rate
from tests.integration.ends import end_all_at_once
from tests.tools.crowd import Crowd
from tests.tools.material import write_manifest
from tests.tools.swarm import swarm

Seat = dict[str, Any]


@pytest.mark.full
@pytest.mark.parametrize("afterwards", [(1, 10, 100)], ids=str)
@pytest.mark.timeout(300)
def test_a_late_replica_is_what_its_donor_is(tmp_path: Path, afterwards: tuple[int, ...]) -> None:
    """The rate changes with each step: who applies another one has another digest."""
    path = write_manifest(
        tmp_path,
        num_block_stages=1,
        max_steps=10_000,
        optimizer__schedule="cosine",
        optimizer__warmup_steps=5_000,
        evaluation__every_steps=0,
        recovery__policy="none",
        timing__heartbeat_s=0.5,
        timing__lapse_heartbeats=6,
    )
    manifest = load(path)
    with swarm(tmp_path) as made:
        donors = made.launch(path, 1)[:2]
        crowd = Crowd(made)
        crowd.wait_step(10)
        newcomers = [crowd.come(f"late{stage}", "--stage", str(stage)) for stage in (0, 1)]
        crowd.whole()
        for newcomer in newcomers:
            made.running(newcomer)
        crowd.go_on(afterwards[-1] + 1)
        told = crowd.pause()
        for stage, (donor, newcomer) in enumerate(zip(donors, newcomers, strict=True)):
            peer = made.running(newcomer).peer
            began = next(e["step"] for e in made.events(newcomer, "joined") if (e["peer"], e["role"]) == (peer, "active"))
            theirs, own = (committed(made.events(node, "committed"), stage) for node in (donor, newcomer))
            for later in afterwards:
                step = began + later
                assert own[step]["digest"] == theirs[step]["digest"], f"stage {stage}, {later} steps after it began"
                assert peer in own[step]["contributors"]
                assert learning_rate(manifest.optimizer, step, manifest.last_step) > learning_rate(
                    manifest.optimizer, step - 1, manifest.last_step
                )
            there, here = (seat_of(told[node.name], stage) for node in (donor, newcomer))
            assert here.pop("provenance")["rung"] == "copy"
            assert there.pop("provenance") == {"rung": "seed"}
            assert here == there
            assert here["optimizer_age"] == here["step"] >= began + afterwards[-1]
            assert here["lr_factor"] == 1.0
        assert end_all_at_once(made.nodes) == [0] * 4


def committed(events: Iterable[dict[str, Any]], stage: int) -> dict[int, dict[str, Any]]:
    return {event["step"]: event for event in events if event["stage"] == stage}


def seat_of(status: dict[str, Any], stage: int) -> Seat:
    return next(seat for seat in status["seats"] if seat["stage"] == stage)
