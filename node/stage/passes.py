"""Forward and backward passes of one microbatch through one seat.

Losses are sums over tokens and gradients are sums of token-loss gradients: nothing is averaged or scaled here. With
`accumulate` off a pass returns the same payload and leaves the seat's gradient alone.

Legend of shape suffixes: B samples, T tokens of context, D hidden size, N = B * T rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.ports import ComputeResult, Payload, PeerError, UnusableError
from node.stage.codec import decode, encode
from node.stage.model import HEAD_ROWS, BlockStage, EmbeddingStage
from node.stage.seat import Retained, Seat
from node.stage.tokens import TokenSource
from protocol.commands import Work
from protocol.manifest import Manifest

Outcome = tuple[Tensor | None, float]
"""(what goes to the next hop, sum of token losses)."""


class Passes:
    """The passes of a run's stages, as functions of a seat, the work and its payload."""

    def __init__(self, manifest: Manifest, tokens: TokenSource) -> None:
        batch = manifest.batch
        self._manifest = manifest
        self._tokens = tokens
        self._shape = (batch.microbatch_samples, batch.context_tokens, manifest.model.hidden_size)

    def run(self, seat: Seat, work: Work, payload: Payload | None) -> ComputeResult:
        """Do the work. `PeerError` for a payload that does not fit or a pass whose forward is not retained here."""
        begun = time.perf_counter()
        passes: dict[str, Callable[[Seat, Work, Payload | None], Outcome]] = {
            "embed": self._embed,
            "forward": self._forward,
            "head": self._head,
            "backward": self._backward,
            "embed_backward": self._embed_backward,
            "redundant": self._redundant,
        }
        tensor, loss = passes[work.op](seat, work, payload)
        encoded = None if tensor is None else encode(tensor, self._manifest.wire.activations)
        tokens = self._manifest.batch.tokens_per_microbatch if work.op == "head" else 0
        return ComputeResult(encoded, loss, tokens, time.perf_counter() - begun)

    # --- stage 0

    def _embed(self, seat: Seat, work: Work, payload: Payload | None) -> Outcome:
        tokens = self._read(seat, work)
        if not work.evaluate:
            seat.retained[_key(work)] = Retained(tokens=tokens)
        with torch.no_grad():
            return _embedding(seat).embed(tokens[:, :-1]), 0.0

    def _head(self, seat: Seat, work: Work, payload: Payload | None) -> Outcome:
        h_ND = self._decoded(seat, payload).view(-1, self._shape[-1])
        if work.evaluate:
            return None, self._loss_of(seat, work, h_ND)
        retained = _retained(seat, work)
        assert retained.tokens is not None
        targets_N = retained.tokens[:, 1:].reshape(-1)
        if work.accumulate:
            seat.accumulate_for((work.step, work.attempt))
        grad_ND, loss = torch.empty_like(h_ND), 0.0
        parts = zip(h_ND.split(HEAD_ROWS), targets_N.split(HEAD_ROWS), grad_ND.split(HEAD_ROWS), strict=True)
        for h, targets, grad in parts:
            h = h.detach().requires_grad_()
            part = self._loss(seat, h, targets)
            grad.copy_(_input_gradient(part, h, None, work.accumulate))
            loss += part.item()
        return grad_ND.view(self._shape), loss

    def _loss_of(self, seat: Seat, work: Work, h_ND: Tensor) -> float:
        with torch.no_grad():
            targets_N = self._read(seat, work)[:, 1:].reshape(-1)
            rows = zip(h_ND.split(HEAD_ROWS), targets_N.split(HEAD_ROWS), strict=True)
            return sum(self._loss(seat, h, targets).item() for h, targets in rows)

    def _embed_backward(self, seat: Seat, work: Work, payload: Payload | None) -> Outcome:
        grad_ND = self._decoded(seat, payload).view(-1, self._shape[-1])
        tokens = _retained(seat, work).tokens
        assert tokens is not None
        if work.accumulate:
            seat.accumulate_for((work.step, work.attempt))
            grad_VD = seat.module.get_parameter("model.embed_tokens.weight").grad
            assert grad_VD is not None
            grad_VD.index_add_(0, tokens[:, :-1].reshape(-1), grad_ND)
        del seat.retained[_key(work)]
        return None, 0.0

    def _loss(self, seat: Seat, h_ND: Tensor, targets_N: Tensor) -> Tensor:
        with self._autocast(seat):
            return _embedding(seat).loss(h_ND, targets_N)

    def _read(self, seat: Seat, work: Work) -> Tensor:
        """[B, T + 1]"""
        source = self._tokens
        ids = source.validation(work.microbatch) if work.evaluate else source.microbatch(work.step, work.microbatch)
        expected = (self._shape[0], self._shape[1] + 1)
        assert ids.shape == expected, f"tokens of shape {ids.shape}, not {expected}"
        if ids.min() < 0 or ids.max() >= self._manifest.model.vocab_size:
            wrong = ids[(ids < 0) | (ids >= self._manifest.model.vocab_size)][0]
            where = f"microbatch {work.microbatch}" if work.evaluate else f"step {work.step}, microbatch {work.microbatch}"
            raise UnusableError(
                2,
                f"token id {wrong} in {where} is outside the vocabulary of {self._manifest.model.vocab_size};"
                " prepare the data with the run's tokenizer",
            )
        return torch.tensor(ids.astype(np.int64, copy=False), device=seat.device)

    # --- block stages

    def _forward(self, seat: Seat, work: Work, payload: Payload | None) -> Outcome:
        h_BTD = self._decoded(seat, payload)
        if work.evaluate:
            with torch.no_grad(), self._autocast(seat):
                return _blocks(seat)(h_BTD), 0.0
        h_BTD.requires_grad_()
        with self._autocast(seat):
            out_BTD: Tensor = _blocks(seat)(h_BTD)
        seat.retained[_key(work)] = Retained(input=h_BTD, output=out_BTD)
        return out_BTD.detach(), 0.0

    def _backward(self, seat: Seat, work: Work, payload: Payload | None) -> Outcome:
        grad_BTD = self._decoded(seat, payload)
        retained = _retained(seat, work)
        assert retained.input is not None
        assert retained.output is not None
        if work.accumulate:
            seat.accumulate_for((work.step, work.attempt))
        del seat.retained[_key(work)]
        return _input_gradient(retained.output, retained.input, grad_BTD, work.accumulate), 0.0

    # --- either

    def _redundant(self, seat: Seat, work: Work, payload: Payload | None) -> Outcome:
        """What the stage's active replica makes of the same payload, thrown away."""
        h_BTD = self._decoded(seat, payload)
        if seat.stage == 0:
            self._loss_of(seat, work, h_BTD.view(-1, self._shape[-1]))
            return None, 0.0
        with torch.no_grad(), self._autocast(seat):
            _blocks(seat)(h_BTD)
        return None, 0.0

    def _decoded(self, seat: Seat, payload: Payload | None) -> Tensor:
        assert payload is not None, "the work needs a payload"
        return decode(payload, self._manifest.wire.activations, self._shape, seat.device)

    def _autocast(self, seat: Seat) -> torch.autocast:
        enabled = self._manifest.compute.autocast == "bf16"
        return torch.autocast(seat.device.type, dtype=torch.bfloat16, enabled=enabled)


