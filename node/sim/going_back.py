"""One seed of a swarm under policy `checkpoint` that loses stages, any of them, and goes back to what was saved.

As `node.sim.regrowth`, in the same cells; but some saves fail, some of what is saved is damaged, and for a while the store may
not be readable. Besides, each step that is repeated leads to the weights that it led to before, to the bit.
"""

from __future__ import annotations

from typing import Any

from node.sim.machine import require
from node.sim.regrowth import Regrowth, When, Which

MORE_STEPS = 6


class GoingBack(Regrowth):
    """See the module. Raises `BrokenError`."""

    name = "going-back"
    regains = "rollbacks"

    def __init__(self, seed: int, cell: tuple[Which, When] | None = None) -> None:
        super().__init__(seed, cell)
        rng, troubles = self.rng, self.world.works.checkpoints.troubles
        troubles.fails, troubles.damages = rng.choice((0.0, 0.0, 0.3)), rng.choice((0.0, 0.0, 0.2))
        self._steps_before = rng.randint(0, MORE_STEPS)

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        every = self.rng.choice((1, 2, 3, 5))
        kept = {key: data["recovery"][key] for key in ("rebuild_grace_s", "newcomer_wait_s")}
        saving = {"policy": "checkpoint", "checkpoint_every": every, "checkpoint_store": "/store"}
        data["recovery"] = kept | saving | {"embedding_copies": self.rng.choice((0, 0, 2))}
        return data

    def _lost(self) -> list[int]:
        """Any stages, as long as most voters are left; after some more steps, so that something may be saved."""
        self._until(self.watch.step + self._steps_before, self._limit_s(), "does not train")
        which, rng = self.cell[0], self.rng
        if which == "random":
            return rng.sample(range(self.num_stages), rng.randint(1, (self.num_stages - 1) // 2))
        return super()._lost()

    def _strike(self, lost: list[int]) -> None:
        super()._strike(lost)
        if self.rng.random() < 0.3:
            self.world.works.checkpoints.troubles.closed_until = self.world.now + self.rng.uniform(5.0, 15.0)

    def _check_told(self, lost: list[int]) -> None:
        """A stage came back by what was saved, or was not lost after all."""
        told = {stage: rung for (stage, _, _), rung in self.watch.recovered.items()}
        for stage in lost:
            fine = ("checkpoint", "promotion", "handover", "returned", None)
            require(told.get(stage) in fine, f"stage {stage} came back, and told is {told}: {self._situation()}")
            self.counts[told.get(stage) or "another replica lived"] += 1

    def _check_more(self) -> None:
        for step in range(self.watch.step + 1):
            for stage, digests in self.watch.digests_after(step).items():
                require(len(digests) == 1, f"stage {stage} came to {len(digests)} different states after step {step}")
                self.counts["states after a step"] += 1
        checkpoints = self.world.works.checkpoints
        self.counts["saves failed"] += checkpoints.num_failed
        self.counts["found damaged"] += checkpoints.num_damaged
        self.counts["could not look"] += checkpoints.num_closed
        self.counts["repeated"] += len(self.watch.commits) - self.watch.step
