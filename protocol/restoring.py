"""What is said about what is left of lost stages: saved ones that cannot be read back, shadows."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Ballot, StateId
from protocol.records import Shadow


@dataclass(frozen=True, slots=True)
class Unrestored:
    """From the seat of a stage to the coordinator: what was saved as that state is not there, or is damaged."""

    ballot: Ballot
    stage: int
    state_id: StateId
    reason: str


@dataclass(frozen=True, slots=True)
class Shadowed:
    """From who keeps the shadow of a stage that nobody holds to the coordinator: what it is (None: nothing whole)."""

    ballot: Ballot
    stage: int
    step: int
    """Last committed one: while a stage is lost there is no other."""
    shadow: Shadow | None


Restoring = Unrestored | Shadowed
