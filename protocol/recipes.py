"""What a lost stage is made of: DESIGN's recovery ladder where no exact copy is left (CheckFree, arXiv 2506.15461).

    interior block stage i: W_i = (w_{i-1} W_{i-1} + w_{i+1} W_{i+1}) / (w_{i-1} + w_{i+1}), w = last committed gradient norm
    S1 or S_N: copy of the swap partner (the only block neighbour)
    adjacent ones: the nearest survivors on each side, weighted by nearness too; with one side only, a copy

The baselines: `copy` takes the nearest survivor, of two as near the one below; `uniform` the plain mean of the two; `random`
draws the stage anew from the seed and its generation, of nobody's weights.
Stage 0 is never a source, and is never made of others: it comes back from an embedding copy or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from protocol.manifest import Manifest, OptimizerSection
from protocol.records import Source

CLIPPED_EXTRA = 1e-4
"""What the paper's public code adds to a clipped norm."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sources with coefficients that sum to 1, lower stage first. `sentence` says why it is so."""

    sources: tuple[Source, ...]
    sentence: str
    is_drawn: bool = False
    """Nobody's weights are needed."""

    @property
    def can_be_made(self) -> bool:
        """Is there anything to make the stage of?"""
        return self.is_drawn or bool(self.sources)


def recipe(stage: int, whole: Collection[int], states: Sequence[str], weights: Sequence[float], manifest: Manifest) -> Recipe:
    """For a lost block stage. `whole`: stages of which somebody holds the whole state; `states`, `weights`: state_id and weight
    of each stage (see `weights_of`)."""
    if stage == 0:
        return Recipe((), "stage 0 has no copy left, and is not made of other stages")
    if manifest.redraws:
        return Recipe((), "drawn anew from the seed", is_drawn=True)
    below = max((s for s in whole if 0 < s < stage), default=None)
    above = min((s for s in whole if s > stage), default=None)
    if below is None and above is None:
        return Recipe((), f"no block stage is left to make stage {stage} of")
    if below is None or above is None:
        one = above if below is None else below
        assert one is not None, "one of the two is there"
        return Recipe((Source(one, states[one], 1.0),), f"a copy of stage {one}, its only neighbour")
    if manifest.recovery.policy == "copy":
        one = above if above - stage < stage - below else below
        return Recipe((Source(one, states[one], 1.0),), f"a copy of stage {one}, the nearest that is left")
    shares, why = _shares((weights[below], weights[above]), (stage - below, above - stage), manifest)
    sources = (Source(below, states[below], shares[0]), Source(above, states[above], shares[1]))
    return Recipe(sources, f"{shares[0]:.2f} of stage {below} and {shares[1]:.2f} of stage {above}{why}")


def beyond_recovery(lacking: Collection[int], step: int, manifest: Manifest) -> str:
    """For people: why stages of which nobody has any state, since the commit of `step`, can never be made again; '' if they
    can, or where the policy is to wait for their holders. Before the first commit everything is made from the seed."""
    copies = manifest.recovery.embedding_copies
    if not manifest.recovery.rebuilds or not step:
        return ""
    if 0 in lacking:
        every = f"recovery.policy {manifest.recovery.policy}" if manifest.copies_stages or manifest.keeps_shadows else ""
        named = every or (f"recovery.embedding_copies {copies}" if copies else "")
        kept = f"its copies ({named}) are gone with it" if named else "recovery.embedding_copies is 0"
        why = f"stage 0 is lost, and {kept}; it cannot be made of other stages"
    elif len(lacking) >= manifest.num_block_stages and not manifest.redraws:
        why = "all block stages are lost, and there is nothing left to make them of"
    else:
        return ""
    return f"the run ends at step {step}: {why}. Start a new run, with more nodes for these stages"


def _shares(weights: tuple[float, float], distances: tuple[int, int], manifest: Manifest) -> tuple[tuple[float, float], str]:
    """By weight and nearness. A weight that says nothing makes both count alike, and that is said."""
    if manifest.recovery.policy == "uniform":
        return (0.5, 0.5), ", their plain mean"
    how = manifest.recovery.weighting
    why = "" if how == "gradient_norm" else f" ({how})"
    if not (math.isfinite(sum(weights)) and min(weights) > 0):
        weights, why = (1.0, 1.0), " (uniform: a gradient norm is missing, zero or not finite)"
    low, high = (weight / distance for weight, distance in zip(weights, distances, strict=True))
    return (low / (low + high), 1.0 - low / (low + high)), why


def weights_of(squared_norms: Sequence[float], tokens: int, manifest: Manifest) -> list[float]:
    """Weight of each stage by the last commit: its gradient's l2 norm per token, unclipped; as in the paper's code clipped,
    plus 1e-4; or 1 for all. 0 where there is no norm to speak of. `squared_norms` is empty before the first commit."""
    num_stages, how = manifest.num_stages, manifest.recovery.weighting
    if how == "uniform":
        return [1.0] * num_stages
    norms = [math.sqrt(max(0.0, x)) / max(1, tokens) for x in squared_norms] or [0.0] * num_stages
    if how == "gradient_norm_clipped":
        clip = manifest.optimizer.clip_norm or math.inf
        return [min(norm, clip) + CLIPPED_EXTRA if 0 < norm < math.inf else 0.0 for norm in norms]
    return norms


@dataclass(frozen=True, slots=True)
class MomentShares:
    """What the sources' first and second moments are multiplied with before they are added; the optimizer age of the sum."""

    age: int
    first: tuple[float, ...]
    second: tuple[float, ...]


def moment_shares(coefficients: Sequence[float], ages: Sequence[int], optimizer: OptimizerSection) -> MomentShares:
    """Averaged moments (`recovery.moments: averaged`), each corrected for its bias first:

        m = (1 - b1^t) sum_k c_k m_k / (1 - b1^t_k)        v = (1 - b2^t) sum_k c_k v_k / (1 - b2^t_k)

    c_k are the coefficients of the weights, t_k the sources' optimizer ages, and t is the smallest of them: the rebuilt stage
    trusts its moments no more than the youngest source trusts its own, and a copy has its source's bits. Where t is 0, a source
    having had no update yet, there is nothing to correct: the moments are zero. SGD's momentum has no bias: m = sum_k c_k m_k.
    """
    age = min(ages)

    def shares(beta: float) -> tuple[float, ...]:
        if not age:
            return (0.0,) * len(ages)
        if optimizer.kind == "sgd":
            return tuple(coefficients)
        return tuple(c * ((1.0 - beta**age) / (1.0 - beta**its)) for c, its in zip(coefficients, ages, strict=True))

    return MomentShares(age, shares(optimizer.beta1), shares(optimizer.beta2))
