"""The run that `make bench` measures, and one measurement of it as a swarm or as the plain loop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import blake3
import numpy as np

from node import http_client
from node.demo.process import NodeProcess
from node.manifest_file import render
from protocol.manifest import Manifest, from_mapping
from tests.tools.swarm import Swarm, swarm

VOCAB, CONTEXT, BLOCK_STAGES = 8192, 256, 3
LIMIT_S = 900.0
_SAMPLE = re.compile(r"^(regrow_\w+?)(?:\{(.*)\})? ([-+.\deE]+)$", re.MULTILINE)


def make_manifest(folder: Path, steps: int, microbatches: int) -> Manifest:
    """dim 512, 9 layers, context 256, vocabulary 8k, three block stages, bf16 on the wire; seeded noise as data."""
    tokens = np.random.default_rng(0).zipf(1.3, 200_000).clip(1, VOCAB - 1).astype("<u2")
    shard = folder / "noise.tokens"
    shard.write_bytes(tokens.tobytes())
    digest = blake3.blake3(shard.read_bytes()).hexdigest()
    ref = {"digest": digest, "num_bytes": shard.stat().st_size, "num_tokens": len(tokens), "sources": [str(shard)]}
    return from_mapping(
        {
            "name": "bench",
            "model": {
                "vocab_size": VOCAB,
                "hidden_size": 512,
                "intermediate_size": 2048,
                "num_hidden_layers": 9,
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "max_position_embeddings": CONTEXT,
            },
            "num_block_stages": BLOCK_STAGES,
            "data": {"train": [ref]},
            "batch": {"microbatch_samples": 1, "global_samples": microbatches, "context_tokens": CONTEXT},
            "optimizer": {"learning_rate": 3e-4},
            "max_steps": steps,
            "recovery": {"policy": "none"},
            "wire": {"activations": "bf16", "gradients": "bf16"},
            "timing": {"linger_s": 0.5},
            "local": True,
        }
    )


@dataclass(frozen=True, slots=True)
class Measurement:
    """Losses of all steps; seconds of each step but the first; for a swarm, where its processes' time went."""

    losses: list[float]
    step_s: list[float]
    rows: list[dict[str, float]]


def run_plain(manifest: Manifest, folder: Path, threads: int) -> Measurement:
    """The plain loop in a process of its own."""
    file = folder / "manifest.json"
    file.write_bytes(manifest.canonical())
    command = [sys.executable, "-m", "tests.bench.plain", str(file), str(folder / "cache"), str(threads)]
    environ = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
    told = json.loads(done.stdout.splitlines()[-1])
    return Measurement(told["losses"], told["step_s"][1:], [])


def run_swarm(manifest: Manifest, folder: Path) -> Measurement:
    """The same run by four processes of one thread each; times are those between the first node's `loss` events."""
    folder.mkdir()
    file = folder / "run.yaml"
    file.write_text(render(manifest))
    with swarm(folder) as nodes:
        nodes.launch(file, BLOCK_STAGES)
        nodes.wait_step(1, LIMIT_S)
        before = [sample(nodes, node) for node in nodes.nodes]
        began = len(nodes.events(nodes.nodes[0], "loss"))
        nodes.wait_step(manifest.last_step - 1, LIMIT_S)
        after = [sample(nodes, node) for node in nodes.nodes]
        ended = len(nodes.events(nodes.nodes[0], "loss"))
        nodes.wait_ended(LIMIT_S)
        losses = nodes.events(nodes.nodes[0], "loss")
    times = [event["t"] for event in losses]
    seconds = times[ended - 1] - times[began - 1]
    rows = [_row(b, a, seconds) for b, a in zip(before, after, strict=True)]
    return Measurement([event["value"] for event in losses], np.diff(times).tolist(), rows)


def sample(nodes: Swarm, node: NodeProcess) -> dict[str, float]:
    """Counters of one node by `name{labels}`."""
    text = http_client.get(nodes.running(node).http, "/metrics").decode()
    found = {f"{name}{{{labels or ''}}}": float(value) for name, labels, value in _SAMPLE.findall(text)}
    match = re.search(r"^process_cpu_seconds_total ([\d.e+]+)$", text, re.MULTILINE)
    return found | {"cpu": float(match[1]) if match else 0.0}


def _row(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Seconds of a node by use, of `seconds` in all."""

    def grown(prefix: str) -> float:
        return sum(value - before.get(key, 0.0) for key, value in after.items() if key.startswith(prefix))

    return {
        "elapsed": seconds,
        "compute": grown("regrow_compute_seconds_total"),
        "reduce": grown('regrow_step_phase_seconds_sum{phase="reduce"}'),
        "commit": grown('regrow_step_phase_seconds_sum{phase="commit"}'),
        "apply": grown('regrow_step_phase_seconds_sum{phase="apply"}'),
        "cpu": after["cpu"] - before["cpu"],
        "sent_mb": sum(
            value - before.get(key, 0.0)
            for key, value in after.items()
            if key.startswith("regrow_wire_bytes_total") and 'direction="sent"' in key
        )
        / 1e6,
    }
