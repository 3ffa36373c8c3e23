"""`node.ports.StageExecutor` on torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from node.ports import BadTensorError, ComputeResult, Payload, SeatInfo, UnusableError, Update
from node.stage.codec import decode, decode_elements, encode, raw_bytes
from node.stage.digest import gradient_digest, squared_norm
from node.stage.model import skeleton
from node.stage.passes import Passes
from node.stage.seat import Seat
from node.stage.tokens import TokenSource
from node.stage.update import Vectors, runs_within, scalars, update
from node.stage.worker import ComputeThread, Place
from protocol.commands import Work
from protocol.manifest import Manifest

T = TypeVar("T")

RANKS = {"backward": 1, "embed_backward": 1, "head": 2, "forward": 3, "embed": 3, "redundant": 3}
STATE = Place(rank=0)


def usable_device(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:N`, or `auto` (a GPU where there is one). `UnusableError` for what this machine does not have."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind == "cpu" and not index:
        return torch.device("cpu")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise UnusableError(2, f"device {name!r}: use cpu, cuda, cuda:N or auto")
    if int(index or 0) >= torch.cuda.device_count():
        raise UnusableError(2, f"device {name!r}: torch sees {torch.cuda.device_count()} CUDA devices; use cpu")
    return torch.device(name)


class TorchExecutor:
    """Computes the seats of one node, one computation at a time.

    `inline` runs each call to its end inside the coroutine, without a thread, for drivers whose time is virtual; it sets
    torch's thread count for the calling thread.
    """

    def __init__(
        self, manifest: Manifest, tokens: TokenSource, device: str = "cpu", num_threads: int = 1, inline: bool = False
    ) -> None:
        self._manifest = manifest
        self._device = usable_device(device)
        self._passes = Passes(manifest, tokens)
        self._seats: dict[int, Seat] = {}
        self._thread = None if inline else ComputeThread("compute", num_threads)
        if inline:
            torch.set_num_threads(num_threads)

    async def _run(self, place: Place, what: Callable[[], T]) -> T:
        return what() if self._thread is None else await self._thread.run(place, what)

    def _seat(self, stage: int) -> Seat:
        assert stage in self._seats, f"no seat of stage {stage} here"
        return self._seats[stage]

    # --- seats

    async def create(self, stage: int, generation: int = 0) -> SeatInfo:
        """See `node.ports.StageExecutor`; an earlier seat of the stage is replaced."""
        return await self._run(STATE, lambda: self._create(stage, generation))

    async def blank(self, stage: int) -> SeatInfo:
        """See `node.ports.StageExecutor`; an earlier seat of the stage is replaced."""
        return await self._run(STATE, lambda: self._create(stage, None))

    def _create(self, stage: int, generation: int | None) -> SeatInfo:
        self._seats.pop(stage, None)
        self._seats[stage] = Seat(self._manifest, stage, self._device, generation)
        return self._seats[stage].info()

    async def mix(self, parts: list[bytes | bytearray | memoryview], coefficients: list[float]) -> memoryview:
        """See `node.ports.StageExecutor`."""

        def mixed() -> memoryview:
            total: torch.Tensor | None = None
            for part, coefficient in zip(parts, coefficients, strict=True):
                scaled = torch.frombuffer(bytearray(part), dtype=torch.float32) * coefficient
                total = scaled if total is None else total.add_(scaled)
            assert total is not None, "nothing to mix"
            if not torch.isfinite(total).all():
                raise BadTensorError("", "weights to be mixed that are not finite", "not_finite")
            return raw_bytes(total)

        return await self._run(STATE, mixed)

    async def drop(self, stage: int) -> None:
        """See `node.ports.StageExecutor`; without such a seat nothing happens."""

        def drop() -> None:
            self._seats.pop(stage, None)

        await self._run(STATE, drop)

    async def info(self, stage: int) -> SeatInfo:
        """See `node.ports.StageExecutor`."""
        return await self._run(STATE, lambda: self._seat(stage).info())

    def parameters(self, stage: int) -> list[tuple[str, tuple[int, ...]]]:
        """See `node.ports.StageExecutor`; the seat need not exist."""
        return [(name, tuple(p.shape)) for name, p in skeleton(self._manifest, stage).named_parameters()]

    async def export(self, stage: int, section: str, first: int, count: int) -> memoryview:
        """See `node.ports.StageExecutor`; a copy, which later updates do not touch."""

        def export() -> memoryview:
            _check_range(self._seat(stage), first, count)
            return raw_bytes(self._seat(stage).section(section)[first : first + count].clone())

        return await self._run(STATE, export)

    # --- a microbatch

    async def compute(self, work: Work, payload: Payload | None) -> ComputeResult:
        """See `node.ports.StageExecutor`. Gradients are accumulated in the order in which the work is run."""
        place = Place(RANKS[work.op], work.microbatch, work.stage, (work.step, work.attempt))
        return await self._run(place, lambda: self._passes.run(self._seat(work.stage), work, payload))

    async def discard(self, stage: int, step: int, attempt: int) -> None:
        """See `node.ports.StageExecutor`; work of the attempt that still waits fails with `PeerError`."""

        def discard() -> None:
            if stage in self._seats:
                self._seats[stage].discard((step, attempt))

        if self._thread is not None:
            self._thread.forget(stage, (step, attempt))
        await self._run(STATE, discard)

    # --- the reduce

    async def gradient_range(self, stage: int, first: int, count: int) -> Payload:
        """See `node.ports.StageExecutor`; a copy, so that a send may outlive the attempt."""

        def encoded() -> Payload:
            _check_range(self._seat(stage), first, count)
            part = self._seat(stage).accumulated()[first : first + count]
            return encode(part.clone(), self._manifest.wire.gradients)

        return await self._run(STATE, encoded)

    async def sum_range(self, stage: int, first: int, parts: list[Payload]) -> Payload:
        """See `node.ports.StageExecutor`."""

        def summed() -> Payload:
            assert parts, "nothing to sum"
            decoded = (self._decoded_range(stage, first, part, parts[0].spec.shape) for part in parts)
            total = next(decoded).clone()
            for part in decoded:
                total.add_(part)
            return encode(total, self._manifest.wire.gradients)

        return await self._run(STATE, summed)

    async def install_range(self, stage: int, first: int, payload: Payload) -> None:
        """See `node.ports.StageExecutor`."""

        def install() -> None:
            self._seat(stage).install(first, self._decoded_range(stage, first, payload, payload.spec.shape))

        await self._run(STATE, install)

    async def forget_sum(self, stage: int) -> None:
        """See `node.ports.StageExecutor`; without such a seat nothing happens."""

        def forget() -> None:
            if stage in self._seats:
                self._seats[stage].forget_sum()

        await self._run(STATE, forget)

    async def use_local(self, stage: int) -> None:
        """See `node.ports.StageExecutor`."""
        await self._run(STATE, lambda: self._seat(stage).use_local())

    async def reduced(self, stage: int) -> tuple[str, float]:
        """See `node.ports.StageExecutor`. The norm is not finite if the run has diverged."""

        def measured() -> tuple[str, float]:
            gradient = self._seat(stage).reduced()
            return gradient_digest(gradient), squared_norm(gradient)

        return await self._run(STATE, measured)

    def _decoded_range(self, stage: int, first: int, payload: Payload, shape: tuple[int, ...]) -> torch.Tensor:
        size = self._seat(stage).num_elements
        if len(shape) != 1 or shape[0] < 1 or first < 0 or first + shape[0] > size:
            told = f"range of shape {list(shape[:8])} at element {first} of a gradient of {size} elements"
            raise BadTensorError("", told, "shape")
        return decode(payload, self._manifest.wire.gradients, shape, self._device)

    # --- the update

    async def apply(self, stage: int, update: Update) -> SeatInfo:
        """See `node.ports.StageExecutor`."""
        return await self._run(STATE, lambda: self._apply(self._seat(stage), update))

    def _apply(self, seat: Seat, asked: Update) -> SeatInfo:
        self._update(seat, 0, seat.reduced(), asked, seat.optimizer_age)
        seat.updated()
        return seat.info()

    def _update(self, seat: Seat, first: int, gradient: torch.Tensor, asked: Update, age: int) -> None:
        """The update of the elements from `first` on that makes their age `age + 1`."""
        optimizer, of = self._manifest.optimizer, slice(first, first + len(gradient))
        numbers = scalars(optimizer, asked.gradient_scale, asked.learning_rate, age + 1)
        vectors = Vectors(seat.weights[of], seat.exp_avg[of], seat.exp_avg_sq[of], gradient)
        update(optimizer, vectors, runs_within(seat.runs, first, len(gradient)), numbers)

    # --- state from and for other nodes

    async def adopt_range(self, stage: int, first: int, weights: memoryview, *moments: memoryview) -> None:
        """See `node.ports.StageExecutor`. All is checked before anything is changed."""
        assert len(moments) in (0, 2), f"{len(moments)} moments"

        def adopt() -> None:
            seat = self._seat(stage)
            parts = [decode_elements(x, first, seat.num_elements, self._device) for x in (weights, *moments)]
            if len({len(part) for part in parts}) != 1:
                told = f"weights and moments of {[len(part) for part in parts]} elements at element {first}"
                raise BadTensorError("", told, "size")
            if moments and parts[2].min() < 0:
                raise BadTensorError("", f"a second moment below zero at element {first} or after", "state")
            for vector, part in zip((seat.weights, seat.exp_avg, seat.exp_avg_sq), parts, strict=False):
                vector[first : first + len(part)] = part

        await self._run(STATE, adopt)

    async def replay_range(self, stage: int, first: int, gradient: memoryview, update: Update, optimizer_age: int) -> None:
        """See `node.ports.StageExecutor`."""

        def replay() -> None:
            seat = self._seat(stage)
            part = decode_elements(gradient, first, seat.num_elements, self._device)
            self._update(seat, first, part, update, optimizer_age)

        await self._run(STATE, replay)

    async def adopted(self, stage: int, optimizer_age: int) -> SeatInfo:
        """See `node.ports.StageExecutor`."""

        def adopted() -> SeatInfo:
            self._seat(stage).adopted(optimizer_age)
            return self._seat(stage).info()

        return await self._run(STATE, adopted)

    async def keep_gradients(self, stage: int, count: int) -> None:
        """See `node.ports.StageExecutor`; without such a seat nothing happens."""

        def keep() -> None:
            if stage in self._seats:
                self._seats[stage].keep_gradients(count)

        await self._run(STATE, keep)

    async def export_state(self, stage: int, first: int, count: int) -> tuple[int, memoryview]:
        """See `node.ports.StageExecutor`."""

        def export() -> tuple[int, memoryview]:
            seat = self._seat(stage)
            _check_range(seat, first, count)
            parts = [x[first : first + count] for x in (seat.weights, seat.exp_avg, seat.exp_avg_sq)]
            return seat.optimizer_age, raw_bytes(torch.cat(parts))

        return await self._run(STATE, export)

    async def export_gradient(self, stage: int, optimizer_age: int, first: int, count: int) -> memoryview | None:
        """See `node.ports.StageExecutor`."""

        def export() -> memoryview | None:
            seat = self._seat(stage)
            _check_range(seat, first, count)
            kept = seat.gradients.kept.get(optimizer_age)
            return None if kept is None else raw_bytes(kept[first : first + count].clone())

        return await self._run(STATE, export)

    async def close(self) -> None:
        """See `node.ports.StageExecutor`."""
        if self._thread is not None:
            await self._thread.close()
        self._seats.clear()


def _check_range(seat: Seat, first: int, count: int) -> None:
    assert 0 <= first <= first + count <= seat.num_elements, f"elements {first}+{count} of {seat.num_elements}"
