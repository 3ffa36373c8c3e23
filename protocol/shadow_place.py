"""Who keeps a stage's shadow: the peer farthest from it in the pipeline, which is not lost together with it and its neighbours.

The pipeline is a ring (stage 0 embeds and has the head). Where each stage has one holder, of n stages stage i is kept half way
round, at the holder of i + n // 2: each node keeps one. That is two stages away from four stages on, the farthest there is with
fewer. Everybody derives it from the roster; nothing is decided about it.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.chain import Chain
from protocol.ids import Member


def distance(a: int, b: int, num_stages: int) -> int:
    """Stages between two, the shorter way round."""
    way = (a - b) % num_stages
    return min(way, num_stages - way)


def keeper_of(stage: int, chain: Chain) -> Member | None:
    """Of all that compute another stage and hold nothing of this one: whose nearest stage is farthest from it; of several the
    first one on the way from the stage, in roster order. None: there is nobody else."""
    num_stages = chain.manifest.num_stages
    held: dict[Member, int] = {}
    for seating in chain.seatings:
        far = distance(seating.stage, stage, num_stages)
        held[seating.member] = min(far, held.get(seating.member, far))
    computing = [s for s in chain.seatings if s.role == "active" and held[s.member]]
    best = min(computing, key=lambda s: (-held[s.member], (s.stage - stage) % num_stages), default=None)
    return best.member if best else None


def keepers(chain: Chain) -> Mapping[int, Member]:
    """By stage."""
    found = {stage: keeper_of(stage, chain) for stage in range(chain.manifest.num_stages)}
    return {stage: member for stage, member in found.items() if member}
