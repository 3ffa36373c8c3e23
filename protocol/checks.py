"""What a node can check by itself of the work that others send it. Each function returns '' or what is wrong.

Everything here follows from the manifest and the roster, so it is checked at the receiver, whoever sent it: a route visits the
stages in one of the run's orders, its hops are active replicas, a payload comes from the hop before, and nobody is told to
compute what its seat does not hold.
"""

from __future__ import annotations

from functools import lru_cache

from protocol.assignment import stage_order
from protocol.chain import Chain
from protocol.counted import contributors_of
from protocol.ids import PeerId, members_of
from protocol.manifest import Manifest
from protocol.messages import OpenEvaluation, OpenStep, PipeHeader, ReduceHeader, Route, SeatWork
from protocol.records import Commit, Seating, Share

STEPS_AHEAD = 2
"""A peer may be one commit ahead of this node, and then works on the step after it."""


@lru_cache(maxsize=64)
def stages_of(num_block_stages: int, odd: bool, swapped: bool) -> tuple[int, ...]:
    """Stages that a route visits, in order."""
    return (0, *stage_order(num_block_stages, int(odd), swapped), 0)


def route_misfit(route: Route, manifest: Manifest, chain: Chain | None, evaluate: bool = False) -> str:
    """Is it a way through this run's stages, over active replicas? Without `chain` the replicas are not looked at."""
    known = manifest.evaluation.num_microbatches if evaluate else manifest.batch.num_microbatches
    if not 0 <= route.microbatch < known:
        return f"microbatch {route.microbatch} is none of 0..{known - 1}"
    order = stages_of(manifest.num_block_stages, route.microbatch % 2 == 1, manifest.swapped and not evaluate)
    if tuple([hop.stage for hop in route.hops]) != order:
        return f"the route of microbatch {route.microbatch} does not visit stages {list(order)}"
    if route.hops[0].peer != route.hops[-1].peer:
        return f"the route of microbatch {route.microbatch} does not come back to where it began"
    active = chain.active_seats if chain else None
    idle = [hop for hop in route.hops if (hop.stage, hop.peer) not in active] if active is not None else []
    return f"peer {idle[0].peer[-8:]} is no active replica of stage {idle[0].stage}" if idle else ""


def payload_misfit(header: PipeHeader, sender: PeerId, me: PeerId, manifest: Manifest, chain: Chain) -> str:
    """Does the payload come along its route to this node? The roster counts once the payload's parent is the head here."""
    hops = header.route.hops
    amendment = header.route.amendment
    if amendment < 0 or (amendment and header.kind == "evaluate"):
        return f"its route is of amendment {amendment}"
    roster = chain if header.parent == chain.head else None
    wrong = route_misfit(header.route, manifest, roster, header.kind == "evaluate")
    if wrong:
        return wrong
    before = header.hop + 1 if header.kind == "backward" else header.hop - 1
    if not (0 <= header.hop < len(hops) and 0 <= before < len(hops)):
        return f"a {header.kind} payload has no business at hop {header.hop}"
    if hops[header.hop].peer != me:
        return f"hop {header.hop} is peer {hops[header.hop].peer[-8:]}"
    if hops[before].peer != sender:
        return f"it comes from {sender[-8:]} and not from {hops[before].peer[-8:]}, the hop before"
    if roster is None and chain.seatings and chain.member_of(sender) is None:
        return f"peer {sender[-8:]} is not on the roster"
    return ""


