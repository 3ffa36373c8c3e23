"""A node's part in policy `shadow`: what it keeps of others' stages, and what it says of it once one of them is lost.

A shadow is kept as long as the roster has this node as its keeper. When its stage has no holder any more it is sealed, which
nothing but the stage's return ends: the coordinator hears of it until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.chain import Chain
from protocol.commands import Command, DropShadow, KeepShadow, Note, SealShadow
from protocol.events import ShadowSealed
from protocol.ids import Ballot, PeerId
from protocol.manifest import Manifest
from protocol.messages import Message
from protocol.records import Seating, Shadow
from protocol.restoring import Shadowed
from protocol.shadow_place import keepers


@dataclass(slots=True)
class Kept:
    """Of one stage."""

    generation: int
    is_sealed: bool = False
    is_known: bool = False
    """Is it known what was sealed?"""
    shadow: Shadow | None = None
    taken_over: tuple[int, int] = (-1, -1)
    """(generation, step) of the newest Rebuild of the stage that restores it of just this."""


class Shadows:
    """See the module. `emit` takes the commands that follow, `tell` what the coordinator is told."""

    def __init__(
        self,
        manifest: Manifest,
        me: PeerId,
        chain: Chain,
        emit: Callable[[Command], None],
        tell: Callable[[Message], None],
    ) -> None:
        self._me, self._chain, self._emit, self._tell = me, chain, emit, tell
        self._is_on = manifest.keeps_shadows
        self._seatings: list[Seating] | None = None
        self._mine: tuple[int, ...] = ()
        self.kept: dict[int, Kept] = {}

    def look(self) -> None:
        """Something was decided: begin, seal, go on or stop."""
        if not self._is_on:
            return
        if self._chain.seatings is not self._seatings:
            self._seatings = self._chain.seatings
            self._mine = tuple(sorted(s for s, member in keepers(self._chain).items() if member.peer == self._me))
        for stage, kept in tuple(self.kept.items()):
            if self._is_lost(stage):
                self._seal(stage, kept)
            elif stage not in self._mine:
                self._drop(stage)
        for stage in self._mine:
            if not self._is_lost(stage):
                self._keep(stage)

    def _is_lost(self, stage: int) -> bool:
        return not self._chain.holders(stage) or stage in self._chain.rebuilds

    def _keep(self, stage: int) -> None:
        kept, generation = self.kept.get(stage), self._chain.generations[stage]
        if kept and not kept.is_sealed and kept.generation == generation:
            return
        step = kept.taken_over[1] if kept and kept.taken_over[0] == generation else -1
        self.kept[stage] = Kept(generation)
        self._emit(KeepShadow(stage, generation, step))

    def _seal(self, stage: int, kept: Kept) -> None:
        if not kept.is_sealed:
            kept.is_sealed = True
            self._emit(SealShadow(stage))
        rebuild = self._chain.rebuilds.get(stage)
        if rebuild and rebuild.shadow and rebuild.shadow == kept.shadow:
            kept.taken_over = rebuild.generation, rebuild.step

    def _drop(self, stage: int) -> None:
        del self.kept[stage]
        self._emit(DropShadow(stage))

    def leave(self) -> None:
        """Another lineage is joined."""
        for stage in tuple(self.kept):
            self._drop(stage)
        self._seatings, self._mine = None, ()

    def sealed(self, event: ShadowSealed, ballot: Ballot) -> None:
        """It is known what is kept of a lost stage."""
        kept = self.kept.get(event.stage)
        if kept and kept.is_sealed:
            kept.is_known, kept.shadow = True, event.shadow
            facts = {"stage": event.stage, "step": self._chain.step, "whole": event.shadow is not None}
            self._emit(Note("shadow_sealed", facts | told_of(event.shadow)))
            self.report(ballot)

    def report(self, ballot: Ballot) -> None:
        """Tell the coordinator, which may be another one by now (again)."""
        known = {stage: kept.shadow for stage, kept in self.kept.items() if kept.is_sealed and kept.is_known}
        nothing = [stage for stage in self._mine if stage not in self.kept and self._is_lost(stage)]
        told = dict.fromkeys(nothing) | known
        for stage in sorted(told):
            self._tell(Shadowed(ballot, stage, self._chain.step, told[stage]))


def told_of(shadow: Shadow | None) -> dict[str, object]:
    """For events and provenance."""
    if shadow is None:
        return {}
    return {"keeper": shadow.keeper.peer, "oldest_step": shadow.oldest, "newest_step": shadow.newest, "digest": shadow.digest}
