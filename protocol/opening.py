"""What each member is told of a step: its work, its neighbours, and whom to watch; nobody gets the whole roster."""

from __future__ import annotations

from protocol.assignment import MAX_WATCHED_NEIGHBOURS, ring
from protocol.chain import Chain
from protocol.ids import Member, PeerId
from protocol.ledger import Ledger, contacts_of
from protocol.messages import OpenStep, SeatWork
from protocol.revoking import Again


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
        )
        for s in seats
    )
    neighbours, around = plan.neighbours(peer), ring(chain.members(), member)
    watch = tuple(dict.fromkeys([*around, *neighbours[:MAX_WATCHED_NEIGHBOURS]]))
    contacts = contacts_of(list(dict.fromkeys([*neighbours, *around])), addresses)
    routes = plan.routes_from(peer)
    lost = {r.microbatch: ledger.again[r.microbatch] for r in routes if r.microbatch in ledger.again}
    again = tuple(Again(m, tuple(sorted(stages))) for m, stages in lost.items())
    without, number = tuple(ledger.without), ledger.amendment
    attempt = ledger.ballot, ledger.step, ledger.attempt, ledger.parent
    return OpenStep(*attempt, work, routes, contacts, watch, number, again, without)
