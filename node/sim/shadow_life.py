"""One seed of a swarm under policy `shadow` that loses stages, any of them, and restores them of what others keep.

As `node.sim.regrowth`, in the same cells. Shadows are fetched slowly at times: where one is not whole yet, or spans too many
steps, its stage is made of its neighbours. Stage 0 is lost only once its keeper has all of it, for nothing else is left of it.
"""

from __future__ import annotations

from typing import Any

from node.sim.faults import Strike
from node.sim.life import START_S
from node.sim.machine import require
from node.sim.nodes import SimNode
from node.sim.regrowth import Regrowth, When, Which
from protocol.shadow_place import keepers

MORE_STEPS = 12
SLOWEST_FETCH_S = (0.2, 0.6, 2.0)


class ShadowLife(Regrowth):
    """See the module. Raises `BrokenError`."""

    name = "shadow"

    def __init__(self, seed: int, cell: tuple[Which, When] | None = None) -> None:
        super().__init__(seed, cell)
        self._steps_before = self.rng.randint(0, MORE_STEPS)
        self.world.works.copies.shadows.fetch_s = 0.02, self.rng.choice(SLOWEST_FETCH_S)

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        kept = {key: data["recovery"][key] for key in ("newcomer_wait_s", "lr_factor_decay_steps")}
        every, moments = self.rng.choice((2, 3, 5, 10)), self.rng.random() < 0.3
        shadow = {"policy": "shadow", "shadow_every": every, "shadow_moments": moments}
        data["recovery"] = kept | shadow | {"rebuild_grace_s": self.rng.choice((0.0, 4.0))}
        return data

    def _lost(self) -> list[int]:
        self._until(self.watch.step + self._steps_before, self._limit_s(), "does not train")
        lost, keeper = super()._lost(), self._keeper_of(0)
        lost = [stage for stage in lost if not (0 in lost and (stage, keeper.spec.member) in self.watch.place.seats)]
        if 0 in lost:
            require(self.world.run(lambda: self._is_kept(0), START_S), f"nobody keeps stage 0: {self._situation()}")
        return lost

    def _keeper_of(self, stage: int) -> SimNode:
        """As the newest coordinator's chain has it."""
        chain: Any = self._holder(stage).state
        return self.world.nodes[keepers(chain.chain)[stage].peer]

    def _is_kept(self, stage: int) -> bool:
        kept = self.world.works.copies.shadows.kept.get((self._keeper_of(stage), stage))
        rules = self.manifest.recovery
        if kept is None or not kept.ledger.is_whole:
            return False
        spread = kept.ledger.newest - kept.ledger.oldest
        return spread <= rules.shadow_every and self.watch.step - kept.ledger.oldest <= 2 * rules.shadow_every - 2

    def _strike(self, lost: list[int]) -> None:
        if 0 not in lost:
            super()._strike(lost)
            return
        for stage in lost:  # at once: what is kept of stage 0 is fresh now
            self.world.hit(self._holder(stage), Strike("crash", stage, 0, "forward", loud=self.rng.random() < 0.5))
        self.counts["killed with stage 0"] += len(lost)

    def _check_told(self, lost: list[int]) -> None:
        """Each came back by what was kept of it, or else of its neighbours, or was not lost after all."""
        told = {stage: rung for (stage, _, _), rung in self.watch.recovered.items()}
        for stage in lost:
            fine = ("shadow", "recovery", "promotion", "handover", "returned", None) if stage else ("shadow", "handover", None)
            require(told.get(stage) in fine, f"stage {stage} came back, and told is {told}: {self._situation()}")
            self.counts[told.get(stage) or "another replica lived"] += 1

    def _check_more(self) -> None:
        shadows = self.world.works.copies.shadows
        self.counts["restored"] += shadows.num_restored
        self.counts["restored of several steps"] += shadows.num_mixed
