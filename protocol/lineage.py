"""What coordinators of two lineages of a run say to each other when they meet (`protocol.meeting` decides)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocol.ids import Ballot, Member, RecordId


@dataclass(frozen=True, slots=True)
class Meeting:
    """One coordinator of the run to another: here my lineage stands; I would give mine up for yours; come."""

    word: Literal["stands", "offers", "accepts"]
    ballot: Ballot
    lineage: RecordId
    step: int
    covers: bool
    """Somebody who was just heard, and who follows this ballot, holds every stage."""
    voters: tuple[Member, ...]
    lossy_forks: int = 0
    """How many Rosters on its chain forked and left a stage without a holder."""
    epoch: int = 0
    """How often its run has gone back: steps are compared within an epoch."""
