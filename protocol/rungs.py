"""How a stage came to the weights that it has: one vocabulary for provenance, events and metrics (docs/contract.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.ids import PeerId
from protocol.records import Commit, Rebuild, Record, Role, Rollback, Seating, is_older_copy

Rung = Literal["seed", "copy", "promotion", "handover", "parked", "returned", "older_copy", "shadow", "recovery", "checkpoint"]
"""`seed`: made from the manifest. `copy`: a newcomer's, of a living stage. The others are rungs of the recovery ladder."""
LADDER: tuple[Rung, ...] = ("promotion", "handover", "parked", "returned", "older_copy", "shadow", "recovery", "checkpoint")
"""Ways in which a stage that has lost, or would lose, its last holder goes on: a passive replica becomes active; the last
holder hands its exact state over and goes; it leaves it with somebody who keeps it until it can be computed; a holder that
was given up is back with the newest state, or with an older one; what another node kept of its weights; others' weights;
everybody goes back to what was saved."""


@dataclass(frozen=True, slots=True)
class Regain:
    """A stage goes on at `peer`."""

    rung: Rung
    peer: PeerId


def regained(record: Record, before: Sequence[Seating], step: int) -> dict[int, Regain]:
    """Stages that go on by what a record decides, after seats `before` and commit `step`; every member sees the same."""
    if isinstance(record, Commit):
        return {}
    if isinstance(record, Rebuild):
        made = [join.member.peer for join in record.joins if join.role == "active"]
        how: Rung = "shadow" if record.shadow else "older_copy" if is_older_copy(record) else "recovery"
        return {record.stage: Regain(how, made[0])} if made else {}
    if isinstance(record, Rollback):
        return {join.stage: Regain("checkpoint", join.member.peer) for join in record.joins}
    changed = {(s.stage, s.member) for s in (*record.leaves, *record.joins)}
    active = {s.stage for s in before if s.role == "active" and (s.stage, s.member) not in changed}
    roles = {(s.stage, s.member): s.role for s in before}
    found: dict[int, Regain] = {}
    for join in record.joins:
        kept = any((s.stage, s.role) == (join.stage, "parked") for s in before)
        rung = _rung(roles.get((join.stage, join.member)), join.stage in active, kept, step)
        if rung and join.role == "active":
            found.setdefault(join.stage, Regain(rung, join.member.peer))
    return found


def _rung(was: Role | None, others: bool, kept: bool, step: int) -> Rung | None:
    """Of a seat that becomes active. `others`: active ones stay there besides; `kept`: the stage was parked. At step 0 the
    weights are made from the seed."""
    if was == "learner" and not kept:
        return "handover"
    if others or was == "active":
        return None
    if kept:
        return "parked"
    if was == "passive":
        return "promotion"
    return "returned" if step else None
