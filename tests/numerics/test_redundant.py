"""Policy redundant: what `TorchExecutor` computes at a copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from node.stage.codec import encode
from node.stage.model import EmbeddingStage
from protocol.commands import Work
from tests.numerics.harness import manifest_of
from tests.numerics.test_executor import executor_of, gradient, seat_of


async def test_a_pass_that_is_run_twice_is_computed_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a copy: of a block stage its blocks, of stage 0 the head with the microbatch's own tokens."""
    manifest = manifest_of(2)
    executor, copy = [await executor_of(manifest) for _ in range(2)]
    embedded = (await executor.compute(Work("embed", 0, 1, 0, 3), None)).payload
    through = (await executor.compute(Work("forward", 1, 1, 0, 3), embedded)).payload
    last = (await executor.compute(Work("forward", 2, 1, 0, 3), through)).payload
    made: list[np.ndarray] = []
    for stage in (1, 2):
        seat_of(copy, stage).module.register_forward_hook(lambda _m, _i, out: made.append(out.numpy().copy()))
    losses: list[float] = []
    loss_of = EmbeddingStage.loss

    def loss(*args: torch.Tensor) -> torch.Tensor:
        losses.append(loss_of(*args).item())  # type: ignore[arg-type]
        return loss_of(*args)  # type: ignore[arg-type]

    before = [await copy.info(stage) for stage in range(3)]
    for stage, payload in ((1, embedded), (2, through)):
        result = await copy.compute(Work("redundant", stage, 1, 0, 3), payload)
        assert (result.payload, result.loss_sum, result.tokens) == (None, 0.0, 0)
        assert result.seconds > 0
    assert through is not None and last is not None
    assert [encode(torch.from_numpy(array), "f32").data for array in made] == [through.data, last.data]
    monkeypatch.setattr(EmbeddingStage, "loss", loss)
    assert (await copy.compute(Work("redundant", 0, 1, 0, 3), last)).payload is None
    twice, losses[:] = sum(losses), []
    head = await executor.compute(Work("head", 0, 1, 0, 3), last)
    assert twice == pytest.approx(head.loss_sum, rel=1e-6)
    for stage in range(3):
        assert not seat_of(copy, stage).retained
        assert not np.any(await gradient(copy, stage))
        assert await copy.info(stage) == before[stage]
