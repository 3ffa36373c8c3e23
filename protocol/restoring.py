"""What is said about saved stages that cannot be read back."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Ballot, StateId


@dataclass(frozen=True, slots=True)
class Unrestored:
    """From the seat of a stage to the coordinator: what was saved as that state is not there, or is damaged."""

    ballot: Ballot
    stage: int
    state_id: StateId
    reason: str
