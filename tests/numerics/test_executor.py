"""What `TorchExecutor` promises apart from the numbers: what is kept, what is dropped, what is refused, in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from node.ports import Payload, PeerError, StageExecutor, TensorSpec, UnusableError, Update
from node.stage.codec import encode
from node.stage.executor import TorchExecutor
from node.stage.seat import Seat
from node.stage.worker import ComputeThread, Place
from protocol.commands import Work
from protocol.manifest import Manifest
from tests.numerics.chain import reduce, run_microbatch, train_step
from tests.numerics.harness import RandomTokens, manifest_of

UPDATE = Update(gradient_scale=0.01, learning_rate=1e-3)


async def executor_of(manifest: Manifest, **options: Any) -> TorchExecutor:
    """All stages, inline unless told otherwise."""
    executor = TorchExecutor(manifest, RandomTokens(manifest), **{"inline": True, **options})
    for stage in range(manifest.num_stages):
        await executor.create(stage)
    return executor


@pytest.fixture
async def executor() -> AsyncIterator[TorchExecutor]:
    executor = await executor_of(manifest_of(2))
    yield executor
    await executor.close()


def seat_of(executor: TorchExecutor, stage: int) -> Seat:
    return executor._seat(stage)


async def gradient(executor: TorchExecutor, stage: int) -> np.ndarray:
    payload = await executor.gradient_range(stage, 0, (await executor.info(stage)).num_elements)
    return np.frombuffer(payload.data, dtype=np.float32)


def hidden(manifest: Manifest, codec: str = "f32", seed: int = 0) -> Payload:
    batch = manifest.batch
    shape = (batch.microbatch_samples, batch.context_tokens, manifest.model.hidden_size)
    return encode(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), codec)


def test_it_is_a_stage_executor() -> None:
    manifest = manifest_of(1)
    executor: StageExecutor = TorchExecutor(manifest, RandomTokens(manifest))
    assert executor.parameters(0)[0] == ("model.embed_tokens.weight", (199, 32))
    assert [name for name, _ in executor.parameters(1)][:2] == [
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
    ]


# --- gradients


async def test_autograd_adds_into_the_flat_gradient(executor: TorchExecutor) -> None:
    manifest = manifest_of(2)
    await run_microbatch(manifest, executor, 1, 0)
    once = [(await gradient(executor, stage)).copy() for stage in range(3)]
    pointers = [seat_of(executor, s).gradients.accumulated.data_ptr() for s in range(3)]  # type: ignore[union-attr]
    await run_microbatch(manifest, executor, 1, 0)
    for stage in range(3):
        seat = seat_of(executor, stage)
        flat = seat.gradients.accumulated
        assert flat is not None
        assert flat.data_ptr() == pointers[stage]
        for name, view in seat.views(flat).items():
            grad = seat.module.get_parameter(name).grad
            assert grad is not None
            assert grad.data_ptr() == view.data_ptr(), name
            assert np.any(view.numpy()), name
        assert np.allclose(await gradient(executor, stage), 2 * once[stage], rtol=1e-6, atol=0)


@pytest.mark.parametrize("tied", [False, True])
async def test_without_accumulate_only_the_payloads_come_out(tied: bool) -> None:
    manifest = manifest_of(2, model__tie_word_embeddings=tied)
    executor = await executor_of(manifest)
    await run_microbatch(manifest, executor, 1, 0)
    before = [(await gradient(executor, stage)).copy() for stage in range(3)]
    seen: list[bytes] = []
    for accumulate in (False, True):
        payloads = [(await executor.compute(Work("embed", 0, 1, 0, 1), None)).payload]
        ops = [("forward", 1), ("forward", 2), ("head", 0), ("backward", 2), ("backward", 1), ("embed_backward", 0)]
        for op, stage in ops:
            work = Work(op, stage, 1, 0, 1, accumulate=accumulate)  # type: ignore[arg-type]
            payloads.append((await executor.compute(work, payloads[-1])).payload)
        seen.append(b"".join(bytes(p.data) for p in payloads if p is not None))
        same = [np.array_equal(await gradient(executor, stage), before[stage]) for stage in range(3)]
        assert same == [not accumulate] * 3
    assert seen[0] == seen[1]
    assert not any(seat_of(executor, stage).retained for stage in range(3))


async def test_a_lone_replica_has_one_gradient_vector(executor: TorchExecutor) -> None:
    await train_step(manifest_of(2), [executor], 1)
    for stage in range(3):
        assert seat_of(executor, stage).gradients.summed is None
        assert not np.any(await gradient(executor, stage)), "apply clears the gradient"


async def test_a_newer_attempt_starts_from_zero_and_an_older_one_is_refused(executor: TorchExecutor) -> None:
    payload = hidden(manifest_of(2))

    async def there_and_back(step: int, attempt: int) -> np.ndarray:
        for op in ("forward", "backward"):
            await executor.compute(Work(op, 1, step, attempt, 0), payload)
        return (await gradient(executor, 1)).copy()

    once = await there_and_back(3, 0)
    assert np.any(once)
    assert np.array_equal(await there_and_back(3, 1), once)
    with pytest.raises(PeerError, match="older than"):
        await there_and_back(3, 0)
    with pytest.raises(PeerError, match="older than"):
        await there_and_back(2, 7)
    assert np.array_equal(await gradient(executor, 1), once)
    assert np.array_equal(await there_and_back(4, 0), once)


async def test_discard_forgets_this_attempt_and_older_ones_only(executor: TorchExecutor) -> None:
    manifest = manifest_of(2)
    for attempt in (0, 1, 2):
        await executor.compute(Work("forward", 1, 1, attempt, 0), hidden(manifest))
    await executor.compute(Work("backward", 1, 1, 2, 0), hidden(manifest))
    await executor.compute(Work("forward", 1, 1, 2, 1), hidden(manifest))
    kept = (await gradient(executor, 1)).copy()
    await executor.discard(1, 1, 1)
    assert list(seat_of(executor, 1).retained) == [(1, 2, 1)]
    assert np.array_equal(await gradient(executor, 1), kept)
    with pytest.raises(PeerError, match="not retained"):
        await executor.compute(Work("backward", 1, 1, 0, 0), hidden(manifest))
    await executor.discard(1, 2, 0)
    assert not seat_of(executor, 1).retained
    assert not np.any(await gradient(executor, 1))


async def test_a_discarded_step_computed_again_gives_the_same_bits(executor: TorchExecutor) -> None:
    manifest = manifest_of(2)
    fresh = await executor_of(manifest)
    await run_microbatch(manifest, executor, 1, 0)
    for stage in range(3):
        await executor.discard(stage, 1, 0)
    for one in (executor, fresh):
        await train_step(manifest, [one], 2)
    for stage in range(3):
        assert (await executor.info(stage)).digest == (await fresh.info(stage)).digest


async def test_an_incomplete_sum_is_not_reduced(executor: TorchExecutor) -> None:
    size = (await executor.info(1)).num_elements
    await executor.install_range(1, 0, encode(torch.ones(10), "f32"))
    await executor.install_range(1, 11, encode(torch.ones(size - 11), "f32"))
    with pytest.raises(AssertionError, match=r"10\.\.11"):
        await executor.reduced(1)
    await executor.install_range(1, 10, encode(torch.ones(1), "f32"))
    assert (await executor.reduced(1))[1] == size
    await executor.discard(1, 1, 0)
    with pytest.raises(AssertionError, match="ends at element 0"):
        await executor.reduced(1)


@pytest.mark.parametrize("codec", ["f32", "bf16"])
async def test_sums_are_f32_in_the_given_order(codec: str) -> None:
    executor = await executor_of(manifest_of(1, wire__gradients=codec))
    values = [torch.tensor([1.0, 1e8]), torch.tensor([2.0**-24, 1.0]), torch.tensor([2.0**-24, -1e8])]
    parts = [encode(value, codec) for value in values]
    before = [bytes(part.data) for part in parts]
    total = await executor.sum_range(1, 3, parts)
    decoded = [value.to(torch.bfloat16).float() if codec == "bf16" else value for value in values]
    expected = decoded[0] + decoded[1] + decoded[2]
    assert bytes(total.data) == bytes(encode(expected, codec).data)
    assert [bytes(part.data) for part in parts] == before, "summing must not write into what peers sent"
    assert total.spec == TensorSpec(codec, (2,))


async def test_a_passive_replica_applies_what_it_was_sent() -> None:
    manifest = manifest_of(2)
    active, passive = [await executor_of(manifest) for _ in range(2)]
    await run_microbatch(manifest, active, 1, 0)
    assert not np.any(await gradient(passive, 1))
    await reduce(manifest, [active, passive], 1)
    infos = [await one.apply(1, UPDATE) for one in (active, passive)]
    assert infos[0] == infos[1]
    assert infos[0].optimizer_age == 1
    assert seat_of(passive, 1).gradients.accumulated is None


# --- state


async def test_digests_are_blake3_of_what_export_gives(executor: TorchExecutor) -> None:
    await train_step(manifest_of(2), [executor], 1)
    info = await executor.info(1)
    sections = [await executor.export(1, name, 0, info.num_elements) for name in ("weights", "exp_avg", "exp_avg_sq")]
    assert blake3(b"".join([*sections, (1).to_bytes(8, "little")])).hexdigest() == info.digest
    assert info.state_bytes == sum(len(section) for section in sections)
    middle = await executor.export(1, "exp_avg", 5, 7)
    assert bytes(middle) == bytes(sections[1][20:48])
    await run_microbatch(manifest_of(2), executor, 2, 0)
    await executor.use_local(1)
    found, squared = await executor.reduced(1)
    local = (await gradient(executor, 1)).astype(np.float64)
    assert found == blake3((await executor.gradient_range(1, 0, info.num_elements)).data).hexdigest()
    assert squared == pytest.approx(float(local @ local), rel=1e-12)


async def test_an_export_is_a_copy(executor: TorchExecutor) -> None:
    held = await executor.export(1, "weights", 0, 100)
    before = bytes(held)
    await train_step(manifest_of(2), [executor], 1)
    assert bytes(held) == before
    assert bytes(await executor.export(1, "weights", 0, 100)) != before


async def test_every_state_change_changes_the_digest(executor: TorchExecutor) -> None:
    created = await executor.info(1)
    await executor.use_local(1)
    aged = await executor.apply(1, Update(0.0, 0.0))
    assert aged.digest != created.digest, "the optimizer's age is part of the state"
    assert await executor.create(1) == created, "created again, the same bits"
    await executor.drop(1)
    with pytest.raises(AssertionError, match="no seat of stage 1"):
        await executor.info(1)


# --- evaluation


async def test_evaluation_runs_on_held_out_tokens_and_retains_nothing(executor: TorchExecutor) -> None:
    manifest = manifest_of(2)
    tokens = RandomTokens(manifest)

    class Held(RandomTokens):
        def microbatch(self, step: int, microbatch: int) -> Any:
            return tokens.validation(microbatch)

    result = await executor.compute(Work("embed", 0, 1, 0, 3, evaluate=True), None)
    for op, stage in (("forward", 1), ("forward", 2), ("head", 0)):
        work = Work(op, stage, 1, 0, 3, evaluate=True)  # type: ignore[arg-type]
        result = await executor.compute(work, result.payload)
    assert result.payload is None
    assert result.tokens == manifest.batch.tokens_per_microbatch
    assert not any(seat_of(executor, stage).retained for stage in range(3))
    trained = TorchExecutor(manifest, Held(manifest), inline=True)
    for stage in range(3):
        await trained.create(stage)
    assert result.loss_sum == await run_microbatch(manifest, trained, 1, 3)


# --- what is refused


@pytest.mark.parametrize("codec", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda p: Payload(TensorSpec("f16", p.spec.shape), p.data), "codec 'f16'"),
        (lambda p: Payload(TensorSpec(p.spec.codec, (2, 16, 31)), p.data), r"shape \[2, 16, 31\]"),
        (lambda p: Payload(TensorSpec(p.spec.codec, (32, 32)), p.data), r"shape \[32, 32\]"),
        (lambda p: Payload(p.spec, p.data[:-1]), "bytes, not"),
        (lambda p: Payload(p.spec, memoryview(bytes(p.data) + b"\0")), "bytes, not"),
        (lambda p: Payload(p.spec, memoryview(b"\xff" * p.data.nbytes)), "not finite"),
        (lambda p: Payload(p.spec, memoryview(bytes(p.data[:-4]) + b"\x80\x7f\x80\x7f")), "not finite"),
    ],
    ids=["codec", "shape", "dimensions", "short", "long", "nan", "last"],
)
async def test_a_tensor_that_does_not_fit_is_the_peers_fault(codec: str, change: Any, match: str) -> None:
    manifest = manifest_of(1, wire__activations=codec)
    executor = await executor_of(manifest)
    bad = change(hidden(manifest, codec))
    with pytest.raises(PeerError, match=match):
        await executor.compute(Work("forward", 1, 1, 0, 0), bad)
    await executor.compute(Work("forward", 1, 1, 0, 0), hidden(manifest, codec))
    with pytest.raises(PeerError, match=match):
        await executor.compute(Work("backward", 1, 1, 0, 0), bad)
    await executor.compute(Work("backward", 1, 1, 0, 0), hidden(manifest, codec))


async def test_values_whose_squares_overflow_are_the_peers_fault() -> None:
    """What is computed from them would not be finite, and the blame would be ours; large ones are taken."""
    executor = await executor_of(manifest_of(1))
    shape = (2, 16, 32)
    assert (await executor.compute(Work("forward", 1, 1, 0, 0), encode(torch.full(shape, 1e12), "f32"))).payload is not None
    for value in (1e15, 1e38, -3.4e38):
        with pytest.raises(PeerError, match="beyond reason"):
            await executor.compute(Work("forward", 1, 1, 0, 1), encode(torch.full(shape, value), "f32"))


@pytest.mark.parametrize("first", [-1, 10**9])
async def test_a_range_outside_the_gradient_is_the_peers_fault(executor: TorchExecutor, first: int) -> None:
    part = encode(torch.ones(4), "f32")
    with pytest.raises(PeerError, match="range of shape"):
        await executor.install_range(1, first, part)
    with pytest.raises(PeerError, match="range of shape"):
        await executor.sum_range(1, first, [part, part])


async def test_parts_of_different_lengths_are_the_peers_fault(executor: TorchExecutor) -> None:
    with pytest.raises(PeerError, match="shape"):
        await executor.sum_range(1, 0, [encode(torch.ones(4), "f32"), encode(torch.ones(5), "f32")])


async def test_read_only_payloads_are_taken(executor: TorchExecutor) -> None:
    payload = hidden(manifest_of(2))
    frozen = Payload(payload.spec, memoryview(bytes(payload.data)))
    results = [await executor.compute(Work("forward", 1, 1, 0, m), p) for m, p in enumerate((payload, frozen))]
    assert results[0].payload is not None
    assert results[1].payload is not None
    assert bytes(results[0].payload.data) == bytes(results[1].payload.data)


@pytest.mark.parametrize("bad", [199, -1])
async def test_a_token_outside_the_vocabulary_is_named(bad: int) -> None:
    manifest = manifest_of(1)

    class Wrong(RandomTokens):
        def microbatch(self, step: int, microbatch: int) -> Any:
            tokens = super().microbatch(step, microbatch)
            tokens[1, 3] = bad
            return tokens

    executor = TorchExecutor(manifest, Wrong(manifest), inline=True)
    await executor.create(0)
    with pytest.raises(UnusableError, match=rf"token id {bad} in step 3, microbatch 2 .* vocabulary of 199"):
        await executor.compute(Work("embed", 0, 3, 0, 2), None)


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:1", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(UnusableError, match="device") as raised:
        TorchExecutor(manifest_of(1), RandomTokens(manifest_of(1)), device=device)
    assert raised.value.code == 2


# --- the compute thread


async def test_the_thread_computes_what_inline_computes() -> None:
    manifest = manifest_of(2)
    threaded, inline = await executor_of(manifest, inline=False), await executor_of(manifest)
    assert await train_step(manifest, [threaded], 1) == await train_step(manifest, [inline], 1)
    for stage in range(3):
        assert await threaded.info(stage) == await inline.info(stage)
    await threaded.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "compute"]


def test_inline_never_waits() -> None:
    manifest = manifest_of(1)
    coroutine = TorchExecutor(manifest, RandomTokens(manifest), inline=True).create(1)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value.stage == 1


class Gate:
    """A compute thread that is busy until `open` is called, and notes what it runs."""

    def __init__(self) -> None:
        self.thread = ComputeThread("gated", 1)
        self.ran: list[str] = []
        self._open = threading.Event()
        self._busy = threading.Event()

    def hold(self) -> None:
        self._busy.set()
        assert self._open.wait(30)

    async def close(self, group: asyncio.TaskGroup) -> None:
        """Occupy the thread."""
        group.create_task(self.thread.run(Place(0), self.hold))
        await asyncio.to_thread(self._busy.wait)

    def open(self) -> None:
        self._open.set()

    async def note(self, name: str, place: Place) -> None:
        await self.thread.run(place, lambda: self.ran.append(name))


async def queued(thread: ComputeThread, count: int) -> None:
    """Every task that exists has run once: up to its wait for the thread."""
    await asyncio.sleep(0)
    assert len(thread._heap) == count


async def test_backward_before_head_before_forward_then_lower_microbatches() -> None:
    gate = Gate()
    places = {
        "forward 0": Place(3, 0),
        "forward 1": Place(3, 1),
        "head 5": Place(2, 5),
        "backward 9": Place(1, 9),
        "backward 7": Place(1, 7),
        "state": Place(0),
        "state again": Place(0),
    }
    async with asyncio.TaskGroup() as group:
        await gate.close(group)
        for name, place in places.items():
            group.create_task(gate.note(name, place))
        await queued(gate.thread, len(places))
        gate.open()
    assert gate.ran == ["state", "state again", "backward 7", "backward 9", "head 5", "forward 0", "forward 1"]
    await gate.thread.close()


async def test_forgotten_work_fails_and_does_not_run() -> None:
    gate = Gate()
    outcomes: list[str] = []

    async def attempt(name: str, stage: int, key: tuple[int, int]) -> None:
        try:
            await gate.note(name, Place(3, 0, stage, key))
        except PeerError as error:
            outcomes.append(f"{name}: {error.reason}")

    async with asyncio.TaskGroup() as group:
        await gate.close(group)
        for name, stage, key in (("old", 1, (4, 9)), ("this", 1, (5, 2)), ("newer", 1, (5, 3)), ("other stage", 2, (5, 2))):
            group.create_task(attempt(name, stage, key))
        await queued(gate.thread, 4)
        gate.thread.forget(1, (5, 2))
        gate.open()
    assert outcomes == ["old: the attempt was given up", "this: the attempt was given up"]
    assert gate.ran == ["newer", "other stage"]
    await gate.thread.close()


async def test_cancelled_work_does_not_run_and_errors_reach_the_caller() -> None:
    gate = Gate()
    async with asyncio.TaskGroup() as group:
        await gate.close(group)
        cancelled = group.create_task(gate.note("cancelled", Place(1)))
        group.create_task(gate.note("kept", Place(1)))
        await queued(gate.thread, 2)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        gate.open()
    assert gate.ran == ["kept"]
    with pytest.raises(ZeroDivisionError):
        await gate.thread.run(Place(1), lambda: 1 // 0)
    await gate.thread.close()


async def test_close_cancels_what_waits_and_lets_what_runs_finish() -> None:
    gate = Gate()
    async with asyncio.TaskGroup() as group:
        await gate.close(group)
        waiting = group.create_task(gate.note("waiting", Place(1)))
        await queued(gate.thread, 1)
        closing = group.create_task(gate.thread.close())
        await asyncio.wait([waiting])
        gate.open()
    assert waiting.cancelled()
    assert closing.done()
    assert gate.ran == []
    assert not [thread for thread in threading.enumerate() if thread.name == "gated"]


async def test_the_thread_keeps_its_number_of_threads() -> None:
    thread = ComputeThread("threads", 2)
    assert await thread.run(Place(0), torch.get_num_threads) == 2
    await thread.close()
