"""The lab trains what a plain loop trains, and a fork begins with what the policy says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from node.lab.crew import jobs_of
from node.lab.files import warm_path
from node.lab.forks import RESIDUAL, Bench, Hand
from node.lab.pipeline import Pace, Pipeline, StageState
from node.lab.raw import fork_name, reference_name
from node.lab.setup import Setup
from node.lab.treatments import NOTHING, Treatment
from node.ports import UnusableError
from protocol.manifest import DataSection
from tests.numerics.harness import RandomTokens, Trajectory, assert_same, drawn_weights, manifest_of, reference_run, split_flat
from tests.tools.material import write_shard

SETUP = Setup(
    layers_per_stage=1, hidden=16, heads=2, vocab=199, context_tokens=16, samples=4, seeds=(0,), warm_steps=(55,), fork_steps=6
)
WARM, LOST = 55, 2


@pytest.mark.parametrize("swapped", [False, True])
def test_the_lab_trains_what_a_plain_loop_trains(swapped: bool) -> None:
    manifest = manifest_of(4, swapped=swapped, optimizer__clip_norm=0.05, optimizer__clip_scope="per_stage", max_steps=8)
    tokens = RandomTokens(manifest)
    pipeline, losses, norms = Pipeline(manifest, tokens), [], []
    for step in range(1, manifest.last_step + 1):
        result = pipeline.step(step)
        losses.append(result.loss)
        norms.append(np.sqrt(sum(result.squared_norms)) / manifest.batch.tokens_per_step)
    weights: dict[str, np.ndarray] = {}
    for stage in pipeline.stages:
        weights |= split_flat(pipeline.executor.parameters(stage), pipeline.get(stage).weights)
    assert_same(Trajectory(losses, norms, weights), reference_run(manifest, tokens))


def test_a_stage_that_warms_up_begins_slowly() -> None:
    assert [Pace(1.1, 3, done).factor for done in range(5)] == pytest.approx([0.275, 0.55, 0.825, 1.1, 1.1])
    assert Pace(1.1).factor == 1.1
    assert Pace().factor == 1.0


class Trained:
    """A bench with a warm state, what it told, and the states of the stages then."""

    def __init__(self, folder: Path) -> None:
        shard = write_shard(folder / "tokens.bin", 6000, SETUP.vocab, 1)
        self.folder, self.data = folder, DataSection.model_validate({"train": [shard]})
        self.bench = Bench(folder, SETUP, self.data, 0, swapped=False)
        self.told = self.bench.reference()
        self.bench.take_up(WARM, LOST, NOTHING)
        self.states = {stage: self.bench.pipeline.get(stage) for stage in self.bench.pipeline.stages}

    def after(self, treatment: Treatment, stage: int = LOST) -> StageState:
        """The lost stage as the treatment leaves it; all others are as they were."""
        self.bench.take_up(WARM, stage, treatment)
        for other, before in self.states.items():
            if other != stage:
                assert_equal(self.bench.pipeline.get(other), before)
        return self.bench.pipeline.get(stage)


def assert_equal(state: StageState, other: StageState) -> None:
    assert state.age == other.age
    for one, two in zip(state.vectors, other.vectors, strict=True):
        assert np.array_equal(one, two)


def assert_fresh(state: StageState) -> None:
    assert state.age == 0
    assert not state.exp_avg.any()
    assert not state.exp_avg_sq.any()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("lab"))


def test_a_fork_in_which_nothing_is_lost_is_the_run_to_the_bit(trained: Trained) -> None:
    for _ in range(2):
        found = trained.bench.fork(WARM, LOST, NOTHING)
        assert found["losses"] == trained.told["losses"][WARM:]
        assert trained.bench.fork(WARM, LOST, Treatment("drawn"))["losses"] != found["losses"]
    assert len(trained.told["losses"]) == SETUP.steps
    assert len(trained.told["norms"][str(WARM)]) == 5


def test_a_stage_is_mixed_of_others(trained: Trained) -> None:
    states = trained.states
    made = trained.after(Treatment("mix", ((1, 0.25), (3, 0.75)), lr_factor=1.1))
    assert_fresh(made)
    assert np.allclose(made.weights, 0.25 * states[1].weights + 0.75 * states[3].weights, rtol=0, atol=1e-7)
    assert trained.bench.pipeline.pace == {0: Pace(), 1: Pace(), 2: Pace(1.1), 3: Pace(), 4: Pace()}
    copied = trained.after(Treatment("mix", ((1, 1.0),)))
    assert np.array_equal(copied.weights, states[1].weights)


def test_moments_are_mixed_too_where_that_is_asked_for(trained: Trained) -> None:
    states = trained.states
    made = trained.after(Treatment("mix", ((1, 0.25), (3, 0.75)), moments="averaged"))
    assert made.age == WARM
    for one, first, second in zip(made.vectors, states[1].vectors, states[3].vectors, strict=True):
        assert np.allclose(one, 0.25 * first + 0.75 * second, rtol=1e-5, atol=1e-9)


def test_a_stage_is_drawn_anew_as_a_swarm_draws_it(trained: Trained) -> None:
    made = trained.after(Treatment("drawn"))
    assert_fresh(made)
    wanted = drawn_weights(trained.bench.pipeline.manifest, LOST, generation=1)
    found = split_flat(trained.bench.pipeline.executor.parameters(LOST), made.weights)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_a_shadow_is_the_stage_itself_some_steps_ago(trained: Trained) -> None:
    """The same weights as those of a run that ends there."""
    made = trained.after(Treatment("own", age=50))
    assert_fresh(made)
    fresh = Pipeline(trained.bench.pipeline.manifest, trained.bench.pipeline.tokens)
    for step in range(1, WARM - 50 + 1):
        fresh.step(step)
    assert np.array_equal(made.weights, fresh.get(LOST).weights)
    newest = trained.states[LOST].weights
    distances = [np.linalg.norm(trained.after(Treatment("own", age=age)).weights - newest) for age in SETUP.ages]
    assert distances == sorted(distances)
    assert distances[0] > 0


def test_what_a_stage_adds_to_the_residual_stream_can_be_scaled(trained: Trained) -> None:
    executor, mean = trained.bench.pipeline.executor, ((1, 0.5), (3, 0.5))
    plain = split_flat(executor.parameters(LOST), trained.after(Treatment("mix", mean)).weights)
    scaled = split_flat(executor.parameters(LOST), trained.after(Treatment("mix", mean, residual=0.5)).weights)
    for name in plain:
        factor = np.float32(0.5 if name.endswith(RESIDUAL) else 1.0)
        assert np.array_equal(scaled[name], plain[name] * factor)
    assert sum(name.endswith(RESIDUAL) for name in plain) == 2


def test_a_raised_learning_rate_falls_back(trained: Trained) -> None:
    treatment = Treatment("mix", ((1, 1.0),), lr_factor=1.5, lr_decay_steps=5)
    trained.bench.take_up(WARM, LOST, treatment)
    factors = []
    for step in range(WARM + 1, WARM + 7):
        factors.append(trained.bench.pipeline.pace[LOST].factor)
        trained.bench.pipeline.step(step)
    assert factors == pytest.approx([1.5, 1.4, 1.3, 1.2, 1.1, 1.0])
    assert trained.bench.pipeline.pace[1] == Pace(done=6)


def test_a_hand_answers_a_job_under_its_name(trained: Trained) -> None:
    name = fork_name(0, False, WARM, SETUP.fork_steps, LOST, Treatment("own", age=10))
    run = reference_name(0, False, SETUP.steps, SETUP.warm_steps)
    hand = Hand()
    [forked] = [hand.do(job) for job in jobs_of(trained.folder, SETUP, trained.data, "fork", [name])]
    assert forked == name | trained.bench.fork(WARM, LOST, Treatment("own", age=10))
    [again] = [hand.do(job) for job in jobs_of(trained.folder, SETUP, trained.data, "reference", [run])]
    assert again == run | trained.told, "as often as one likes"


def test_a_warm_state_that_is_gone_is_named(trained: Trained, tmp_path: Path) -> None:
    bench = Bench(tmp_path, SETUP, trained.data, 0, swapped=False)
    with pytest.raises(UnusableError, match=str(warm_path(tmp_path, 0, False, WARM))):
        bench.fork(WARM, LOST, NOTHING)
