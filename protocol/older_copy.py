"""Rung 3 of the recovery ladder: a stage that nobody holds any more goes on from an older, exact state of its own.

Whoever is taken off the roster keeps the state that it had, as long as it has no other seat and the state is not too old: a
replica that was frozen or cut off while its siblings went on. If they are lost before it is seated again, its state, moments
included, is worth far more than an average of other stages.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.chain import Chain
from protocol.ids import StateId
from protocol.messages import Kept, Wish
from protocol.records import Source


def age_of(chain: Chain, stage: int, state_id: StateId) -> int | None:
    """How many steps ago the state was the stage's newest; 0 = it is. None: not known here."""
    if state_id == chain.state_ids[stage]:
        return 0
    for past in reversed(chain.past):
        if past.parents[stage] == state_id:
            return chain.step - past.commit.step + 1
    return None


def youngest(chain: Chain, stage: int, wishes: Iterable[Wish], stale_max_steps: int) -> tuple[Wish, Source, int] | None:
    """(who, its state, how many steps old) of the youngest one that a node without a seat offers; None: there is none."""
    seated = {member.peer for member in chain.members()}
    found: list[tuple[int, Wish, Kept]] = []
    for wish in wishes:
        for kept in wish.kept if wish.member.peer not in seated else ():
            age = age_of(chain, stage, kept.state_id) if kept.stage == stage else None
            if age and age <= stale_max_steps:
                found.append((age, wish, kept))
    if not found:
        return None
    age, wish, kept = min(found, key=lambda row: (row[0], row[1].member))
    return wish, Source(stage, kept.state_id, 1.0), age
