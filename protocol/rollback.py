"""Going back to a step after which every stage was saved (policy `checkpoint`): which steps there are, and what a `Rollback`
may say. Where the saved stages lie, and whether they are whole, is known to nobody here (`protocol.rollbacks` asks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protocol.ids import initial_state_id
from protocol.manifest import Manifest
from protocol.records import Point, Rollback

if TYPE_CHECKING:
    from protocol.chain import Chain

MAX_POINTS = 64
"""The newest ones are remembered: where no set of so many could be saved whole, the run begins anew."""


def saves_after(step: int, manifest: Manifest) -> bool:
    """Are the stages saved after this step?"""
    return manifest.recovery.policy == "checkpoint" and step % manifest.recovery.checkpoint_every == 0


def seed_point(manifest: Manifest) -> Point:
    """The beginning: there is nothing to be saved of it."""
    return Point(0, "", tuple(initial_state_id(manifest.run_id, stage) for stage in range(manifest.num_stages)))


def points_of(chain: Chain) -> list[Point]:
    """What the run may go back to, newest first; the seed is the last."""
    return [*reversed(chain.points), seed_point(chain.manifest)]


def with_point(points: Sequence[Point], point: Point) -> tuple[Point, ...]:
    """One more, and no more than are remembered."""
    return (*points, point)[-MAX_POINTS:]


def rollback_misfit(rollback: Rollback, chain: Chain) -> str:
    """'' if it may follow the head, as far as it is no Roster; else what is wrong with it."""
    if chain.manifest.recovery.policy != "checkpoint" or rollback.epoch != chain.epoch + 1:
        return f"it is rollback {rollback.epoch} of a run with policy {chain.manifest.recovery.policy}"
    if all((p.step, p.states) != (rollback.to_step, rollback.states) for p in points_of(chain)):
        return f"no states {[s[:8] for s in rollback.states[:8]]} were to be saved after step {rollback.to_step}"
    if rollback.ballot <= chain.fence or not rollback.voters or rollback.ballot.peer != rollback.voters[0].peer:
        return f"it was made under {rollback.ballot}"
    wrong = [s for s in rollback.joins if s.role != "active" or s.generation != chain.generations[s.stage]]
    if wrong:
        return f"it seats {wrong[0]}"
    held = {s.stage for s in chain.seatings if s.role != "learner"}
    return _needless(rollback, chain, held) or _uncovered(rollback, chain, held)


def _needless(rollback: Rollback, chain: Chain, held: set[int]) -> str:
    """A stage that somebody holds is not given away, and without a loss nobody goes back; unless nothing was regained yet."""
    if taken := [s.stage for s in rollback.joins if s.stage in held]:
        return f"stage {taken[0]} has a holder"
    return "" if rollback.joins or chain.rollback else "no stage is lost"


def _uncovered(rollback: Rollback, chain: Chain, held: set[int]) -> str:
    after = held | {s.stage for s in rollback.joins}
    left = [s for s in range(chain.manifest.num_stages) if s not in after]
    return f"nobody would hold stage {left[0]}" if left else ""
