"""Passive replicas that are there for the day on which a stage's last active one is lost: which the run keeps, and at whom.

Embedding copies: `recovery.embedding_copies` of stage 0 at the ends of the pipe. Policy `redundant` (Bamboo, NSDI 2023): each
stage at every replica of the stage before it, stage 0 at those of the last one. Who computes the stage itself holds no copy of
it: where that leaves nobody, as after a promotion, the stage before that one keeps the copy. Policy `shadow` with
`shadow_every` 1: each stage at one node half way round the pipe (`protocol.shadow_place`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protocol.chain import Chain
from protocol.ids import Member
from protocol.manifest import Manifest
from protocol.records import Seating


def wanted_copies(manifest: Manifest) -> int:
    """Passive replicas of stage 0 at the ends of the pipe."""
    return manifest.recovery.embedding_copies if manifest.recovery.policy != "none" else 0


def copy_candidates(rows: Sequence[Sequence[Member]]) -> list[Member]:
    """Who may hold a copy of the embedding stage, best first: one of S1, one of S_N, then inwards; none that holds stage 0.
    `rows[stage]`: members that hold the stage."""
    last = len(rows) - 1
    outward = [s for pair in zip(range(1, last + 1), range(last, 0, -1), strict=True) for s in pair]
    chosen: list[Member] = []
    for stage in outward:
        fresh = [m for m in rows[stage] if m not in rows[0] and m not in chosen]
        chosen += fresh[:1]
    return chosen


def hosts(stage: int, rows: Sequence[Sequence[Member]], half_way: bool = False) -> list[Member]:
    """Who holds the copies of a stage: those of the stage before it, or (`half_way`) one that is as far from it as can be.
    `rows[stage]`: members that compute the stage."""
    num = len(rows)
    ways = sorted(range(1, num), key=lambda back: (-min(back, num - back), -back)) if half_way else range(1, num)
    for back in ways:
        row = [m for m in rows[(stage - back) % num] if m not in rows[stage]]
        if row:
            return row[:1] if half_way else row
    return []


def first_copies(manifest: Manifest, rows: Sequence[Sequence[Member]]) -> list[Seating]:
    """Beside the first active ones, `rows[stage]`."""
    if manifest.copies_stages:
        found = {stage: hosts(stage, rows, manifest.has_exact_shadows) for stage in range(len(rows))}
        return [Seating(stage, member, "passive") for stage, members in found.items() for member in members]
    return [Seating(0, member, "passive") for member in copy_candidates(rows)[: wanted_copies(manifest)]]


def is_copy(seating: Seating, chain: Chain) -> bool:
    """Is it a copy on a node that serves another stage? Others are there to compute."""
    if seating.role in ("active", "parked"):
        return False
    if chain.manifest.copies_stages:
        return any(s.role == "active" for s in chain.seats_of(seating.member))
    return not seating.stage and any(s.stage for s in chain.seats_of(seating.member))


class Copies:
    """Looks at the chain. `going`: members that want to go, and count no more."""

    def __init__(self, manifest: Manifest, chain: Chain) -> None:
        self._manifest, self._chain = manifest, chain

    def missing(self, going: Collection[Member]) -> list[Seating]:
        """Learners that are to be copies, so many as are missing when those that go are gone."""
        if self._manifest.copies_stages:
            computed = [stage for stage in range(self._manifest.num_stages) if self._chain.active(stage)]
            return [self._learner(stage, m) for stage in computed for m in self._hosts(stage, going) if not self._has(stage, m)]
        have = [s for s in self._chain.seated(0) if is_copy(s, self._chain) and s.member not in going]
        missing = wanted_copies(self._manifest) - len(have)
        if missing <= 0 or not self._chain.active(0):
            return []
        stages = range(self._manifest.num_stages)
        rows = [[s.member for s in self._chain.holders(i) if s.member not in going] for i in stages]
        rows[0] = [s.member for s in self._chain.seated(0)]
        return [self._learner(0, member) for member in copy_candidates(rows)[:missing]]

    def _learner(self, stage: int, member: Member) -> Seating:
        return Seating(stage, member, "learner", self._chain.generations[stage])

    def _has(self, stage: int, member: Member) -> bool:
        return any(s.member == member for s in self._chain.seated(stage))

    def _hosts(self, stage: int, going: Collection[Member], besides: Collection[Seating] = ()) -> list[Member]:
        stages = range(self._manifest.num_stages)
        rows = [[s.member for s in self._chain.active(i) if s.member not in going and s not in besides] for i in stages]
        return hosts(stage, rows, self._manifest.has_exact_shadows)

    def stays(self, relieved: Seating) -> bool:
        """Is a copy to be kept by whoever computes the stage and need not any more?"""
        if self._manifest.copies_stages:
            return relieved.member in self._hosts(relieved.stage, (), (relieved,))
        copies = sum(is_copy(s, self._chain) for s in self._chain.seated(0))
        return relieved.stage == 0 and copies < wanted_copies(self._manifest)

    def needless(self, idle: Sequence[Seating], going: Collection[Member]) -> tuple[Seating, ...]:
        """Which of these seats, of members that compute other stages, are of no use: others compute their stages as well."""
        if self._manifest.copies_stages:
            return tuple(s for s in idle if not self._is_of_use(s, going))
        copies = sorted((s for s in idle if s.stage == 0 and s.member not in going), key=lambda s: s.role == "learner")
        return (*(s for s in idle if s.stage), *copies[wanted_copies(self._manifest) :])

    def _is_of_use(self, seating: Seating, going: Collection[Member]) -> bool:
        """As a copy, or until those that are to hold one have it."""
        wanted = self._hosts(seating.stage, going)
        if seating.member in wanted or seating.member in going:
            return True
        have = {s.member for s in self._chain.holders(seating.stage)}
        return seating.role == "passive" and not have.issuperset(wanted)

    def beside(self, mover: Seating) -> tuple[Seating, ...]:
        """Policy redundant: copies that are given up by whoever gives up this seat, for their stages' sake."""
        mine = self._chain.seats_of(mover.member) if self._manifest.copies_stages else ()
        return tuple(s for s in mine if s.role != "active")
