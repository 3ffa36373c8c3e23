"""Which updates lead from an older state of a stage to the newest one: what a learner has to do again."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.chain import Chain
from protocol.ids import StateId
from protocol.manifest import Manifest
from protocol.records import Commit
from protocol.schedule import gradient_scale, later_lr_factor, learning_rate


@dataclass(frozen=True, slots=True)
class Replay:
    """One update of a stage: what its reduced gradient and the schedule are multiplied with, and the state that it leads to."""

    state_id: StateId
    step: int
    gradient_scale: float
    learning_rate: float
    """The stage's lr_factor is in it."""
    lr_factor: float
    """Of the state that it leads to."""


def replays(chain: Chain, manifest: Manifest, stage: int, state_id: StateId, lr_factor: float) -> tuple[Replay, ...] | None:
    """Updates from `state_id`, whose factor is `lr_factor`, to the newest state, oldest first; () if it is the newest. None
    where nothing is known to lead from one to the other: the state is too old, of another lineage, or of a commit that is not
    known here yet."""
    missing: list[tuple[Commit, StateId]] = []
    after = chain.state_ids[stage]
    for past in reversed(chain.past):
        if after == state_id:
            break
        missing.append((past.commit, after))
        after = past.parents[stage]
    if after != state_id:
        return None
    found: list[Replay] = []
    for commit, leads_to in reversed(missing):
        found.append(_replay(commit, manifest, stage, leads_to, lr_factor))
        lr_factor = found[-1].lr_factor
    return tuple(found)


def _replay(commit: Commit, manifest: Manifest, stage: int, state_id: StateId, lr_factor: float) -> Replay:
    norms = {result.stage: result.squared_norm for result in commit.results}
    scale = gradient_scale(manifest, commit.tokens, norms, stage)
    rate = learning_rate(manifest.optimizer, commit.step, manifest.last_step)
    return Replay(state_id, commit.step, scale, rate * lr_factor, later_lr_factor(manifest.recovery, lr_factor))
