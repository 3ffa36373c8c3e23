"""Learning rate and gradient scale of a step, as plain functions of the manifest and the committed numbers.

Every node computes both for itself and refuses a step that does not fit, so they use Python floats only, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from protocol.manifest import Manifest, OptimizerSection, RecoverySection

CLIP_EPS = 1e-6
"""Added to the norm before dividing, as `torch.nn.utils.clip_grad_norm_` does."""


def learning_rate(optimizer: OptimizerSection, step: int, last_step: int) -> float:
    """Learning rate of update number `step` (1-based) of a run of `last_step` updates.

    With i = step - 1, w = warmup_steps, p = (i - w) / (last_step - w), peak = learning_rate, low = min_learning_rate:

    - i < w:    peak * (i + 1) / (w + 1), so that each of the w warm-up steps lies below the peak
    - constant: peak
    - linear:   peak + (low - peak) * p
    - cosine:   low + (peak - low) * (1 + cos(pi * p)) / 2

    p is 0 in the first step after the warm-up and would be 1 in the step after the last; beyond, the rate stays at `low`.
    `torch.optim.lr_scheduler.LambdaLR` with lambda(i) = this / peak gives the same. Raises `ValueError` for a step below 1.
    """
    if step < 1:
        raise ValueError(f"step {step}: steps count from 1")
    done, warmup, peak = step - 1, optimizer.warmup_steps, optimizer.learning_rate
    if done < warmup:
        return peak * (done + 1) / (warmup + 1)
    if optimizer.schedule == "constant":
        return peak
    low, progress = optimizer.min_learning_rate, min(1.0, (done - warmup) / max(1, last_step - warmup))
    if optimizer.schedule == "linear":
        return peak + (low - peak) * progress
    return low + (peak - low) * 0.5 * (1.0 + math.cos(math.pi * progress))


def later_lr_factor(recovery: RecoverySection, lr_factor: float) -> float:
    """What the learning rate of a stage is multiplied with in the update after one that it was multiplied with `lr_factor` in.

    A rebuilt stage begins with F = recovery.lr_factor. With D = recovery.lr_factor_decay_steps > 0, update number k + 1 after
    the rebuild has f(k) = 1 + (F - 1) * max(0, D - k) / D, so that from number D + 1 on the factor is 1; with D = 0 it stays F.
    The factor is part of the stage's state and f(k + 1) follows from f(k) alone: whoever holds the state, however it came
    there, goes on with the same one. A stage that was never rebuilt has 1, and keeps it.
    """
    peak, over = recovery.lr_factor - 1.0, recovery.lr_factor_decay_steps
    if not over or not peak or lr_factor == 1.0:
        return lr_factor
    left = round((lr_factor - 1.0) / peak * over)
    return 1.0 + peak * (min(max(left, 1), over) - 1) / over


def gradient_norm(tokens: int, squared_norms: Iterable[float]) -> float:
    """l2 norm of the gradient of the mean token loss, from squared norms of parts of its *sum* over `tokens` tokens.

    Adds in the given order. Raises `ValueError` if there are no tokens or a squared norm is negative or not finite.
    """
    if tokens < 1:
        raise ValueError(f"{tokens} tokens: a step needs at least one")
    total = 0.0
    for squared in squared_norms:
        if not math.isfinite(squared) or squared < 0:
            raise ValueError(f"squared gradient norm {squared} is not a finite, non-negative number")
        total += squared
    if not math.isfinite(total):
        raise ValueError("the sum of the squared gradient norms is not finite")
    return math.sqrt(total) / tokens


def gradient_scale(manifest: Manifest, tokens: int, squared_norms: Mapping[int, float], stage: int) -> float:
    """What turns the reduced gradient of `stage` (a sum of token-loss gradients) into the one that the optimizer gets.

    (1 / tokens) * min(1, clip_norm / (norm + 1e-6)), norm being that of the mean-loss gradient over all stages
    (clip_scope `global`) or over `stage` alone (`per_stage`); clip_norm 0 does not clip. `squared_norms` holds those of
    every stage. Raises `ValueError` where a stage is missing or unknown, or a number is not finite (see `gradient_norm`).
    """
    if set(squared_norms) != set(range(manifest.num_stages)):
        raise ValueError(f"squared norms of stages {sorted(squared_norms)}; 0..{manifest.num_block_stages} are needed")
    whole = gradient_norm(tokens, (squared_norms[s] for s in sorted(squared_norms)))
    clip = manifest.optimizer.clip_norm
    if not clip:
        return 1.0 / tokens
    own = manifest.optimizer.clip_scope == "per_stage"
    norm = gradient_norm(tokens, [squared_norms[stage]]) if own else whole
    return (1.0 / tokens) * min(1.0, clip / (norm + CLIP_EPS))
