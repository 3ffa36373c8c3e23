"""Who is heard on what: the fence between what peers say and the facts that the coordinator acts on."""

from __future__ import annotations

import math

from protocol.chain import Chain
from protocol.coordinator import Coordinator
from protocol.ids import Member
from protocol.messages import (
    AppliedReport,
    Evaluated,
    Held,
    Learning,
    Leave,
    Message,
    RecordsWanted,
    ReducedReport,
    ReduceReady,
    Stalled,
    Suspect,
    Wish,
)
from protocol.restoring import Shadowed, Unrestored
from protocol.revoking import Revoked

TO_COORDINATOR = (
    Wish,
    Leave,
    Learning,
    Unrestored,
    Shadowed,
    Suspect,
    RecordsWanted,
    ReduceReady,
    ReducedReport,
    AppliedReport,
    Revoked,
    Stalled,
    Held,
    Evaluated,
)
"""What is said to the coordinator."""
OnStep = ReduceReady | ReducedReport | Revoked | Stalled | Evaluated


def hear(coordinator: Coordinator, chain: Chain, member: Member, message: Message, now: float) -> None:
    """Let the coordinator know. Only members on the roster, in the incarnation that is on it, are heard on a step; voters on a
    record; everybody on what concerns only themselves."""
    if isinstance(message, Wish):
        if message.member == member:
            coordinator.on_wish(message, now)
    elif isinstance(message, RecordsWanted):
        coordinator.on_records_wanted(member, message.head, now)
    elif isinstance(message, Held):
        if member in chain.voters:
            coordinator.on_held(member, message)
    elif chain.member_of(member.peer) == member:
        _hear_member(coordinator, chain, member, message, now)


def _hear_member(coordinator: Coordinator, chain: Chain, member: Member, message: Message, now: float) -> None:
    if isinstance(message, Suspect):
        coordinator.on_suspect(member.peer, message, now)
    elif isinstance(message, Leave):
        if message.member == member:
            coordinator.on_leave(member, message, now)
    elif isinstance(message, Learning):
        if chain.has_kept(member, message.stage, message.head):
            coordinator.on_learning(member, message, now)
    elif isinstance(message, Unrestored):
        coordinator.recovery.rollbacks.on_unrestored(message)
    elif isinstance(message, Shadowed):
        coordinator.recovery.shadows.on_shadowed(member, message)
    elif isinstance(message, AppliedReport):
        coordinator.on_applied(member, message, now)
    elif isinstance(message, OnStep) and message.ballot == coordinator.ballot:
        _hear_on_step(coordinator, member, message, now)


def _hear_on_step(coordinator: Coordinator, member: Member, message: OnStep, now: float) -> None:
    """Who was excluded from the attempt may not know it yet, and is not heard on it."""
    if isinstance(message, Evaluated):
        if math.isfinite(message.loss_sum):
            coordinator.on_evaluated(member.peer, message)
        return
    ledger = coordinator.attempt(message.step, message.attempt)
    if ledger is None or member in ledger.excluded:
        return
    if isinstance(message, ReduceReady):
        coordinator.on_ready(ledger, member, message, now)
    elif isinstance(message, ReducedReport):
        coordinator.on_reduced(ledger, member, message, now)
    elif isinstance(message, Revoked):
        coordinator.on_revoked(ledger, member, message, now)
    else:
        coordinator.on_stalled(ledger, member, message, now)
