"""Who computes which microbatch at which stage, and the route that follows from it. A pure function of the roster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import pairwise

from protocol.ids import PeerId
from protocol.messages import Hop, Route

MAX_WATCHED_NEIGHBOURS = 4


def stage_order(num_block_stages: int, microbatch: int, swapped: bool) -> tuple[int, ...]:
    """Block stages in the order in which a microbatch visits them.

    Odd microbatches of a swapped run take S2,S1,S3..S_{N-2},S_N,S_{N-1} (CheckFree+, arXiv 2506.15461), all others S1..S_N.
    """
    order = list(range(1, num_block_stages + 1))
    if swapped and microbatch % 2:
        assert num_block_stages >= 4, "swapped order needs at least 4 block stages; the manifest refuses fewer"
        order[0], order[1] = order[1], order[0]
        order[-1], order[-2] = order[-2], order[-1]
    return tuple(order)


def quotas(num_microbatches: int, speeds: Sequence[float]) -> list[int]:
    """How many microbatches each replica gets so that the last one to end does so as early as possible: each in turn goes to
    whom it would be done with first. So a slow replica never makes a stage slower than the others alone are. Speed 0 gets none.
    """
    assert speeds and max(speeds) > 0 and min(speeds) >= 0, f"somebody needs a positive speed, not {speeds}"
    counts, ends = [0] * len(speeds), [(1 / speed, i) for i, speed in enumerate(speeds) if speed > 0]
    heapify(ends)
    for _ in range(num_microbatches):
        i = ends[0][1]
        counts[i] += 1
        heapreplace(ends, ((counts[i] + 1) / speeds[i], i))
    return counts


def share_out(num_microbatches: int, speeds: Sequence[float]) -> list[list[int]]:
    """Deal microbatches 0..n-1 to replicas by their speeds (`quotas`), evenly interleaved (smooth weighted round robin)."""
    counts = quotas(num_microbatches, speeds)
    credit = [0] * len(counts)
    hands: list[list[int]] = [[] for _ in counts]
    for microbatch in range(num_microbatches):
        credit = [have + count for have, count in zip(credit, counts, strict=True)]
        winner = max(range(len(counts)), key=lambda i: (credit[i], -i))
        credit[winner] -= num_microbatches
        hands[winner].append(microbatch)
    return hands


@dataclass(frozen=True, slots=True)
class Plan:
    """owner[stage][microbatch] and, per (stage, peer), the microbatches in accumulation order, apart from those taken over from
    others (`protocol.reroute`)."""

    owner: tuple[tuple[PeerId, ...], ...]
    hands: Mapping[tuple[int, PeerId], tuple[int, ...]]
    routes: tuple[Route, ...]

    links: Mapping[PeerId, tuple[PeerId, ...]]
    """Per peer: those before and after it on any route, most used first, itself left out."""

    def neighbours(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Peers next to `peer` on any route, most used first."""
        return self.links.get(peer, ())

    def passing(self, stage: int, peer: PeerId) -> tuple[int, ...]:
        """Microbatches whose way leads over the peer at the stage."""
        here = Hop(stage, peer)
        return tuple(route.microbatch for route in self.routes if here in route.hops)

    def routes_from(self, peer: PeerId) -> tuple[Route, ...]:
        """Routes of the microbatches that `peer` admits."""
        return tuple(self.routes[m] for m in self.hands.get((0, peer), ()))


def make_plan(
    num_microbatches: int,
    replicas: Sequence[Sequence[PeerId]],
    swapped: bool,
    shares: Sequence[Sequence[float]] | None = None,
) -> Plan:
    """Plan for active `replicas[stage]` in roster order; every stage needs one. `shares[stage]`: how many microbatches each
    gets, or their relative speeds; equal where none are given.

    A replica accumulates in the order (rank of the microbatch in its stage-0 owner's hand, microbatch): so several stage-0
    replicas feed it in turn, and the order is the same in every run with the same roster.
    """
    return _plan(num_microbatches, tuple(map(tuple, replicas)), swapped, tuple(map(tuple, shares)) if shares else None)


@lru_cache(maxsize=4)
def _plan(
    num_microbatches: int,
    replicas: tuple[tuple[PeerId, ...], ...],
    swapped: bool,
    shares: tuple[tuple[float, ...], ...] | None,
) -> Plan:
    speeds = shares or [[1.0] * len(peers) for peers in replicas]
    dealt = [share_out(num_microbatches, row) for row in speeds]
    rank = {m: i for hand in dealt[0] for i, m in enumerate(hand)}
    owner, hands = [], {}
    for stage, peers in enumerate(replicas):
        row = [""] * num_microbatches
        for peer, hand in zip(peers, dealt[stage], strict=True):
            hands[stage, peer] = tuple(sorted(hand, key=lambda m: (rank[m], m)))
            for microbatch in hand:
                row[microbatch] = peer
        owner.append(tuple(row))
    routes = tuple(_route(m, owner, swapped) for m in range(num_microbatches))
    return Plan(tuple(owner), hands, routes, links_of(routes))


def first_meetings(me: PeerId, fresh: Collection[PeerId], plan: Plan) -> tuple[PeerId, ...]:
    """Who `me` will exchange payloads with for the first time, now that `fresh` compute: their streams can be opened ahead."""
    near = plan.neighbours(me)[:MAX_WATCHED_NEIGHBOURS]
    return near if me in fresh else tuple(peer for peer in near if peer in fresh)


def _route(microbatch: int, owner: Sequence[Sequence[PeerId]], swapped: bool) -> Route:
    stages = (0, *stage_order(len(owner) - 1, microbatch, swapped), 0)
    return Route(microbatch, tuple(Hop(stage, owner[stage][microbatch]) for stage in stages))


def links_of(routes: Sequence[Route]) -> dict[PeerId, tuple[PeerId, ...]]:
    """Per peer: those before and after it on any route, most used first, itself left out."""
    uses: dict[PeerId, Counter[PeerId]] = {}
    for route in routes:
        for a, b in pairwise(route.hops):
            if a.peer != b.peer:
                uses.setdefault(a.peer, Counter())[b.peer] += 1
                uses.setdefault(b.peer, Counter())[a.peer] += 1
    return {peer: tuple(sorted(near, key=lambda p: (-near[p], p))) for peer, near in uses.items()}
