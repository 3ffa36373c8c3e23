"""Node processes over real streams compute what one plain process computes (S6), their replicas are bit-equal (S3), and every
microbatch enters each stage's gradient exactly once (S2)."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load

from node import http_client
from node.data.files import BlobFiles
from node.data.store import open_token_store
from protocol.manifest import Manifest
from tests.integration.seen import assert_counted_once
from tests.numerics.harness import Trajectory, assert_same, manifest_of, reference_run
from tests.tools.command import regrow
from tests.tools.material import write_shard
from tests.tools.swarm import Swarm, swarm, wait_for

NUM_BLOCK_STAGES = 4
TRAIN_LIMIT_S = 120
EXIT_LIMIT_S = 20


def real_manifest(folder: Path, **changes: Any) -> tuple[Manifest, Path]:
    """`manifest_of` with shards on disk, accumulation over eight microbatches, warm-up, and clipping that bites."""
    vocab = 199
    shards = [write_shard(folder / f"{seed}.bin", 3000, vocab, seed) for seed in (1, 2)]
    sections: dict[str, Any] = {
        "data__train": shards,
        "batch__global_samples": 16,
        "optimizer__clip_norm": 0.05,
        "timing__linger_s": 60.0,
    }
    manifest = manifest_of(NUM_BLOCK_STAGES, **(sections | changes))
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(manifest.model_dump(mode="json")))
    return manifest, path


# ---- what the swarm did


def dumped_weights(made: Swarm) -> dict[str, np.ndarray]:
    """Weights of the first node of each stage, while it lingers."""
    weights: dict[str, np.ndarray] = {}
    for stage, node in enumerate(made.nodes[: NUM_BLOCK_STAGES + 1]):
        data = http_client.get(made.running(node).http, f"/debug/dump?stage={stage}")
        weights |= load(data)
    return weights


def trajectory(made: Swarm, manifest: Manifest) -> Trajectory:
    losses = [event["value"] for event in made.events(made.nodes[0], "loss")]
    squares: dict[int, dict[int, float]] = defaultdict(dict)
    for node in made.nodes:
        for event in made.events(node, "reduced"):
            squares[event["step"]][event["stage"]] = event["squared_norm"]
    tokens = manifest.batch.tokens_per_step
    norms = [math.sqrt(sum(squares[step].values())) / tokens for step in sorted(squares)]
    return Trajectory(losses, norms, dumped_weights(made))


def assert_replicas_equal(made: Swarm) -> int:
    """One digest per state_id. Returns how many replicas were compared with another one."""
    digests: dict[str, list[str]] = defaultdict(list)
    for node in made.nodes:
        for event in made.events(node, "committed"):
            digests[event["state_id"]].append(event["digest"])
    assert all(len(set(found)) == 1 for found in digests.values()), "equal state_id, unequal digest"
    return sum(len(found) - 1 for found in digests.values())


# ---- the test


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("num_replicas", "swapped"),
    [pytest.param(1, True, id="1-swapped"), pytest.param(2, False, id="2-plain", marks=pytest.mark.full)],
)
def test_processes_equal_the_plain_loop(tmp_path: Path, num_replicas: int, swapped: bool) -> None:
    manifest, path = real_manifest(tmp_path, swapped=swapped, start_replicas=num_replicas)
    with swarm(tmp_path) as made:
        made.launch(path, NUM_BLOCK_STAGES, num_replicas)
        made.wait_step(manifest.last_step, TRAIN_LIMIT_S)
        wait_for(
            "all lingering", lambda: all(is_finished(made.status(node), manifest) for node in made.nodes), 30, made.situation
        )
        actual = trajectory(made, manifest)
        assert_dump_command_agrees(made, actual, tmp_path / "dump.safetensors")
    assert [node.exit_code for node in made.nodes] == [0] * len(made.nodes), made.situation()

    store = open_token_store(manifest, BlobFiles(tmp_path / "cache"))
    found = assert_same(actual, reference_run(manifest, store))
    assert min(actual.norms) > manifest.optimizer.clip_norm, "the case was meant to clip"
    compared = assert_replicas_equal(made)
    seats = num_replicas * manifest.num_stages + (manifest.recovery.embedding_copies if swapped else 0)
    assert compared == (seats - manifest.num_stages) * manifest.last_step
    logs = {made.running(node).peer: made.events(node) for node in made.nodes}
    commits = assert_counted_once(logs, manifest.batch.num_microbatches)
    assert set(commits) == set(range(manifest.num_stages))
    print(f"{num_replicas} replicas, swapped {swapped}: {found}, {compared} digests compared")


def is_finished(status: dict[str, Any], manifest: Manifest) -> bool:
    seats = status.get("seats", [])
    return status.get("phase") == "finished" and all(seat["step"] == manifest.last_step for seat in seats)


def assert_dump_command_agrees(made: Swarm, actual: Trajectory, out: Path) -> None:
    """`regrow debug dump` writes what was read over HTTP."""
    ended = regrow("debug", "dump", "--state-dir", made.nodes[1].state_dir, "--stage", 1, "--out", out)
    assert ended.code == 0, ended.err
    for name, array in load(out.read_bytes()).items():
        assert np.array_equal(array, actual.weights[name]), name
