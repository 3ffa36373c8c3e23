"""Memory of every process over a few hundred steps, and of the payloads that it holds at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import linear_regression

import psutil
import pytest

from node.demo.process import NodeProcess
from tests.integration.ends import end_all_at_once
from tests.integration.seen import metric
from tests.tools.material import VOCAB, write_manifest
from tests.tools.swarm import POLL_S, Swarm, swarm

pytestmark = [pytest.mark.full, pytest.mark.timeout(420)]
FIRST_STEP, LAST_STEP = 50, 300
MAX_SLOPE_BYTES = 20_000
MICROBATCH_SAMPLES, CONTEXT, HIDDEN, MAX_IN_FLIGHT, NUM_MICROBATCHES = 2, 16, 32, 3, 8
PAYLOAD_BYTES = 4 * MICROBATCH_SAMPLES * CONTEXT * HIDDEN
LIMIT_S = 360.0


@pytest.mark.parametrize("replicas", [1, 2])
def test_memory_does_not_grow(tmp_path: Path, replicas: int) -> None:
    path = write_manifest(
        tmp_path,
        num_block_stages=2,
        start_replicas=replicas,
        max_steps=100_000,
        model__hidden_size=HIDDEN,
        model__num_hidden_layers=2,
        batch__microbatch_samples=MICROBATCH_SAMPLES,
        batch__global_samples=MICROBATCH_SAMPLES * NUM_MICROBATCHES,
        batch__context_tokens=CONTEXT,
        batch__max_in_flight=MAX_IN_FLIGHT,
        evaluation__every_steps=20,
    )
    with swarm(tmp_path) as made:
        made.launch(path, 2, replicas)
        samples = {node.name: list(rows) for node, rows in zip(made.nodes, zip(*watched(made), strict=True), strict=True)}
        peaks = {node.name: metric(made, node, "regrow_payload_peak_bytes") for node in made.nodes}
        end_all_at_once(made.nodes, signal.SIGTERM)
    slopes = {name: slope(rows) for name, rows in samples.items()}
    for name, rows in samples.items():
        print(f"{name}: {rows[-1][1] / 2**20:.1f} MiB, {slopes[name]:+.0f} bytes per step; payloads {peaks[name]:.0f} bytes")
    assert max(slopes.values()) < MAX_SLOPE_BYTES, slopes
    assert max(peaks.values()) <= payload_bound(replicas), (peaks, payload_bound(replicas))


def watched(made: Swarm) -> Iterator[list[tuple[int, int]]]:
    """(step, resident bytes) of every node, each time the first one has gone on, from FIRST_STEP to LAST_STEP."""
    processes = [psutil.Process(node.process.pid) for node in made.nodes]
    deadline, step = time.monotonic() + LIMIT_S, 0
    while step < LAST_STEP:
        assert time.monotonic() < deadline, f"step {step} after {LIMIT_S:.0f} s\n{made.situation()}"
        assert all(node.exit_code is None for node in made.nodes), made.situation()
        now = last_step(made.nodes[0], step)
        if now >= max(FIRST_STEP, step + 5):
            yield [(now, process.memory_info().rss) for process in processes]
            step = now
        time.sleep(POLL_S)


def last_step(node: NodeProcess, known: int) -> int:
    return max([known, *(event["step"] for event in node.tail.read() if event["type"] == "loss")])


def slope(rows: list[tuple[int, int]]) -> float:
    """Bytes per step, by least squares."""
    steps, sizes = zip(*rows, strict=True)
    return linear_regression(steps, sizes).slope


def payload_bound(replicas: int) -> int:
    """What a node may hold at once.

    A microbatch that the stage-0 replicas have admitted is at one place of its way, forward or back: what arrived there waits
    or is computed on, what leaves is held until it is with the network, and that may overlap. Where stages have several
    replicas a seat keeps what it has sent of its microbatches, there and back, until the step is over. In a reduce over R
    active replicas (R-1)/R of the gradient is held as parts received, as parts sent and as sums received, and 1/R as sums
    sent, each at most; a copy of stage 0 reduces beside the node's own stage.
    """
    pipe = 2 * MAX_IN_FLIGHT * replicas * PAYLOAD_BYTES
    kept = 2 * (NUM_MICROBATCHES // replicas) * PAYLOAD_BYTES if replicas > 1 else 0
    embedding_stage = 4 * (2 * VOCAB * HIDDEN + HIDDEN)
    return pipe + kept + (3 * (replicas - 1) + 1) * 2 * embedding_stage // replicas
