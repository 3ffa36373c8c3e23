"""What each member is told of a step: its work, its neighbours, and whom to watch; nobody gets the whole roster."""

from __future__ import annotations

from protocol.assignment import MAX_WATCHED_NEIGHBOURS
from protocol.chain import Chain
from protocol.ids import Member, PeerId, bitmap
from protocol.ledger import Led, Ledger, contacts_of
from protocol.messages import OpenStep, SeatWork
from protocol.revoking import Detour


def opening(member: Member, ledger: Ledger, chain: Chain, addresses: dict[PeerId, str]) -> OpenStep:
    """The member's part of the attempt."""
    peer, plan = member.peer, ledger.plan
    seats = ledger.by_member().get(member, [])
    hands = {s.stage: plan.hands.get((s.stage, peer), ()) for s in seats if s.role == "active"}
    taken, helped = ledger.taken, ledger.helped
    work = tuple(
        SeatWork(
            s.stage,
            s.role,
            s.generation,
            hands.get(s.stage, ()),
            taken.get((s.stage, peer), ()),
            helped.get((s.stage, peer), ()),
            ledger.sum_numbers.get(s.stage, 0),
        )
        for s in seats
    )
    neighbours, around = plan.neighbours(peer), chain.around(peer)
    watch = tuple(dict.fromkeys([*around, *neighbours[:MAX_WATCHED_NEIGHBOURS]]))
    contacts = contacts_of(list(dict.fromkeys([*neighbours, *around])), addresses)
    without, number = tuple(ledger.without), ledger.amendment
    attempt = ledger.ballot, ledger.step, ledger.attempt, ledger.parent
    return OpenStep(*attempt, work, plan.routes_from(peer), contacts, watch, number, without, _detours(peer, ledger))


def _detours(peer: PeerId, ledger: Ledger) -> tuple[Detour, ...]:
    """Those of microbatches that pass the peer right before or after."""
    found: dict[tuple[int, Led], list[int]] = {}
    for (stage, microbatch), led in sorted(ledger.led.items()):
        hops = ledger.plan.routes[microbatch].hops
        at = next(place for place, hop in enumerate(hops) if hop.stage == stage)
        if peer in (hops[at - 1].peer, hops[at + 1].peer):
            found.setdefault((stage, led[-1]), []).append(microbatch)
    return tuple(Detour(stage, led.peer, led.amendment, led.whole, bitmap(ms)) for (stage, led), ms in found.items())