def open_misfit(step: OpenStep, me: PeerId, manifest: Manifest, chain: Chain) -> str:
    """Is the work in this order what the roster's seats of `me` may be asked for?"""
    if step.step != chain.step + 1:
        return f"step {step.step} does not follow step {chain.step}"
    for work in step.seats:
        seating = next((s for s in chain.seated(work.stage) if s.member.peer == me), None)
        wrong = _work_misfit(work, seating, manifest.batch.num_microbatches)
        if wrong:
            return wrong
        if work.stage == 0 and {r.microbatch for r in step.routes} != set(work.microbatches):
            return "the routes are not those of the microbatches of stage 0"
        if work.stage == 0 and (work.taken or work.helped):
            return "microbatches of stage 0 change hands"
        if not 0 <= work.sum_number <= step.amendment:
            return f"sum {work.sum_number} of stage {work.stage} is of no amendment"
    if len({work.stage for work in step.seats}) != len(step.seats):
        return "a stage is named twice"
    for detour in step.detours:
        if not 0 < detour.amendment <= step.amendment or not chain.is_active(detour.stage, detour.peer):
            return f"a detour leads over {detour.peer[-8:]}, which is no active replica of stage {detour.stage}"
        if not set(members_of(detour.microbatches)) <= set(range(manifest.batch.num_microbatches)):
            return f"a detour at stage {detour.stage} is of microbatches that there are not"
    return _routes_misfit(step.routes, me, manifest, chain)


def _work_misfit(work: SeatWork, seating: Seating | None, num_microbatches: int) -> str:
    if seating is None or (seating.role, seating.generation) != (work.role, work.generation):
        return f"there is no {work.role} seat of stage {work.stage} (generation {work.generation}) here"
    if work.role in ("learner", "parked"):
        return f"a {work.role} seat of stage {work.stage} has no part in a step"
    if work.role != "active" and (work.microbatches or work.taken or work.helped):
        return f"a {work.role} replica of stage {work.stage} computes nothing"
    named = (*work.microbatches, *work.taken, *work.helped)
    distinct = set(named)
    if len(distinct) != len(named) or not distinct <= set(range(num_microbatches)):
        return f"the microbatches of stage {work.stage} are repeated or none of 0..{num_microbatches - 1}"
    return ""


def _routes_misfit(routes: tuple[Route, ...], me: PeerId, manifest: Manifest, chain: Chain, evaluate: bool = False) -> str:
    for route in routes:
        wrong = route_misfit(route, manifest, chain, evaluate)
        if wrong:
            return wrong
        if route.hops[0].peer != me:
            return f"the route of microbatch {route.microbatch} begins elsewhere"
    distinct = {route.microbatch for route in routes}
    return "" if len(distinct) == len(routes) else "a microbatch has two routes"


def evaluation_misfit(asked: OpenEvaluation, me: PeerId, manifest: Manifest, chain: Chain) -> str:
    """Are these held-out microbatches that `me` may admit at the present weights?"""
    if asked.step != chain.step:
        return f"it is about step {asked.step}, here is step {chain.step}"
    return _routes_misfit(asked.routes, me, manifest, chain, evaluate=True)


def piece_misfit(peer: PeerId, header: ReduceHeader, me: PeerId, chain: Chain) -> str:
    """May a piece of this stage's gradient come from `peer`, now or soon?"""
    seated = {s.member.peer for s in chain.seated(header.stage)}
    if me not in seated or peer not in seated:
        return f"peer {peer[-8:]} and this node do not share stage {header.stage}"
    if not chain.step < header.step <= chain.step + STEPS_AHEAD:
        return f"step {header.step} is not near, here is step {chain.step}"
    return ""


def shares_misfit(commit: Commit, shares: tuple[Share, ...], manifest: Manifest, chain: Chain) -> str:
    """Do the shares cover each microbatch exactly once per stage, by members, and are they those that `commit` names?"""
    every = (1 << manifest.batch.num_microbatches) - 1
    if any(not 0 <= share.stage < manifest.num_stages for share in shares):
        return "a share is of a stage that there is not"
    if contributors_of(shares, commit.step, manifest) != commit.contributors:
        return "the shares are not those that it names"
    for result in commit.results:
        mine = tuple(share for share in shares if share.stage == result.stage)
        covered = 0
        for share in mine:
            bits = int(share.microbatches, 16)
            if bits & covered or chain.member_of(share.member.peer) != share.member:
                return f"the share of {share.member.peer[-8:]} in stage {result.stage} is not its own"
            covered |= bits
        if covered != every:
            return f"the shares of stage {result.stage} do not cover each microbatch"
    return ""
