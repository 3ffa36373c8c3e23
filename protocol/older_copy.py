"""Rung 3 of the recovery ladder: a stage that nobody holds any more goes on from an older, exact state of its own.

Whoever is taken off the roster keeps the state that it had, as long as it has no other seat and the state is not too old: a
replica that was frozen or cut off while its siblings went on. If they are lost before it is seated again, its state, moments
included, is worth far more than an average of other stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.chain import Chain
from protocol.ids import Member, StateId
from protocol.records import Source


def age_of(chain: Chain, stage: int, state_id: StateId) -> int | None:
    """How many steps ago the state was the stage's newest; 0 = it is. None: not known here."""
    if state_id == chain.state_ids[stage]:
        return 0
    for past in reversed(chain.past):
        if past.parents[stage] == state_id:
            return chain.step - past.commit.step + 1
    return None


@dataclass(frozen=True, slots=True)
class Offer:
    """The member says that it kept this state of a stage. `pinned`: it asked for the stage."""

    member: Member
    state_id: StateId
    pinned: bool


def youngest(chain: Chain, stage: int, offers: Iterable[Offer], stale_max_steps: int) -> tuple[Offer, Source, int] | None:
    """(who, its state, how many steps old) of the youngest one that is offered; None: there is none. What the stage never was
    is no copy of it, however young: another lineage may have trained it."""
    found: list[tuple[int, Offer]] = []
    for offer in offers:
        age = age_of(chain, stage, offer.state_id)
        if age and age <= stale_max_steps:
            found.append((age, offer))
    if not found:
        return None
    age, offer = min(found, key=lambda row: (row[0], row[1].member))
    return offer, Source(stage, offer.state_id, 1.0), age
