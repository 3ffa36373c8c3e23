"""Simulated shadows: who keeps one looks again and again at whoever holds the stage, one of a few chunks at a time.

The ledger is the real one; hashes stand for what is in the chunks. Fetching is slow at times, so that some shadows are not
whole, or span too many steps, when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from node.sim.machine import SimSeat, require
from node.sim.nodes import SimNode
from node.sim.surroundings import Surroundings
from protocol.chain import Chain
from protocol.commands import DropShadow, KeepShadow, Regrow, SealShadow
from protocol.events import Learned, LearningGoesOn, ShadowSealed
from protocol.ids import hash_of
from protocol.older_copy import age_of
from protocol.records import Shadow
from protocol.shadow_ledger import Ledger, is_close_enough

NUM_CHUNKS = 4
FETCH_S = (0.02, 0.6)
SEAL_S = (0.01, 0.5)
RESTORE_S = (0.1, 2.0)
LOOK_AGAIN_S = 0.05

Reached = Callable[[SimNode, int], list[SimNode]]
"""Nodes that have a whole state of the stage and answer this one."""


@dataclass(slots=True)
class SimKept:
    """Of one stage at one node. `digests`: of the states that the chunks are of."""

    ledger: Ledger
    round: int
    digests: dict[int, str] = field(default_factory=dict)
    sealed: Shadow | None = None


class ShadowCopies:
    """Carries out KeepShadow, SealShadow, DropShadow, and a Regrow of a shadow."""

    def __init__(self, world: Surroundings, reached: Reached, is_wanted: Callable[[SimNode, int, int], bool]) -> None:
        """`is_wanted`: is the seat of the node still to be made, in that round?"""
        self._world, self._reached, self._is_wanted = world, reached, is_wanted
        self.kept: dict[tuple[SimNode, int], SimKept] = {}
        self.fetch_s = FETCH_S
        self._round = 0
        self.num_restored = self.num_mixed = 0
        """Seats that were restored, and those of them whose chunks were of several steps."""

    def keep(self, node: SimNode, command: KeepShadow) -> None:
        """What is there of this generation is gone on with."""
        self._round += 1
        key, rules = (node, command.stage), self._world.manifest.recovery
        before = self.kept.get(key)
        if before and before.ledger.generation == command.generation:
            before.sealed, before.round = None, self._round
        else:
            ledger = Ledger(NUM_CHUNKS, 1, rules.shadow_every, command.generation)
            self.kept[key] = SimKept(ledger, self._round)
            if before and before.sealed and command.as_of >= 0:
                self._take_over(self.kept[key], before.sealed, command.as_of)
        self._later(self.fetch_s, node, self._fetch, command.stage, self._round)

    def _take_over(self, kept: SimKept, shadow: Shadow, step: int) -> None:
        for chunk in kept.ledger.chunks:
            kept.ledger.settle(chunk, step, shadow.optimizer_age, shadow.lr_factor)
            kept.digests[chunk.first] = shadow.digest

    def _later(self, seconds: tuple[float, float], node: SimNode, call: Callable[..., None], *args: Any) -> None:
        self._world.post(self._world.now + self._world.rng.uniform(*seconds), node, call, node, *args)

    def _fetch(self, node: SimNode, stage: int, round_: int) -> None:
        kept = self.kept.get((node, stage))
        if kept is None or kept.round != round_:
            return
        chain: Chain = node.state.chain  # type: ignore[attr-defined]
        chunk, holders = kept.ledger.next(chain.step), self._reached(node, stage)
        if chunk and holders:
            seat = self._world.rng.choice(holders).seats[stage]
            age = age_of(chain, stage, seat.state_id)
            if age is not None and seat.generation == kept.ledger.generation:
                step, was = chain.step - age, self._world.watch.step_of(seat.state_id, stage)
                require(was in (0, step), f"{node!r} takes step {was} of stage {stage} for {step}")  # 0: it was rebuilt then
                kept.ledger.settle(chunk, step, seat.age, seat.lr_factor)
                kept.digests[chunk.first] = seat.digest
        self._later(self.fetch_s, node, self._fetch, stage, round_)

    def seal(self, node: SimNode, command: SealShadow) -> None:
        """Nothing more is fetched."""
        self._round += 1
        self.kept[node, command.stage].round = self._round
        self._later(SEAL_S, node, self._seal, command.stage, self._round)

    def _seal(self, node: SimNode, stage: int, round_: int) -> None:
        kept = self.kept.get((node, stage))
        if kept is None or kept.round != round_:
            return
        ledger, chain = kept.ledger, node.state.chain  # type: ignore[attr-defined]
        kept.sealed = None
        if ledger.is_whole and is_close_enough(ledger.oldest, ledger.newest, chain.step, ledger.every):
            age = ledger.age if self._world.manifest.recovery.shadow_moments else 0
            digest = hash_of(["shadow", stage, sorted(kept.digests.items()), age])
            kept.sealed = Shadow(node.spec.member, digest, ledger.oldest, ledger.newest, age, ledger.lr_factor)
        self._world.handle(node, ShadowSealed(stage, kept.sealed))

    def drop(self, node: SimNode, command: DropShadow) -> None:
        """It is of no use any more."""
        del self.kept[node, command.stage]

    def restore(self, node: SimNode, command: Regrow, round_: int) -> None:
        """Begin, once the keeper has just that and answers."""
        shadow, world = command.shadow, self._world
        assert shadow, "there is something to restore it of"
        if not self._is_wanted(node, command.stage, round_):
            return
        if self._keeper(node, command.stage, shadow) is None:
            world.post(world.now + LOOK_AGAIN_S, node, self.restore, node, command, round_)
            return
        seconds = world.rng.uniform(*RESTORE_S)
        world.handle(node, LearningGoesOn(command.stage, 0, 1, seconds, 1))
        world.post(world.now + seconds, node, self._restored, node, command, round_, seconds)

    def _keeper(self, node: SimNode, stage: int, shadow: Shadow) -> SimNode | None:
        """Who keeps it, if it answers the node."""
        world = self._world
        found = world.nodes.get(shadow.keeper.peer)
        parted = found and world.network.parted((found.peer, node.peer), world.now)
        if found is None or found.dead or found.frozen or parted:
            return None
        kept = self.kept.get((found, stage))
        return found if kept and kept.sealed == shadow else None

    def _restored(self, node: SimNode, command: Regrow, round_: int, seconds: float) -> None:
        shadow, stage = command.shadow, command.stage
        assert shadow, "there is something to restore it of"
        if not self._is_wanted(node, stage, round_):
            return
        if self._keeper(node, stage, shadow) is None:
            self.restore(node, command, round_)
            return
        seat = SimSeat(stage, command.state_id, shadow.digest, shadow.optimizer_age, shadow.lr_factor, command.generation)
        node.seats[stage] = seat
        self.num_restored += 1
        self.num_mixed += shadow.oldest < shadow.newest
        self._world.watch.regrown(node, seat, command)
        facts = (command.step, seat.digest, seat.age, seat.lr_factor, command.generation)
        self._world.handle(node, Learned(stage, seat.state_id, *facts, (shadow.keeper.peer,), 1, seconds))
