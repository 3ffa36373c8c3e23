"""The coordinator's evaluations: when one is due, who is asked, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.assignment import make_plan
from protocol.chain import Chain
from protocol.commands import Command, Note, SendMessage
from protocol.ids import Ballot, PeerId, RecordId
from protocol.ledger import contacts_of
from protocol.manifest import Manifest
from protocol.messages import Evaluated, OpenEvaluation


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


class Polls:
    """One at a time, between two steps. `polled_step`: the last one after which there was one."""

    def __init__(self, manifest: Manifest, chain: Chain) -> None:
        self.polled_step = 0
        self.open: Poll | None = None
        self._manifest, self._chain = manifest, chain

    def is_due(self) -> bool:
        """Is there to be one before the next step?"""
        step, every = self._chain.step, self._manifest.evaluation.every_steps
        if not every or not self._manifest.data.validation or step == 0 or step == self.polled_step:
            return False
        return (step % every == 0 or step >= self._manifest.last_step) and not self._chain.empty_stages()

    def begin(self, ballot: Ballot, addresses: dict[PeerId, str], now: float) -> list[Command]:
        """Ask the stage-0 replicas."""
        chain, wanted = self._chain, self._manifest.evaluation.num_microbatches
        self.polled_step = chain.step
        active = [[s.member.peer for s in chain.active(stage)] for stage in range(self._manifest.num_stages)]
        plan = make_plan(wanted, active, swapped=False)
        deadline = now + self._manifest.timing.first_microbatch_s
        self.open = Poll(chain.head, plan.owner[0], self._manifest.batch.tokens_per_microbatch, deadline)
        out: list[Command] = []
        for peer in dict.fromkeys(plan.owner[0]):
            contacts = contacts_of(plan.neighbours(peer), addresses)
            asked = OpenEvaluation(ballot, chain.head, chain.step, plan.routes_from(peer), contacts)
            out.append(SendMessage(peer, asked))
        return out

    def close(self, now: float) -> tuple[float | None, list[Command]]:
        """(loss per token, notes) if the open one can be closed now."""
        poll = self.open
        if poll and poll.complete:
            self.open = None
            return poll.mean(), [Note("validation", {"step": self._chain.step, "value": poll.mean()})]
        if poll and (now >= poll.deadline or self._chain.empty_stages()):
            return None, self.skip("not all results came in time")
        return None, []

    def skip(self, reason: str) -> list[Command]:
        """Give up the open one, if there is one."""
        if self.open is None:
            return []
        self.open = None
        return [Note("evaluation_skipped", {"step": self._chain.step, "reason": reason})]
