"""Exact reroute: inside an open attempt, the work of a replica that cannot be reached goes to others of its stage.

Each (stage, microbatch) has one owner, in whose gradient it counts. It changes hands in two ways only. `relieve`: the replica
lives and has said what it has accumulated (`Revoke` -> `Revoked`); it keeps that, and others get the rest. `exclude`: it does
not answer, or is lost; it is off the attempt's roster with all its seats, and others compute again what it had accumulated. No
other stage computes anything again: those before and after it on a microbatch's way send the other what they had sent to it. A
sum that has begun begins anew without it, unless all others have the whole of it: then what it brought counts. What this module
changes is the ledger; `opening` tells everybody, as an amendment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from protocol.assignment import links_of
from protocol.commands import Note, SendMessage
from protocol.ids import Member, PeerId, bitmap, members_of
from protocol.ledger import Doubt, Led, Ledger
from protocol.messages import Hop, Route, Stalled
from protocol.revoking import Revoke, Revoked

MAX_AMENDMENTS = 64
"""Of one attempt; then it is voided."""
ANSWER_HEARTBEATS = 2.0
"""A replica that lives says within so many what it has accumulated."""


def why_needed(ledger: Ledger, member: Member) -> str:
    """'' if the attempt can go on around the member, else why not."""
    if ledger.amendment >= MAX_AMENDMENTS:
        return f"work was given to others {ledger.amendment} times"
    active = _active_stages(ledger, member)
    if ledger.nothing_moves and all(ledger.is_summed_without(stage, member) for stage in active):
        return ""
    if 0 in active:
        return "it admits microbatches"
    lacking = [stage for stage in active if not _can_take_over(ledger, stage, member)]
    return f"nobody else can compute stage {lacking[0]}" if lacking else ""


def _can_take_over(ledger: Ledger, stage: int, member: Member) -> bool:
    """Is there somebody for each microbatch that has to be computed once more, and is what it has to be computed of?"""
    able, excluded = _able(ledger, stage, member), {m.peer for m in ledger.excluded}
    own = () if ledger.is_summed_without(stage, member) else ledger.owned(stage, member.peer)
    for microbatch in {*own, *ledger.plan.passing(stage, member.peer)}:
        if ledger.plan.routes[microbatch].hops[0].peer in excluded:
            return False
        if all(peer in ledger.led_before(stage, microbatch) for peer in able):
            return False
    return bool(able)


def _able(ledger: Ledger, stage: int, but: Member) -> list[PeerId]:
    """Active replicas of the stage that can be given work, in roster order."""
    row = [s.member for s in ledger.seats[stage] if s.role == "active" and s.member != but]
    return [m.peer for m in row if m.peer not in ledger.without and m not in ledger.doubts]


def is_seated(ledger: Ledger, member: Member) -> bool:
    """Has the member a part in the attempt?"""
    return member in ledger.by_member()


# ---- doubts ----


def doubt(
    ledger: Ledger,
    member: Member,
    reason: str,
    now: float,
    patience_s: float = 0.0,
    about: tuple[Member, Stalled] | None = None,
) -> list[SendMessage]:
    """Ask the member what it has accumulated. `about`: who waits for its part of a sum."""
    ledger.doubts[member] = Doubt(now + patience_s, now, reason, about)
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
        if not _can_take_over(ledger, stage, member):
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
    active = _active_stages(ledger, member)
    counts = [stage for stage in active if ledger.is_summed_without(stage, member)]
    kept = {stage: frozenset(ledger.owned(stage, member.peer) if stage in counts else ()) for stage in active}
    notes: list[Note] = []
    if ledger.nothing_moves and len(counts) == len(active):
        ledger.without[member.peer] = None  # what is left of the step needs nothing of it, and nobody need be told
    else:
        notes = _amend(ledger, member, kept, reason)
    ledger.seats = [[s for s in row if s.member != member] for row in ledger.seats]
    for stage in active:
        if stage in ledger.started and stage not in counts:
            ledger.sum_anew(stage)
    return notes


def _active_stages(ledger: Ledger, member: Member) -> list[int]:
    return [stage for stage, row in enumerate(ledger.seats) if any(s.member == member and s.role == "active" for s in row)]


def _amend(ledger: Ledger, member: Member, kept: dict[int, frozenset[int]], reason: str) -> list[Note]:
    ledger.amendment += 1
    ledger.without[member.peer] = None
    notes = [_lead_around(ledger, member, stage, keeps, reason) for stage, keeps in kept.items() if stage]
    for (stage, microbatch), led in list(ledger.led.items()):
        if led[-1].whole:
            _need_input(ledger, stage, microbatch)
    return notes


def _lead_around(ledger: Ledger, member: Member, stage: int, keeps: frozenset[int], reason: str) -> Note:
    peer = member.peer
    moved = [m for m in ledger.owned(stage, peer) if m not in keeps]
    passing = list(ledger.plan.passing(stage, peer))
    _keep(ledger, stage, peer, keeps)
    if moved:
        ledger.ready.pop((stage, member), None)
    to: dict[PeerId, list[int]] = {}
    for microbatch in dict.fromkeys([*moved, *passing]):
        able = [p for p in _able(ledger, stage, member) if p not in ledger.led_before(stage, microbatch)]
        taker = min(able, key=lambda p: _load(ledger, stage, p))
        owned = microbatch in moved
        book = ledger.taken if owned else ledger.helped
        book[stage, taker] = *book.get((stage, taker), ()), microbatch
        to.setdefault(taker, []).append(microbatch)
        ledger.led.setdefault((stage, microbatch), []).append(Led(taker, ledger.amendment, owned))
        _forget_helper(ledger, stage, microbatch, but=taker if not owned else "")
    _rewrite(ledger, stage, {m: taker for taker, microbatches in to.items() for m in microbatches}, set(moved))
    facts = {"stage": stage, "peer": peer, "to": {taker: bitmap(ms) for taker, ms in to.items()}, "reason": reason}
    how = {"excluded": member in ledger.excluded, "moved": bitmap(moved), "amendment": ledger.amendment}
    return Note("rerouted", facts | how | {"step": ledger.step, "attempt": ledger.attempt})


def _need_input(ledger: Ledger, stage: int, microbatch: int) -> None:
    """Whoever passes the microbatch right before the stage may be a helper that had nothing to do with it yet: it computes it
    now, and so on towards the tokens."""
    stages = [hop.stage for hop in ledger.plan.routes[microbatch].hops]
    for before in reversed(stages[1 : stages.index(stage)]):
        led = ledger.led.get((before, microbatch), [])
        if not led or led[-1].whole:
            return
        led.append(Led(led[-1].peer, ledger.amendment, True))


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
    """Lead the microbatches through their takers; whoever owns more now is not ready any more."""
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
