"""A block stage of the preset `124m` at its real width: its holder is killed, its neighbours rebuild it at a newcomer, live."""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from node.manifest_file import build, render
from node.stage.meta import split
from protocol.manifest import DataSection, Manifest
from tests.integration.ends import end_all_at_once
from tests.integration.seen import assert_counted_once
from tests.tools.crowd import Crowd
from tests.tools.material import write_shard
from tests.tools.swarm import swarm, wait_for

LOST, SOURCES = 2, [1, 3]
CONTEXT, NUM_MICROBATCHES = 32, 2
BEFORE, AFTER = 2, 2
"""Committed steps before the kill and after the stage is back."""
LIMIT_S = 120.0
WEIGHT_BYTES = 4


def manifest_of(folder: Path) -> Manifest:
    """The preset with one short sample in each microbatch. One replica per stage, and the two copies of the embedding."""
    data = DataSection.model_validate({"train": [write_shard(folder / "train.bin", 4000, vocab=32_000)]})
    changes = {
        "batch.context_tokens": CONTEXT,
        "batch.microbatch_samples": 1,
        "batch.global_samples": NUM_MICROBATCHES,
        "recovery.rebuild_grace_s": 0,
        "recovery.newcomer_wait_s": LIMIT_S,
        "timing.lapse_heartbeats": 8,
        "local": "true",
    }
    return build("124m", data, steps=10_000, overrides=[f"{key}={value}" for key, value in changes.items()])


@pytest.mark.full
@pytest.mark.timeout(420)
def test_a_stage_of_the_preset_regrows(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(render(manifest))
    stage_bytes = WEIGHT_BYTES * split(manifest)[LOST]
    with swarm(tmp_path) as made:
        nodes = made.launch(path, manifest.num_block_stages)
        crowd = Crowd(made)
        crowd.wait_step(BEFORE)
        killed_at = time.time()
        crowd.kill(nodes[LOST])
        step = crowd.step()
        newcomer = crowd.come("newcomer")

        def back() -> dict[str, Any] | None:
            seats = made.status(newcomer).get("seats", []) if newcomer.check_ready() else []
            return next((seat for seat in seats if seat["stage"] == LOST and seat["step"] >= step + AFTER), None)

        seat = wait_for("the newcomer trains", back, LIMIT_S, made.situation)
        living = crowd.living()
        assert end_all_at_once(living, signal.SIGKILL) == [128 + signal.SIGKILL] * len(living)
        provenance, losses = seat["provenance"], crowd.losses()
        assert provenance["rung"] == "recovery"
        assert [source["stage"] for source in provenance["sources"]] == SOURCES
        assert stage_bytes <= provenance["bytes"] <= 1.1 * stage_bytes, "weights alone: one stage comes in, not two"
        assert all(map(math.isfinite, losses.values()))
        assert_counted_once(crowd.logs(), NUM_MICROBATCHES)
        [recovered] = [e for events in crowd.logs().values() for e in events if e["type"] == "recovered"]
        assert (recovered["stage"], recovered["rung"], recovered["generation"]) == (LOST, "recovery", 1)
        print(
            json.dumps(
                figures(recovered, provenance, stage_bytes) | {"losses": [round(v, 3) for _, v in sorted(losses.items())]}
            )
        )
        print(json.dumps({"kill_to_commit_s": round(crowd.committed_at()[recovered["step"]] - killed_at, 2)}))


def figures(recovered: dict[str, Any], provenance: dict[str, Any], stage_bytes: int) -> dict[str, Any]:
    """Bytes and seconds of the recovery, part by part."""
    parts = {name: round(value, 2) for name, value in recovered.items() if name.endswith("_s")}
    transfer = {"received_bytes": provenance["bytes"], "transfer_s": round(provenance["transfer_s"], 2)}
    return {"stage_weight_bytes": stage_bytes, **transfer, **parts, "step": recovered["step"]}
