"""Who sums a stage's gradient in an attempt: `StartReduce` tells only what does not follow from the roster."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.chain import Chain
from protocol.commands import ReduceMember
from protocol.ids import PeerId, bitmap, members_of
from protocol.manifest import Manifest
from protocol.messages import StartReduce
from protocol.records import Seating


def replicas(chain: Chain, stage: int) -> list[Seating]:
    """Those that take part in a step at the head: active ones first, in roster order, then passive ones."""
    return [s for s in chain.holders(stage) if s.role != "parked"]


def spare_near(stage: int, chain: Chain, manifest: Manifest) -> frozenset[int]:
    """Block stages next to this one on any microbatch's way of which another replica could take over."""
    last, swaps = manifest.num_block_stages, manifest.swapped
    reach = 3 if swaps else 1
    near = {*range(stage - reach, stage + reach + 1), *([last, last - 1] if stage == 0 else [])}
    return frozenset(s for s in near if 1 <= s <= last and s != stage and len(chain.active(s)) > 1)


def owners_of(bitmaps: Sequence[str], num_microbatches: int) -> tuple[int, ...]:
    """For each microbatch the place of the bitmap that holds it; together they hold each exactly once."""
    owners = [-1] * num_microbatches
    for place, bits in enumerate(bitmaps):
        for microbatch in members_of(bits):
            owners[microbatch] = place
    assert min(owners) >= 0, f"microbatch {owners.index(-1)} is nobody's"
    return tuple(owners)


def _row(start: StartReduce, chain: Chain) -> list[Seating]:
    return [s for s in replicas(chain, start.stage) if s.member.peer not in start.without]


def summands(start: StartReduce, chain: Chain) -> tuple[ReduceMember, ...]:
    """The replicas that sum, at the attempt's parent, in roster order, and what each accumulated. `start` must fit."""
    row = _row(start, chain)
    bits = [0] * len(row)
    for microbatch, place in enumerate(start.owners):
        bits[place] |= 1 << microbatch
    return tuple([ReduceMember(s.member, s.role, f"{bits[place]:x}") for place, s in enumerate(row)])


def reduce_misfit(start: StartReduce, me: PeerId, accumulated: str, num_microbatches: int, chain: Chain) -> str:
    """'' if each microbatch is an active replica's, and those of `me` are what it `accumulated` (bitmap); else why not."""
    row = _row(start, chain)
    num_active = sum(s.role == "active" for s in row)
    if len(start.owners) != num_microbatches or not all(0 <= place < num_active for place in start.owners):
        return f"the owners of stage {start.stage} are not {num_microbatches} of the {num_active} active replicas"
    places = [place for place, s in enumerate(row) if s.member.peer == me]
    mine = [bitmap(m for m, owner in enumerate(start.owners) if owner == place) for place in places]
    return "" if mine == [accumulated] else f"microbatches {accumulated} were accumulated here, not {''.join(mine) or 'none'}"
