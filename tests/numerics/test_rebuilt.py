"""A stage that is lost is rebuilt as the paper says: on the real runtime, with torch, on virtual time; holders die right after
their last update, newcomers come, and every tensor is what a plain computation makes of the neighbours' dumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from node.sim.loop import run_virtual
from node.sim.swarm import MemorySwarm, SimNode
from node.stage.executor import TorchExecutor
from protocol.events import Applied, Event, Learned, SeatCreated
from protocol.manifest import Manifest
from tests.numerics.harness import RandomTokens, at_once, drawn_weights, manifest_of, split_flat
from tests.numerics.rebuilt import TOLERANCE, Arrays, assert_rebuilt, expected, gradient_norms

NUM_BLOCK_STAGES = 4
LAST = 5
"""Last step of those that die."""
NEWCOMERS_AT_S = 20.0
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Dumps:
    """Weights of each stage after each step, of the stages that were rebuilt, and what was decided about them."""

    lost: tuple[int, ...]
    kill: Any = None
    after: dict[tuple[int, int], Arrays] = field(default_factory=dict)
    made: dict[int, Arrays] = field(default_factory=dict)
    shares: dict[int, dict[int, float]] = field(default_factory=dict)
    moments: dict[int, float] = field(default_factory=dict)
    """Largest moment of a stage that was rebuilt."""
    ages: dict[int, int] = field(default_factory=dict)
    """Optimizer age of a stage that was rebuilt."""
    moments_after: dict[tuple[int, int, str], np.ndarray] = field(default_factory=dict)
    """By stage, step and section, flat."""
    made_moments: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)

    def take(self, node: SimNode, stage: int, section: str = "weights") -> Arrays:
        return split_flat(node.executor.parameters(stage), self.flat(node, stage, section))

    def flat(self, node: SimNode, stage: int, section: str) -> np.ndarray:
        count = sum(int(np.prod(shape)) for _, shape in node.executor.parameters(stage))
        return np.frombuffer(at_once(node.executor.export(stage, section, 0, count)), dtype="<f4").copy()

    def watch(self, node: SimNode, event: Event) -> None:
        if isinstance(event, SeatCreated | Applied):
            step = event.step if isinstance(event, Applied) else 0
            self.after[event.stage, step] = self.take(node, event.stage)
            for section in MOMENTS:
                self.moments_after[event.stage, step, section] = self.flat(node, event.stage, section)
            if (step, event.stage in self.lost) == (LAST, True) and not node.killed:
                self.kill(node)
        elif isinstance(event, Learned) and event.stage in self.lost and event.stage in node.state.chain.rebuilds:
            stage = event.stage
            self.made[stage] = self.take(node, stage)
            self.shares[stage] = {s.stage: s.coefficient for s in node.state.chain.rebuilds[stage].sources}
            self.made_moments |= {(stage, section): self.flat(node, stage, section) for section in MOMENTS}
            self.moments[stage] = max(float(np.abs(self.made_moments[stage, section]).max()) for section in MOMENTS)
            self.ages[stage] = event.optimizer_age

    def weights(self, manifest: Manifest, step: int) -> Arrays:
        """Of all stages after a step."""
        return {n: w for s in range(manifest.num_stages) for n, w in self.after[s, step].items()}


def lose(manifest: Manifest, *lost: int) -> Dumps:
    """A run whose holders of these stages die after step `LAST`, and go on at newcomers to the end."""
    tokens, dumps = RandomTokens(manifest), Dumps(lost)
    wishes = [*range(manifest.num_stages), *[-1] * len(lost)]
    comes = {manifest.num_stages + n: NEWCOMERS_AT_S for n in range(len(lost))}
    swarm = MemorySwarm(
        manifest, wishes, lambda _: TorchExecutor(manifest, tokens, inline=True), joins_at=comes, watch=dumps.watch
    )
    dumps.kill = swarm.kill
    nodes = run_virtual(swarm.run())
    assert {n.state.config.wished_stage for n in nodes if n.killed} == set(lost)
    assert [n.exit.code for n in nodes if n.exit] == [0] * manifest.num_stages
    assert max(n.state.chain.step for n in nodes) == manifest.last_step
    return dumps


def own_shares(manifest: Manifest, dumps: Dumps, distances: Mapping[int, int]) -> dict[int, float]:
    """Of the neighbours by their gradients' norms and nearness, from a backward pass over the last committed step."""
    microbatches = [RandomTokens(manifest).microbatch(LAST, m) for m in range(manifest.batch.num_microbatches)]
    norms = gradient_norms(manifest, dumps.weights(manifest, LAST - 1), microbatches)
    if manifest.recovery.policy == "uniform":
        norms = [1.0] * manifest.num_stages
    weights = {stage: norms[stage] / distance for stage, distance in distances.items()}
    return {stage: weight / sum(weights.values()) for stage, weight in weights.items()}


