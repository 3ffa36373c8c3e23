"""What came of a blow to a swarm, by the event logs of those that live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tools.crowd import STEPS_LIMIT_S, Crowd
from tests.tools.swarm import wait_for

STEPS_AFTER = 3
MOST_VOIDED = 1
"""Attempts of a step that are lost for a kill, of one peer or of two at once."""


@dataclass(frozen=True)
class Struck:
    """`voided`: attempts that were lost, until the third step after it. `lost`: peers that were declared lost."""

    advance_s: float
    """Until the next step was committed."""
    voided: int
    lost: frozenset[str]
    reasons: tuple[str, ...]

    @classmethod
    def outcome(cls, crowd: Crowd, since: float) -> Struck:
        """Waits for three more steps. `since`: monotonic seconds, before the blow."""

        def after(*types: str) -> list[dict[str, Any]]:
            living = crowd.living()
            return [e for node in living for e in crowd.made.events(node, *types) if e["t"] >= since]

        wait_for(
            "steps go on",
            lambda: len({event["step"] for event in after("loss")}) >= STEPS_AFTER,
            STEPS_LIMIT_S,
            crowd.situation,
        )
        voided = {(*event["ballot"], event["step"], event["attempt"]): event["reason"] for event in after("voided")}
        return cls(
            advance_s=min(event["t"] for event in after("loss")) - since,
            voided=len(voided),
            lost=frozenset(event["peer"] for event in after("lost")),
            reasons=tuple(voided.values()),
        )