class _Inject(torch.autograd.Function):
    """A scalar whose gradient with respect to `output` is `gradient`, to the bit.

    torch's own way of starting a backward pass from a given gradient loads its symbolic shapes first: seconds at the start of
    every node.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_one: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def _input_gradient(output: Tensor, leaf: Tensor, gradient: Tensor | None, accumulate: bool) -> Tensor:
    """Gradient of `leaf`; with `accumulate` the parameters' gradients are added to the seat's in the same pass."""
    scalar = output if gradient is None else _Inject.apply(output, gradient)  # type: ignore[no-untyped-call]
    if not accumulate:
        (found,) = torch.autograd.grad(scalar, leaf)
        return found
    torch.autograd.backward(scalar)
    assert leaf.grad is not None
    return leaf.grad


def _key(work: Work) -> tuple[int, int, int]:
    return work.step, work.attempt, work.microbatch


def _retained(seat: Seat, work: Work) -> Retained:
    found = seat.retained.get(_key(work))
    if found is None:
        raise PeerError("", f"{work.op} of microbatch {work.microbatch}, whose forward pass is not retained here")
    return found


def _embedding(seat: Seat) -> EmbeddingStage:
    assert isinstance(seat.module, EmbeddingStage), f"stage {seat.stage} has no embedding"
    return seat.module


def _blocks(seat: Seat) -> BlockStage:
    assert isinstance(seat.module, BlockStage), f"stage {seat.stage} has no blocks"
    return seat.module
