"""A learner's book of the ranges of a stage: of which state each is, and what is to be done next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from node.ports import StateFacts
from protocol.ids import PeerId, StateId
from protocol.replays import Replay

STATE_BYTES = 12
"""Of an element: weight and two moments."""
GRADIENT_BYTES = WEIGHT_BYTES = 4
MAX_REPLAYS = 2
"""Updates done again rather than fetching the range anew: donors keep as many gradients, and three cost as much as a state."""
MAX_TAKERS = 3
COPY_ELEMENTS = 1 << 18
"""Of a range, 3 MiB: little is lost with one that comes too late, and a request is still worth its way."""

Piece = Callable[[int, int], int]
"""(stage, elements of a piece of it in earnest) -> how many there are in one here: fewer where a small stage stands for a large
one, so that it comes in as many pieces as that would."""


def in_earnest(_stage: int, num_elements: int) -> int:
    """A stage stands for itself."""
    return num_elements


Lead = Callable[[StateFacts], tuple[Replay, ...] | None]
"""Updates from this state to the newest one; None where none are known (see `protocol.replays`)."""
Rank = Callable[[int], int]
"""Of the range that begins with this element: of those to be fetched the lowest comes first."""


def as_it_comes(_first: int) -> int:
    """In the order of the elements."""
    return 0


@dataclass(slots=True)
class Part:
    """A range: of which state it is here (None: nothing is here yet), and who is at it. Changed by `RangeBook` alone."""

    first: int
    count: int
    facts: StateFacts | None = None
    version: int = 0
    """Grows with every change: what was fetched for an older version is late."""
    takers: list[PeerId] = field(default_factory=list)
    taken_at: float = 0.0
    unknown_since: float | None = None
    missing_since: float | None = None
    """Since when no donor had the gradient that leads on."""
    anew: bool = False
    """To be fetched, whatever is here."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Fetch the range of this version from `peer`: its state, or the gradient of one update (`replay`) that brings it forward.
    `num_bytes`: how much must come."""

    part: Part
    version: int
    replay: Replay | None
    num_bytes: int
    peer: PeerId


class RangeBook:
    """`patience_s`: how long something may be missing or unknown before the range is fetched anew. `state_bytes`: of an
    element that is fetched."""

    def __init__(
        self,
        num_elements: int,
        patience_s: float,
        range_elements: int = COPY_ELEMENTS,
        state_bytes: int = STATE_BYTES,
    ) -> None:
        firsts = range(0, num_elements, range_elements)
        self.parts = [Part(first, min(range_elements, num_elements - first)) for first in firsts]
        self._patience_s, self._state_bytes = patience_s, state_bytes

    def take(self, lead: Lead, now: float, steal_after_s: float, peer: PeerId, rank: Rank = as_it_comes) -> Errand | None:
        """The most urgent errand for this donor. Ranges one or two updates behind come first, the stalest in front, as their
        gradients are not kept for long; then those that must be fetched, by `rank`. Where nothing else is left, one that
        somebody else has been at for `steal_after_s` already."""
        errands = [errand for part in self.parts if (errand := self._errand(part, lead, now, peer))]
        free = [errand for errand in errands if not errand.part.takers]
        late = [e for e in errands if self._is_late_at_others(e.part, peer) and now - e.part.taken_at >= steal_after_s]
        urgency = partial(_urgency, rank)
        chosen = min(free, key=urgency, default=None) or min(late, key=lambda e: e.part.taken_at, default=None)
        if chosen:
            chosen.part.takers.append(peer)
            chosen.part.taken_at = now
        return chosen

    @staticmethod
    def _is_late_at_others(part: Part, peer: PeerId) -> bool:
        return 0 < len(part.takers) < MAX_TAKERS and peer not in part.takers

    def _errand(self, part: Part, lead: Lead, now: float, peer: PeerId) -> Errand | None:
        anew = Errand(part, part.version, None, self._state_bytes * part.count, peer)
        if part.facts is None or part.anew:
            return anew
        replays = lead(part.facts)
        if replays is None:
            part.unknown_since = now if part.unknown_since is None else part.unknown_since
            return anew if now - part.unknown_since >= self._patience_s else None
        part.unknown_since = None
        if not replays:
            return None
        if len(replays) > MAX_REPLAYS:
            return anew
        return replace(anew, replay=replays[0], num_bytes=GRADIENT_BYTES * part.count)

    def give_back(self, errand: Errand) -> None:
        """Its donor is at it no more, whatever became of it."""
        errand.part.takers.remove(errand.peer)

    def is_late(self, errand: Errand) -> bool:
        """Somebody else was faster."""
        return errand.part.version != errand.version

    def settle(self, errand: Errand, facts: StateFacts) -> None:
        """The range is of this state here now: fetched, or brought forward by the errand's update."""
        part, replay = errand.part, errand.replay
        if replay and part.facts:
            facts = replace(
                part.facts,
                state_id=replay.state_id,
                step=replay.step,
                optimizer_age=part.facts.optimizer_age + 1,
                lr_factor=replay.lr_factor,
            )
        part.facts = replace(facts, digest="")
        part.version += 1
        part.unknown_since = part.missing_since = None
        part.anew = False

    def miss(self, errand: Errand, lead: Lead, now: float) -> None:
        """A donor does not hold the gradient. It may not have done the newest update yet; one that is older, or that none has
        for long, is not to be had any more."""
        part = errand.part
        replays = lead(part.facts) if part.facts and not self.is_late(errand) else None
        if replays:
            part.missing_since = now if part.missing_since is None else part.missing_since
            part.anew = len(replays) > 1 or now - part.missing_since >= self._patience_s

    def clear(self) -> None:
        """Nothing that is here counts any more."""
        for part in self.parts:
            part.facts, part.anew = None, False
            part.version += 1

    def states(self) -> set[StateFacts | None]:
        """Of which states the ranges are (without digests)."""
        return {part.facts for part in self.parts}

    def is_of(self, state_id: StateId) -> bool:
        """Is every range of this state?"""
        return all(part.facts and part.facts.state_id == state_id for part in self.parts)

    def bytes_needed(self, lead: Lead) -> int:
        """What must still come until all is of the newest state, if no update is added meanwhile."""
        return sum(part.count * self._bytes_per_element(part, lead) for part in self.parts)

    def _bytes_per_element(self, part: Part, lead: Lead) -> int:
        replays = None if part.facts is None or part.anew else lead(part.facts)
        return self._state_bytes if replays is None or len(replays) > MAX_REPLAYS else GRADIENT_BYTES * len(replays)


def _urgency(rank: Rank, errand: Errand) -> tuple[bool, int]:
    if errand.replay is None:
        return True, rank(errand.part.first)
    return False, errand.part.facts.step if errand.part.facts else 0
