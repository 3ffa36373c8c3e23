"""State that is copied in ranges and brought forward by kept gradients ends with the same bits as the donor's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from node.ports import PeerError, Update
from node.stage.executor import TorchExecutor
from node.stage.seat import Seat
from node.stage.update import Vectors, decay_runs, runs_within, scalars, update
from protocol.manifest import Manifest, OptimizerSection
from protocol.schedule import gradient_scale, learning_rate
from tests.numerics.chain import reduce, run_microbatch
from tests.numerics.harness import RandomTokens, manifest_of

STAGE = 1
SHAPES: list[tuple[str, tuple[int, ...]]] = [("norm", (5,)), ("matrix", (30, 70)), ("norm2", (9,)), ("matrix2", (3, 4))]
SIZE = sum(int(np.prod(shape)) for _, shape in SHAPES)


async def donors_of(manifest: Manifest, num_replicas: int = 1, keep: int = 2) -> list[TorchExecutor]:
    made = [TorchExecutor(manifest, RandomTokens(manifest), inline=True) for _ in range(num_replicas)]
    for donor in made:
        for stage in range(manifest.num_stages):
            await donor.create(stage)
        await donor.keep_gradients(STAGE, keep)
    return made


async def train(manifest: Manifest, donors: list[TorchExecutor], step: int) -> Update:
    """One step of all stages; the update of `STAGE`."""
    for microbatch in range(manifest.batch.num_microbatches):
        await run_microbatch(manifest, donors[microbatch % len(donors)], step, microbatch)
    norms = {stage: await reduce(manifest, donors, stage) for stage in range(manifest.num_stages)}
    rate = learning_rate(manifest.optimizer, step, manifest.last_step)
    updates = [Update(gradient_scale(manifest, manifest.batch.tokens_per_step, norms, s), rate) for s in sorted(norms)]
    for donor in donors:
        for stage, wanted in enumerate(updates):
            await donor.apply(stage, wanted)
    return updates[STAGE]


async def learner_of(manifest: Manifest) -> TorchExecutor:
    learner = TorchExecutor(manifest, RandomTokens(manifest), inline=True)
    info = await learner.blank(STAGE)
    assert (info.digest, info.optimizer_age) == ("", 0)
    return learner


async def copy(donor: TorchExecutor, learner: TorchExecutor, first: int, count: int) -> int:
    age, data = await donor.export_state(STAGE, first, count)
    parts = [data[i * 4 * count : (i + 1) * 4 * count] for i in range(3)]
    await learner.adopt_range(STAGE, first, *parts)
    return age


def seat_of(executor: TorchExecutor) -> Seat:
    return executor._seat(STAGE)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("borders", [[1, 4, 6, 2000], [5, 2105, 2114], [3, 2110], [777]])
def test_an_update_by_ranges_has_the_bits_of_the_whole(kind: Any, borders: list[int], seed: int) -> None:
    o = OptimizerSection(kind=kind, learning_rate=1.0, weight_decay=0.1)
    generator = torch.Generator().manual_seed(seed)
    whole = Vectors(*(torch.randn(SIZE, generator=generator).abs() for _ in range(4)))
    parts = Vectors(whole.weights.clone(), whole.exp_avg.clone(), whole.exp_avg_sq.clone(), whole.gradient)
    runs = decay_runs(SHAPES, 0.1)
    for age in (1, 2, 3):
        s = scalars(o, 0.01, 0.1, age)
        update(o, whole, runs, s)
        ends = [*borders, SIZE]
        for first, end in zip([0, *borders], ends, strict=True):
            update(o, parts.part(first, end - first), runs_within(runs, first, end - first), s)
    assert parts.weights.numpy().tobytes() == whole.weights.numpy().tobytes()
    assert parts.exp_avg.numpy().tobytes() == whole.exp_avg.numpy().tobytes()
    assert parts.exp_avg_sq.numpy().tobytes() == whole.exp_avg_sq.numpy().tobytes()


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
async def test_ranges_of_different_states_are_brought_to_one(kind: str, num_replicas: int) -> None:
    """A range a step between each two: the newest is as it is, the others are replayed from kept gradients."""
    manifest = manifest_of(2, optimizer__kind=kind)
    donors = await donors_of(manifest, num_replicas)
    learner = await learner_of(manifest)
    donor = donors[0]
    size = (await donor.info(STAGE)).num_elements
    borders = [0, 333, size - 1001, size]
    await train(manifest, donors, 1)
    ages, updates = [], {}
    for step, (first, end) in enumerate(pairwise(borders), start=2):
        ages.append(await copy(donor, learner, first, end - first))
        if step < 4:
            updates[step] = await train(manifest, donors, step)
    assert ages == [1, 2, 3]
    for (first, end), age in zip(pairwise(borders), ages, strict=True):
        for replayed in range(age, 3):
            gradient = await donor.export_gradient(STAGE, replayed + 1, first, end - first)
            assert gradient is not None
            await learner.replay_range(STAGE, first, gradient, updates[replayed + 1], replayed)
    adopted = await learner.adopted(STAGE, 3)
    assert adopted == await donor.info(STAGE)
    assert adopted.digest


async def test_a_caught_up_learner_trains_on_like_its_donor() -> None:
    manifest = manifest_of(2)
    (donor,) = await donors_of(manifest)
    await train(manifest, [donor], 1)
    (learner,) = await donors_of(manifest)
    await learner.blank(STAGE)
    for stage in range(manifest.num_stages):
        age, data = await donor.export_state(stage, 0, (await donor.info(stage)).num_elements)
        third = len(data) // 3
        await learner.adopt_range(stage, 0, data[:third], data[third : 2 * third], data[2 * third :])
        await learner.adopted(stage, age)
    for executor in (donor, learner):
        await train(manifest, [executor], 2)
    for stage in range(manifest.num_stages):
        assert await learner.info(stage) == await donor.info(stage)


@pytest.mark.parametrize("num_replicas", [1, 2])
async def test_kept_gradients_change_hands_and_are_freed(num_replicas: int) -> None:
    manifest = manifest_of(2)
    donors = await donors_of(manifest, num_replicas)
    gradients = seat_of(donors[0]).gradients
    seen: set[int] = set()
    for step in range(1, 7):
        await train(manifest, donors, step)
        assert list(gradients.kept) == list(range(max(1, step - 1), step + 1))
        seen |= {kept.data_ptr() for kept in gradients.kept.values()}
    assert len(seen) == 3, "two are kept and one is written: no other memory is ever used"
    assert await donors[0].export_gradient(STAGE, 4, 0, 1) is None
    await donors[0].keep_gradients(STAGE, 1)
    assert list(gradients.kept) == [6]
    await donors[0].keep_gradients(STAGE, 0)
    assert not gradients.kept
    await train(manifest, donors, 7)
    assert not gradients.kept


def floats(*values: float) -> memoryview:
    return memoryview(np.array(values, dtype="<f4").tobytes())


@pytest.mark.parametrize(
    ("first", "parts", "reason"),
    [
        (0, (floats(1, 2), floats(1, 2), floats(1)), "weights and moments of"),
        (0, (floats(1), floats(1), floats(float("nan"))), "not finite"),
        (0, (floats(float("inf")), floats(1), floats(1)), "not finite"),
        (0, (floats(1), floats(1), floats(-1e-30)), "below zero"),
        (0, (floats(1)[:3], floats(1)[:3], floats(1)[:3]), "3 bytes at element 0"),
        (0, (floats(), floats(), floats()), "0 bytes at element 0"),
        (-1, (floats(1), floats(1), floats(1)), "at element -1"),
        (1 << 40, (floats(1), floats(1), floats(1)), "of a vector of"),
    ],
)
async def test_foreign_elements_that_do_not_fit_change_nothing(first: int, parts: Any, reason: str) -> None:
    learner = await learner_of(manifest_of(2))
    with pytest.raises(PeerError, match=reason):
        await learner.adopt_range(STAGE, first, *parts)
    seat = seat_of(learner)
    assert not any(vector.any() for vector in (seat.weights, seat.exp_avg, seat.exp_avg_sq))


@pytest.mark.parametrize(
    ("first", "gradient", "reason"),
    [(0, floats(1, float("nan")), "not finite"), (0, floats(1)[:3], "3 bytes"), (1 << 40, floats(1), "of a vector of")],
)
async def test_a_foreign_gradient_that_does_not_fit_changes_nothing(first: int, gradient: memoryview, reason: str) -> None:
    learner = await learner_of(manifest_of(2))
    with pytest.raises(PeerError, match=reason):
        await learner.replay_range(STAGE, first, gradient, Update(1.0, 1.0), 0)
    seat = seat_of(learner)
    assert not any(vector.any() for vector in (seat.weights, seat.exp_avg, seat.exp_avg_sq))
