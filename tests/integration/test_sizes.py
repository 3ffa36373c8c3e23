"""The presets at their real width: a step of many processes on this machine, with a short context; the largest one on paper."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from node.demo.process import NodeProcess
from node.manifest_file import build, render
from node.stage.meta import split
from protocol.manifest import DataSection, Manifest
from protocol.sizes import GRADIENT_BYTES_PER_PARAMETER, STATE_BYTES_PER_PARAMETER, need_bytes, passive_bytes
from tests.integration.ends import end_all_at_once
from tests.tools.material import write_shard
from tests.tools.swarm import Swarm, swarm, wait_for

BYTES_PER_PARAMETER = STATE_BYTES_PER_PARAMETER + GRADIENT_BYTES_PER_PARAMETER
CONTEXT, NUM_MICROBATCHES = 64, 2
STEP_LIMIT_S = 240.0
PROCESS_BYTES = 700 << 20
"""Room for Python, torch, hivemind, gRPC and the activations of a short context."""


def manifest_of(preset: str, folder: Path, policy: str = "") -> Manifest:
    data = DataSection.model_validate({"train": [write_shard(folder / "train.bin", 4000, vocab=32_000)]})
    changes = {
        "batch.context_tokens": CONTEXT,
        "batch.microbatch_samples": 1,
        "batch.global_samples": NUM_MICROBATCHES,
        "timing.heartbeat_s": 2.0,
        "timing.lapse_heartbeats": 10,
        "timing.linger_s": 60.0,
        "local": "true",
    }
    return build(preset, data, policy=policy or None, steps=1, overrides=[f"{key}={value}" for key, value in changes.items()])


@pytest.mark.full
@pytest.mark.timeout(420)
@pytest.mark.parametrize(("preset", "num_block_stages", "policy"), [("124m", 4, ""), ("124m", 4, "redundant"), ("500m", 6, "")])
def test_one_step(tmp_path: Path, preset: str, num_block_stages: int, policy: str) -> None:
    manifest = manifest_of(preset, tmp_path, policy)
    assert manifest.num_block_stages == num_block_stages
    path = tmp_path / "run.yaml"
    path.write_text(render(manifest))
    with swarm(tmp_path) as made:
        made.launch(path, num_block_stages)
        made.wait_step(1, STEP_LIMIT_S)
        wait_for("all have committed", lambda: all(committed(made, node) for node in made.nodes), 60, made.situation)
        peaks = {node.name: peak_bytes(node) for node in made.nodes}
        held = {node.name: [seat["stage"] for seat in made.status(node)["seats"]] for node in made.nodes}
        active = {node.name: stage for stage, node in enumerate(made.nodes)}
        assert end_all_at_once(made.nodes, signal.SIGTERM) == [0] * len(made.nodes)
        assert_one_digest_per_state(made, manifest)
    sizes = split(manifest)
    print(f"{preset}: {sum(sizes):,} parameters, loss {made.events(made.nodes[0], 'loss')[0]['value']:.3f}")
    for name, stages in held.items():
        needed = BYTES_PER_PARAMETER * sum(sizes[stage] for stage in stages)
        print(f"  {name}, stages {stages}: peak {mib(peaks[name])}, of which {mib(needed)} are state and gradient")
        assert peaks[name] < 1.3 * needed + PROCESS_BYTES
        told = need_bytes(manifest, active[name])
        told += passive_bytes(manifest) if 0 in stages[:-1] and not policy else 0
        print(f"    the manifest alone says {mib(told)}: {told / peaks[name]:.2f} of the peak")
        assert 0.7 < told / peaks[name] < 2.0


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"


def committed(made: Swarm, node: NodeProcess) -> bool:
    seats = made.status(node).get("seats", [])
    return bool(seats) and all(seat["step"] == 1 and seat["phase"] == "idle" for seat in seats)


def peak_bytes(node: NodeProcess) -> int:
    """VmHWM: the most that was ever resident."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def assert_one_digest_per_state(made: Swarm, manifest: Manifest) -> None:
    digests: dict[tuple[int, str], set[str]] = {}
    for event in (event for node in made.nodes for event in made.events(node, "committed")):
        digests.setdefault((event["stage"], event["state_id"]), set()).add(event["digest"])
    assert sorted(stage for stage, _ in digests) == list(range(manifest.num_stages))
    assert all(len(found) == 1 and len(min(found)) == 64 for found in digests.values()), digests


@pytest.mark.parametrize(
    ("preset", "total", "embedding", "block_stage"),
    [
        ("124m", 83_112_448, 32_768_512, 12_585_984),
        ("500m", 468_239_360, 65_537_024, 67_117_056),
        ("1.5b", 1_741_785_088, 131_074_048, 268_451_840),
    ],
)
def test_split_on_paper(tmp_path: Path, preset: str, total: int, embedding: int, block_stage: int) -> None:
    """Tensors on the meta device: no memory at any size."""
    manifest = manifest_of(preset, tmp_path)
    sizes = split(manifest)
    m, layers = manifest.model, manifest.model.num_hidden_layers // manifest.num_block_stages
    layer = 4 * m.hidden_size**2 + 3 * m.hidden_size * m.intermediate_size + 2 * m.hidden_size
    assert sizes == [2 * m.vocab_size * m.hidden_size + m.hidden_size] + [layers * layer] * manifest.num_block_stages
    assert (sum(sizes), sizes[0], sizes[1]) == (total, embedding, block_stage)
    state = [STATE_BYTES_PER_PARAMETER * size / 2**30 for size in sizes[:2]]
    print(f"{preset}: {total:,} parameters; state of stage 0 {state[0]:.2f} GiB, of a block stage {state[1]:.2f} GiB")
