"""A swarm without a swarm: executors whose payloads are handed on by a plain loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from node.ports import Payload, Update
from node.stage.executor import TorchExecutor
from node.stage.tokens import TokenSource
from protocol.commands import Work
from protocol.manifest import Manifest
from protocol.schedule import gradient_scale, learning_rate
from tests.numerics.harness import Trajectory, split_flat, stage_order


async def run_chain(manifest: Manifest, tokens: TokenSource, num_replicas: int = 1, device: str = "cpu") -> Trajectory:
    """All steps of a run on `num_replicas` executors that each hold every stage and share the microbatches."""
    replicas = [TorchExecutor(manifest, tokens, device, inline=True) for _ in range(num_replicas)]
    for replica in replicas:
        for stage in range(manifest.num_stages):
            await replica.create(stage)
    trajectory = Trajectory([], [], {})
    for step in range(1, manifest.last_step + 1):
        loss, norm = await train_step(manifest, replicas, step)
        trajectory.losses.append(loss)
        trajectory.norms.append(norm)
    trajectory.weights = await weights_of(manifest, replicas[0])
    return trajectory


async def train_step(manifest: Manifest, replicas: Sequence[TorchExecutor], step: int) -> tuple[float, float]:
    """(mean token loss, unclipped global norm of its gradient) of one committed step."""
    total = 0.0
    for microbatch in range(manifest.batch.num_microbatches):
        # Neighbours in number go to one replica, so that each sees both orders.
        replica = replicas[microbatch // 2 % len(replicas)]
        total += await run_microbatch(manifest, replica, step, microbatch)
    norms: dict[int, float] = {}
    for stage in range(manifest.num_stages):
        norms[stage] = await reduce(manifest, replicas, stage)
    tokens = manifest.batch.tokens_per_step
    rate = learning_rate(manifest.optimizer, step, manifest.last_step)
    for stage in range(manifest.num_stages):
        update = Update(gradient_scale(manifest, tokens, norms, stage), rate)
        digests = {(await replica.apply(stage, update)).digest for replica in replicas}
        assert len(digests) == 1, f"step {step}, stage {stage}: replicas differ after the update"
    return total / tokens, math.sqrt(sum(norms.values())) / tokens


async def run_microbatch(
    manifest: Manifest, executor: TorchExecutor, step: int, microbatch: int, accumulate: bool = True
) -> float:
    """Loss sum of one microbatch that went there and back."""
    order = stage_order(manifest, microbatch)

    async def do(op: str, stage: int, payload: Payload | None) -> tuple[Payload | None, float]:
        work = Work(op, stage, step, 0, microbatch, accumulate=accumulate)  # type: ignore[arg-type]
        result = await executor.compute(work, payload)
        return result.payload, result.loss_sum

    payload, _ = await do("embed", 0, None)
    for stage in order:
        payload, _ = await do("forward", stage, payload)
    payload, loss = await do("head", 0, payload)
    for stage in reversed(order):
        payload, _ = await do("backward", stage, payload)
    assert (await do("embed_backward", 0, payload))[0] is None
    return loss


async def reduce(manifest: Manifest, replicas: Sequence[TorchExecutor], stage: int) -> float:
    """Squared norm of the sum over the replicas, each of which owns one range of it."""
    if len(replicas) == 1:
        await replicas[0].use_local(stage)
        return (await replicas[0].reduced(stage))[1]
    size = (await replicas[0].info(stage)).num_elements
    bounds = [size * i // len(replicas) for i in range(len(replicas) + 1)]
    for owner, (first, end) in zip(replicas, pairwise(bounds), strict=True):
        parts = [await replica.gradient_range(stage, first, end - first) for replica in replicas]
        total = await owner.sum_range(stage, first, parts)
        for replica in replicas:
            await replica.install_range(stage, first, total)
    reduced = {await replica.reduced(stage) for replica in replicas}
    assert len(reduced) == 1, f"stage {stage}: replicas hold different sums"
    return reduced.pop()[1]


async def weights_of(manifest: Manifest, executor: TorchExecutor) -> dict[str, np.ndarray]:
    """The weights of all stages by Hugging Face name."""
    weights: dict[str, np.ndarray] = {}
    for stage in range(manifest.num_stages):
        size = (await executor.info(stage)).num_elements
        raw = await executor.export(stage, "weights", 0, size)
        weights |= split_flat(executor.parameters(stage), np.frombuffer(raw, dtype="<f4"))
    return weights
