"""The coordinator's book of one evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import PeerId, RecordId
from protocol.messages import Evaluated


@dataclass(slots=True)
class Poll:
    """Held-out losses at the parent record's weights; each microbatch counts once, from the peer that was asked for it."""

    parent: RecordId
    owners: tuple[PeerId, ...]
    """Who was asked, by microbatch."""
    tokens_per_microbatch: int
    deadline: float
    losses: dict[int, float] = field(default_factory=dict)

    def enter(self, peer: PeerId, result: Evaluated) -> None:
        """Take in a result that was asked for."""
        asked = result.parent == self.parent and 0 <= result.microbatch < len(self.owners)
        if asked and self.owners[result.microbatch] == peer and result.tokens == self.tokens_per_microbatch:
            self.losses.setdefault(result.microbatch, result.loss_sum)

    @property
    def complete(self) -> bool:
        """All results are here."""
        return len(self.losses) == len(self.owners)

    def mean(self) -> float:
        """Loss per token."""
        return sum(self.losses[m] for m in sorted(self.losses)) / (len(self.owners) * self.tokens_per_microbatch)