@pytest.mark.parametrize(
    ("policy", "lost", "distances"),
    [
        pytest.param("checkfree", (2,), {2: {1: 1, 3: 1}}, id="interior"),
        pytest.param("checkfree_plus", (3,), {3: {2: 1, 4: 1}}, id="interior-swapped", marks=pytest.mark.full),
        pytest.param("checkfree", (1,), {1: {2: 1}}, id="S1"),
        pytest.param("checkfree_plus", (4,), {4: {3: 1}}, id="swap-partner"),
        pytest.param("checkfree", (2, 3), {2: {1: 1, 4: 2}, 3: {1: 2, 4: 1}}, id="adjacent"),
        pytest.param("copy", (3,), {3: {2: 1}}, id="copy"),
        pytest.param("uniform", (2,), {2: {1: 1, 3: 1}}, id="uniform"),
    ],
)
def test_every_tensor_is_what_numpy_makes_of_the_neighbours(
    policy: str, lost: tuple[int, ...], distances: dict[int, dict[int, int]]
) -> None:
    manifest = manifest_of(
        NUM_BLOCK_STAGES,
        max_steps=LAST + 3,
        optimizer__clip_norm=0.05,
        recovery={"policy": policy, "rebuild_grace_s": 0.0, "newcomer_wait_s": 600.0},
    )
    dumps = lose(manifest, *lost)
    after = {n: w for (_, step), weights in dumps.after.items() if step == LAST for n, w in weights.items()}
    for stage in lost:
        shares = own_shares(manifest, dumps, distances[stage])
        assert dumps.shares[stage] == pytest.approx(shares, rel=1e-6)
        worst = assert_rebuilt(dumps.made[stage], expected(manifest, stage, shares, after))
        assert dumps.moments[stage] == 0.0
        print(f"{policy}, stage {stage} of {shares}: {worst:.1e}")


@pytest.mark.parametrize("lost", [(2,), (1, 2, 3, 4)], ids=["one", "all-blocks"])
def test_a_stage_that_is_drawn_anew_is_of_the_seed_and_its_generation(lost: tuple[int, ...]) -> None:
    manifest = manifest_of(
        NUM_BLOCK_STAGES,
        max_steps=LAST + 3,
        recovery={"policy": "random", "rebuild_grace_s": 0.0, "newcomer_wait_s": 600.0, "moments": "averaged"},
    )
    dumps = lose(manifest, *lost)
    for stage in lost:
        assert dumps.shares[stage] == {}
        for generation, same in ((1, True), (0, False)):
            drawn = drawn_weights(manifest, stage, generation)
            equal = [bool(np.array_equal(dumps.made[stage][name], drawn[name])) for name in drawn if drawn[name].ndim > 1]
            assert equal == [same] * len(equal)
        assert (dumps.moments[stage], dumps.ages[stage]) == (0.0, 0)


@pytest.mark.parametrize(("lost", "sources"), [(2, (1, 3)), (1, (2,))], ids=["interior", "copy"])
def test_averaged_moments_are_what_numpy_makes_of_the_neighbours(lost: int, sources: tuple[int, ...]) -> None:
    """The neighbours are of the same age here: each corrected for its bias and put back they are the weighted sum."""
    manifest = manifest_of(
        NUM_BLOCK_STAGES,
        max_steps=LAST + 3,
        recovery={"policy": "checkfree", "rebuild_grace_s": 0.0, "newcomer_wait_s": 600.0, "moments": "averaged"},
    )
    dumps = lose(manifest, lost)
    assert dumps.ages[lost] == LAST
    for section in MOMENTS:
        theirs = [dumps.moments_after[stage, LAST, section] for stage in sources]
        shares = [dumps.shares[lost][stage] for stage in sources]
        wanted = sum(np.float64(share) * flat.astype(np.float64) for share, flat in zip(shares, theirs, strict=True))
        found = dumps.made_moments[lost, section]
        assert float(np.linalg.norm(found - wanted)) <= TOLERANCE * float(np.linalg.norm(wanted))
        assert np.abs(found).max() > 0
