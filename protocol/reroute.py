"""Exact reroute: inside an open attempt, the work of a replica that cannot be reached goes to others of its stage.

Each (stage, microbatch) has one owner, in whose gradient it counts. It changes hands in two ways only. `relieve`: the replica
lives and has said what it has accumulated (`Revoke` -> `Revoked`); it keeps that, and others get the rest. `exclude`: it does
not answer, or is lost; it is off the attempt's roster with all its seats, and others compute again what it had accumulated.
Either way microbatches are led around it, from the tokens on; seats that have accumulated one already compute it once more and
do not accumulate it. What this module changes is the ledger; `opening` tells everybody, as an amendment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from protocol.assignment import links_of
from protocol.commands import Note, SendMessage
from protocol.ids import Member, PeerId, bitmap, members_of
from protocol.ledger import Doubt, Ledger
from protocol.messages import Hop, Route
from protocol.revoking import Revoke, Revoked

MAX_AMENDMENTS = 8
"""Of one attempt; then it is voided."""
ANSWER_HEARTBEATS = 2.0
"""A replica that lives says within so many what it has accumulated."""


def why_needed(ledger: Ledger, member: Member) -> str:
    """'' if the attempt can go on around the member, else why not."""
    if ledger.amendment >= MAX_AMENDMENTS:
        return f"work was given to others {ledger.amendment} times"
    for stage, row in enumerate(ledger.seats):
        mine = next((s for s in row if s.member == member), None)
        if mine is None:
            continue
        if stage in ledger.started:
            return f"it takes part in the sum of stage {stage}, which has begun"
        if mine.role == "active" and stage == 0:
            return "it admits microbatches"
        if mine.role == "active" and not _able(ledger, stage, member):
            return f"nobody else can compute stage {stage}"
    return ""


def _able(ledger: Ledger, stage: int, but: Member) -> list[PeerId]:
    """Active replicas of the stage that can be given work, in roster order."""
    row = [s.member for s in ledger.seats[stage] if s.role == "active" and s.member != but]
    return [m.peer for m in row if m.peer not in ledger.without and m not in ledger.doubts]


def is_seated(ledger: Ledger, member: Member) -> bool:
    """Has the member a part in the attempt?"""
    return member in ledger.by_member()


# ---- doubts ----


def doubt(ledger: Ledger, member: Member, reason: str, now: float, patience_s: float = 0.0) -> list[SendMessage]:
    """Ask the member what it has accumulated."""
    ledger.doubts[member] = Doubt(now + patience_s, now, reason)
    return [_revoke(ledger, member)]


def _revoke(ledger: Ledger, member: Member) -> SendMessage:
    return SendMessage(member.peer, Revoke(ledger.ballot, ledger.step, ledger.attempt))


def ask_again(ledger: Ledger, heartbeat_s: float, now: float) -> list[SendMessage]:
    """What was not answered may not have arrived."""
    late = [member for member, about in ledger.doubts.items() if now - about.asked_at >= heartbeat_s]
    for member in late:
        ledger.doubts[member].asked_at = now
    return [_revoke(ledger, member) for member in late]


def overdue(ledger: Ledger, now: float) -> list[tuple[Member, str]]:
    """Who has not answered for too long, and why it was asked."""
    return [(member, about.reason) for member, about in ledger.doubts.items() if now > about.until]


def end_to_spare(ledger: Ledger, ends: Iterable[Member | None]) -> Member | None:
    """The first of the two ends of a link without which the attempt can go on."""
    return next((end for end in ends if end and is_seated(ledger, end) and not why_needed(ledger, end)), None)


# ---- amendments ----


def answer_misfit(ledger: Ledger, member: Member, message: Revoked) -> str:
    """'' if the attempt can go on with what the member says that it has accumulated, else why not."""
    if member not in ledger.doubts or message.amendment != ledger.amendment:
        return "nobody asked, or it does not know yet what it was given"
    told = {seat.stage: set(members_of(seat.microbatches)) for seat in message.seats}
    for stage in _active_stages(ledger, member):
        owned = set(ledger.owned(stage, member.peer))
        if stage not in told or not told[stage] <= owned or (stage in ledger.started and told[stage] != owned):
            return f"it accumulated {sorted(told.get(stage, ()))} of stage {stage} and owns {sorted(owned)}"
        if not _able(ledger, stage, member):
            return f"nobody else can compute stage {stage}"
    return ""


def relieve(ledger: Ledger, member: Member, message: Revoked) -> list[Note]:
    """The member keeps what it has accumulated, which must fit, and no microbatch passes it any more."""
    told = {seat.stage: frozenset(members_of(seat.microbatches)) for seat in message.seats}
    reason = ledger.doubts.pop(member).reason
    return _amend(ledger, member, {stage: told[stage] for stage in _active_stages(ledger, member)}, reason)


def exclude(ledger: Ledger, member: Member, reason: str) -> list[Note]:
    """The attempt goes on as if the member had not been there."""
    ledger.doubts.pop(member, None)
    ledger.excluded[member] = reason
    notes = _amend(ledger, member, dict.fromkeys(_active_stages(ledger, member), frozenset()), reason)
    ledger.seats = [[s for s in row if s.member != member] for row in ledger.seats]
    return notes


def _active_stages(ledger: Ledger, member: Member) -> list[int]:
    return [stage for stage, row in enumerate(ledger.seats) if any(s.member == member and s.role == "active" for s in row)]


def _amend(ledger: Ledger, member: Member, kept: dict[int, frozenset[int]], reason: str) -> list[Note]:
    ledger.amendment += 1
    ledger.without[member.peer] = None
    return [_lead_around(ledger, member, stage, keeps, reason) for stage, keeps in kept.items()]


def _lead_around(ledger: Ledger, member: Member, stage: int, keeps: frozenset[int], reason: str) -> Note:
    peer, able = member.peer, _able(ledger, stage, member)
    moved = [m for m in ledger.owned(stage, peer) if m not in keeps]
    passing = [route.microbatch for route in ledger.plan.routes if Hop(stage, peer) in route.hops]
    if member in ledger.excluded:
        ledger.again |= {m: ledger.again.get(m, frozenset()) | {stage} for m in moved}
    _keep(ledger, stage, peer, keeps)
    if moved:
        ledger.ready.pop((stage, member), None)
    to: dict[PeerId, list[int]] = {}
    for microbatch in dict.fromkeys([*moved, *passing]):
        taker = min(able, key=lambda p: _load(ledger, stage, p))
        book = ledger.taken if microbatch in moved else ledger.helped
        book[stage, taker] = *book.get((stage, taker), ()), microbatch
        to.setdefault(taker, []).append(microbatch)
        _forget_helper(ledger, stage, microbatch, but=taker if microbatch not in moved else "")
    _rewrite(ledger, stage, {m: taker for taker, microbatches in to.items() for m in microbatches}, set(moved))
    facts = {"stage": stage, "peer": peer, "to": {taker: bitmap(ms) for taker, ms in to.items()}, "reason": reason}
    how = {"excluded": member in ledger.excluded, "moved": bitmap(moved), "amendment": ledger.amendment}
    return Note("rerouted", facts | how | {"step": ledger.step, "attempt": ledger.attempt})


def _keep(ledger: Ledger, stage: int, peer: PeerId, keeps: frozenset[int]) -> None:
    """The peer owns only these of the stage from now on."""
    hand, key = ledger.plan.hands.get((stage, peer), ()), (stage, peer)
    hands = {**ledger.plan.hands, key: tuple(m for m in hand if m in keeps)}
    ledger.plan = replace(ledger.plan, hands=hands)
    ledger.taken[key] = tuple(m for m in ledger.taken.get(key, ()) if m in keeps)
    ledger.helped.pop(key, None)


def _load(ledger: Ledger, stage: int, peer: PeerId) -> int:
    return len(ledger.owned(stage, peer)) + len(ledger.helped.get((stage, peer), ()))


def _forget_helper(ledger: Ledger, stage: int, microbatch: int, but: PeerId) -> None:
    """A microbatch that goes another way now needs no helper on its old one."""
    for (at, peer), helped in ledger.helped.items():
        if at == stage and peer != but and microbatch in helped:
            ledger.helped[at, peer] = tuple(m for m in helped if m != microbatch)


def _rewrite(ledger: Ledger, stage: int, takers: dict[int, PeerId], moved: set[int]) -> None:
    """Lead the microbatches through their takers, from the beginning; whoever owns more now is not ready any more."""
    plan = ledger.plan
    routes = tuple(
        _led(route, stage, takers[route.microbatch], ledger.amendment) if route.microbatch in takers else route
        for route in plan.routes
    )
    row = tuple(takers[m] if m in moved else owner for m, owner in enumerate(plan.owner[stage]))
    owner = tuple(row if s == stage else owners for s, owners in enumerate(plan.owner))
    ledger.plan = replace(plan, owner=owner, routes=routes, links=links_of(routes))
    more = {takers[m] for m in moved}
    for key in [key for key in ledger.ready if key[0] == stage and key[1].peer in more]:
        del ledger.ready[key]


def _led(route: Route, stage: int, peer: PeerId, amendment: int) -> Route:
    hops = tuple(Hop(stage, peer) if hop.stage == stage else hop for hop in route.hops)
    return Route(route.microbatch, hops, amendment)
