"""A swarm on the real runtime, with torch, on virtual time and streams in memory, equals the plain loop (S6); and its replicas
are bit-equal after every step (S3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from node.sim.loop import run_virtual
from node.sim.swarm import MemorySwarm, SimNode
from node.stage.executor import TorchExecutor
from protocol.manifest import Manifest
from tests.numerics.harness import RandomTokens, Trajectory, assert_same, manifest_of, reference_run, split_flat

ADAMW_CLIPPED = {"optimizer__clip_norm": 0.05}
ADAMW_UNCLIPPED = {"optimizer__clip_norm": 0.0}
SGD_CLIPPED = {"optimizer__kind": "sgd", "optimizer__learning_rate": 0.1, "optimizer__clip_norm": 0.05}
SGD_UNCLIPPED = {"optimizer__kind": "sgd", "optimizer__learning_rate": 0.1, "optimizer__clip_norm": 0.0}


def run_swarm(
    manifest: Manifest, num_replicas: int, late: Sequence[tuple[int, float]] = (), copy_rate: float = 10e6
) -> tuple[Trajectory, list[SimNode]]:
    """Train to the manifest's end; weights are those of the first replica of each stage. `late`: (stage, seconds) of those that
    come while it runs."""
    tokens = RandomTokens(manifest)
    weights: dict[str, np.ndarray] = {}

    async def collect(node: SimNode) -> None:
        for stage in node.state.bench.seats:
            parameters = node.executor.parameters(stage)
            count = sum(int(np.prod(shape)) for _, shape in parameters)
            flat = np.frombuffer(await node.executor.export(stage, "weights", 0, count), dtype="<f4")
            for name, array in split_flat(parameters, flat).items():
                weights.setdefault(name, array)

    wishes = [stage for _ in range(num_replicas) for stage in range(manifest.num_stages)]
    joins_at = {len(wishes) + index: after_s for index, (_, after_s) in enumerate(late)}
    wishes += [stage for stage, _ in late]
    swarm = MemorySwarm(
        manifest,
        wishes,
        lambda _: TorchExecutor(manifest, tokens, inline=True),
        joins_at=joins_at,
        copy_rate=copy_rate,
        at_end=collect,
    )
    nodes = run_virtual(swarm.run())
    assert [n.exit.code for n in nodes if n.exit] == [0] * len(wishes)
    assert all(n.pool.num_live == 0 for n in nodes), "payload handles are left"
    losses = [line["value"] for line in nodes[0].lines("loss")]
    return Trajectory(losses, global_norms(manifest, nodes), weights), nodes


def global_norms(manifest: Manifest, nodes: list[SimNode]) -> list[float]:
    """Norm of the mean-loss gradient per step, from the squared norms that the stages reported."""
    squares: dict[int, dict[int, float]] = {}
    for node in nodes:
        for line in node.lines("reduced"):
            squares.setdefault(line["step"], {})[line["stage"]] = line["squared_norm"]
    tokens = manifest.batch.tokens_per_step
    return [float(np.sqrt(sum(squares[step].values()))) / tokens for step in sorted(squares)]


def assert_replicas_equal(nodes: list[SimNode]) -> int:
    """Equal state_id means equal digest, over all seats and steps. Returns the number of comparisons."""
    seen: dict[tuple[int, str], set[str]] = {}
    num_lines = 0
    for node in nodes:
        for line in node.lines("committed"):
            seen.setdefault((line["stage"], line["state_id"]), set()).add(line["digest"])
            num_lines += 1
    assert all(len(digests) == 1 for digests in seen.values()), "replicas differ"
    return num_lines - len(seen)


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize(("num_block_stages", "swapped"), [(1, False), (2, False), (4, False), (4, True)])
@pytest.mark.parametrize(
    "changes",
    [
        ADAMW_CLIPPED,
        SGD_UNCLIPPED,
        pytest.param(ADAMW_UNCLIPPED, marks=pytest.mark.full),
        pytest.param(SGD_CLIPPED, marks=pytest.mark.full),
    ],
)
def test_swarm_equals_plain_loop(num_block_stages: int, swapped: bool, num_replicas: int, changes: dict[str, Any]) -> None:
    manifest = manifest_of(num_block_stages, swapped=swapped, start_replicas=num_replicas, **changes)
    actual, nodes = run_swarm(manifest, num_replicas)
    clip = manifest.optimizer.clip_norm
    assert not clip or min(actual.norms) > clip, "the case was meant to clip"
    found = assert_same(actual, reference_run(manifest, RandomTokens(manifest)))
    compared = assert_replicas_equal(nodes)
    if num_replicas == 2 or swapped:
        assert compared >= manifest.last_step, "no replicas were compared"
    print(f"{num_block_stages} block stages x {num_replicas}, swapped {swapped}: {found}")


def test_equal_runs_have_equal_bits() -> None:
    """One replica per stage: digests do not depend on what the network did."""
    manifest = manifest_of(4, swapped=True, max_steps=5)
    tokens, digests = RandomTokens(manifest), []

    def make(_: int) -> TorchExecutor:
        return TorchExecutor(manifest, tokens, inline=True)

    for seed in (1, 2):
        nodes = run_virtual(MemorySwarm(manifest, list(range(5)), make, seed=seed).run())
        digests.append(sorted((line["stage"], line["step"], line["digest"]) for n in nodes for line in n.lines("committed")))
    assert digests[0] == digests[1]
    assert len(digests[0]) == 5 * (5 + 2)
