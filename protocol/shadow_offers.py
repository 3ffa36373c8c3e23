"""What the coordinator knows of the shadows of lost stages, and for whose word it waits."""

from __future__ import annotations

from collections.abc import Collection

from protocol.chain import Chain
from protocol.ids import Member
from protocol.manifest import Manifest
from protocol.records import Shadow
from protocol.restoring import Shadowed
from protocol.shadow_ledger import shadow_misfit
from protocol.shadow_place import keeper_of
from protocol.view import View

ANSWER_HEARTBEATS = 2.0
"""Beyond a lapse, a keeper has so much time to say what it has."""


class ShadowOffers:
    """Keeps what was said of stages that are lost."""

    def __init__(self, manifest: Manifest, chain: Chain, view: View) -> None:
        self._manifest, self._chain, self._view = manifest, chain, view
        self._told: dict[int, dict[Member, Shadow | None]] = {}
        timing = manifest.timing
        self._answer_s = timing.lapse_s + ANSWER_HEARTBEATS * timing.heartbeat_s

    def look(self, hollow: Collection[int]) -> None:
        """Others are not lost (any more)."""
        self._told = {stage: told for stage, told in self._told.items() if stage in hollow}

    def on_shadowed(self, member: Member, message: Shadowed) -> None:
        """A member says what it keeps: of itself, and of this moment of the chain."""
        shadow, known = message.shadow, 0 <= message.stage < self._manifest.num_stages
        if not self._manifest.keeps_shadows or not known or message.step != self._chain.step:
            return
        if shadow is None or shadow.keeper == member:
            self._told.setdefault(message.stage, {})[member] = message.shadow

    def best(self, stage: int, now: float) -> Shadow | None:
        """Of those that live, are believed, and are kept by others than who is seated there: with the youngest oldest chunk."""
        step, every = self._chain.step, self._manifest.recovery.shadow_every
        found = [
            shadow
            for member, shadow in self._told.get(stage, {}).items()
            if shadow and self._is_there(member, now) and not shadow_misfit(shadow, step, every)
        ]
        return max(found, key=lambda shadow: (shadow.oldest, shadow.keeper), default=None)

    def still(self, stage: int, shadow: Shadow, now: float) -> bool:
        """Is it what its keeper has, as far as is known?"""
        told = self._told.get(stage, {})
        return self._is_there(shadow.keeper, now) and told.get(shadow.keeper, shadow) == shadow

    def awaited(self, stage: int, waited_s: float, now: float) -> Member | None:
        """Who is to keep it, lives, and has not said yet what it has."""
        if not self._manifest.keeps_shadows or waited_s >= self._answer_s:
            return None
        keeper = keeper_of(stage, self._chain)
        if keeper is None or keeper in self._told.get(stage, {}) or not self._is_there(keeper, now):
            return None
        return keeper

    def _is_there(self, member: Member, now: float) -> bool:
        return self._chain.is_seated(member) and not self._view.lapsed(member.peer, now)
