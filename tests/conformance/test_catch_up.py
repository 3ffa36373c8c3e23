"""A learner catches up over gRPC with TLS from donors that train on: its state ends with their bits, whoever fails."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Literal

import pytest

from node.learning import NO_ESTIMATE_S, Learner
from node.range_book import GRADIENT_BYTES
from protocol.events import Learned
from tests.conformance.donor_world import NUM_RANGES, STAGE, WITHIN_S, Case, Swarm, run
from tests.conformance.transport_worlds import until
from tests.numerics.harness import manifest_of
from tests.tools.relay import Faults, relay

SLOW = Faults(back_bytes_per_s=6e4, latency_s=0.005)
"""A link that takes more than three seconds for the stage."""
DETECTION_S = 3.0
"""T of FIELD-CASES: what the manifest sets for a peer that is silent."""
Failure = Literal["kill", "reset", "blackhole"]
full = pytest.mark.full


@pytest.mark.parametrize("kind", ["adamw", pytest.param("sgd", marks=full)])
def test_the_copy_has_the_donors_bits_while_they_train_on(kind: str, seed: int) -> None:
    manifest = manifest_of(2, optimizer__kind=kind)

    async def case(swarm: Swarm, learner: Learner) -> None:
        for _ in range(8):
            await swarm.train(learner)
        copied = await swarm.newest_is_learned()
        assert copied.step == copied.optimizer_age == 8
        for _ in range(4):
            await swarm.train(learner)
            await swarm.newest_is_learned()
        learned = await swarm.newest_is_learned()
        mine, theirs = await swarm.executor.info(STAGE), await swarm.donors[1].executor.info(STAGE)
        assert mine == theirs
        assert (learned.digest, learned.step) == (mine.digest, 12)
        for section in ("weights", "exp_avg", "exp_avg_sq"):
            own = await swarm.executor.export(STAGE, section, 0, mine.num_elements)
            assert bytes(own) == bytes(await swarm.donors[0].executor.export(STAGE, section, 0, mine.num_elements)), section
        assert learned.donors == tuple(sorted(donor.peer for donor in swarm.donors)), "both gave a part"
        assert learner.num_replayed >= 4 * NUM_RANGES, "of the last steps only gradients came"
        assert learner.num_fetched >= NUM_RANGES
        assert not swarm.faults

    run(case, manifest, seed)


def test_one_donor_dies_amid_the_copy_and_the_other_one_finishes_it(seed: int) -> None:
    manifest = manifest_of(2)

    async def case(swarm: Swarm, learner: Learner) -> None:
        await swarm.train(learner)
        await swarm.newest_is_learned()
        await swarm.transports[1].close()
        for _ in range(3):
            await swarm.train(learner)
        learned = await swarm.newest_is_learned()
        assert (await swarm.executor.info(STAGE)) == (await swarm.donors[0].executor.info(STAGE))
        assert learned.step == 4
        assert {name for name, _ in swarm.faults} == {swarm.donors[1].peer}

    run(case, manifest, seed)


def run_over_links(case: Case, num_donors: int, seed: int) -> None:
    with ExitStack() as stack:
        links = [stack.enter_context(relay()) for _ in range(num_donors)]
        for link in links:
            link.set(SLOW)
        run(case, manifest_of(2), seed, num_donors, links)


async def fail(swarm: Swarm, failure: Failure) -> str:
    """What becomes of a donor that is being asked (the first three of the roster are), or of the way to it; its peer id."""
    number = 0
    if failure == "kill":
        await swarm.transports[number].close()
    else:
        swarm.links[number].set(Faults(mode=failure))
    return swarm.donors[number].peer


def assert_that_nothing_was_lost(swarm: Swarm, learner: Learner, learned: Learned) -> None:
    """No more than a fifth of the state came twice. What it was brought forward with comes on top: how many ranges had come
    before a step ended is a matter of the machine's speed."""
    gradients = learner.num_replayed * learner.range_elements * GRADIENT_BYTES
    assert learned.num_bytes - gradients <= 1.2 * swarm.state_bytes, f"{learner.num_fetched} of {NUM_RANGES} ranges came"


async def some_of_it(learner: Learner) -> None:
    await until(lambda: learner.num_fetched >= 3)
    assert learner.num_fetched < NUM_RANGES, "the copy was to be on its way"


@pytest.mark.parametrize(
    ("failure", "num_others"),
    [
        ("blackhole", 1),
        pytest.param("kill", 1, marks=full),
        pytest.param("reset", 1, marks=full),
        pytest.param("blackhole", 3, marks=full),
        pytest.param("kill", 3, marks=full),
        pytest.param("reset", 3, marks=full),
    ],
)
def test_a_copy_goes_on_from_others_when_its_donor_fails(failure: Failure, num_others: int, seed: int) -> None:
    """FIELD-CASES 4: finished from another donor within 3 T, of one state, and what had come is kept."""

    async def case(swarm: Swarm, learner: Learner) -> None:
        await some_of_it(learner)
        began = asyncio.get_running_loop().time()
        failed = await fail(swarm, failure)
        await swarm.train(learner)
        learned = await swarm.newest_is_learned()
        took = asyncio.get_running_loop().time() - began
        assert took < 3 * DETECTION_S, f"{took:.1f} s"
        assert (await swarm.executor.info(STAGE)) == (await swarm.donors[1].executor.info(STAGE))
        assert_that_nothing_was_lost(swarm, learner, learned)
        await until(lambda: {name for name, _ in swarm.faults} == {failed})

    run_over_links(case, 1 + num_others, seed)


@pytest.mark.parametrize("failure", [pytest.param("blackhole", marks=full), "reset"])
def test_without_another_donor_the_copy_waits_and_goes_on_where_it_was(failure: Failure, seed: int) -> None:
    async def case(swarm: Swarm, learner: Learner) -> None:
        await some_of_it(learner)
        await fail(swarm, failure)
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: (swarm.reports[-1].num_donors, swarm.reports[-1].seconds_left) == (0, NO_ESTIMATE_S))
        assert not swarm.learned, "a part is not a state"
        swarm.links[0].set(SLOW)
        learned = await swarm.newest_is_learned()
        assert_that_nothing_was_lost(swarm, learner, learned)
        assert (await swarm.executor.info(STAGE)) == (await swarm.donors[0].executor.info(STAGE))

    run_over_links(case, 1, seed)


@full
def test_a_newcomer_that_dies_leaves_its_donors_alone_and_its_next_life_learns(seed: int) -> None:
    async def case(swarm: Swarm, first: Learner) -> None:
        await some_of_it(first)
        again = await swarm.next_life()
        await swarm.train(again)
        await swarm.newest_is_learned()
        assert again.num_fetched >= NUM_RANGES
        assert (await swarm.executor.info(STAGE)) == (await swarm.donors[0].executor.info(STAGE))
        assert not swarm.faults

    run_over_links(case, 1, seed)
