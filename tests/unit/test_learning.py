"""Catching up from donors that train on, die, stall, lie and are slow: the copy is whole, of one state, or not there yet."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from node.learning import NO_ESTIMATE_S
from tests.tools.toy_donors import (
    DAWDLE_S,
    HEARTBEAT_S,
    LAPSE_S,
    Fault,
    School,
    dawdles,
    dies,
    not_a_number,
    other_digest,
    other_values,
    resets,
    stalls,
    too_short,
    wrong_checksum,
)

WITHIN_S = 60.0
WHOLE = 12
"""Bytes per element of a state."""


def test_a_stage_that_stands_still_is_copied_once_from_all_donors(seed: int) -> None:
    school = School(3, seed)
    learner = school.run(lambda: school.is_learned(5, WITHIN_S))
    (learned,) = school.learned
    assert learned.donors == ("peer0", "peer1", "peer2")
    assert (learner.num_fetched, learner.num_replayed) == (20, 0)
    shares = [donor.num_bytes / (WHOLE * school.size) for donor in school.given]
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) >= 0.25, shares
    assert not school.faults


@pytest.mark.parametrize("burst", [1, 3])
def test_commits_during_the_copy_are_replayed_or_fetched_again(burst: int, seed: int) -> None:
    """12 commits, one each quarter of a second, of which all are replayed; or three at a time, more than gradients are kept."""
    school = School(2, seed, size=60_000, ranges=12)

    async def script() -> None:
        for _ in range(12 // burst):
            await asyncio.sleep(0.25 * burst)
            for _ in range(burst):
                school.training.commit()
        await school.is_learned(17, WITHIN_S)
        school.training.commit()
        await school.is_learned(18, WITHIN_S)

    for donor in school.given:
        donor.rate = 0.4e6
    learner = school.run(script)
    assert learner.num_replayed >= 12
    assert (learner.num_fetched > 12) == (burst > 1)
    assert all(donor.calls["state"] and donor.calls["gradient"] for donor in school.given)
    print(f"{burst} at a time: {learner.num_fetched} ranges fetched, {learner.num_replayed} replayed")


def test_what_is_too_far_behind_is_fetched_again_also_where_gradients_are_kept(seed: int) -> None:
    school = School(1, seed, ranges=4, keep=8)

    async def script() -> None:
        await school.is_learned(5, WITHIN_S)
        for _ in range(3):
            school.training.commit()
        await school.is_learned(8, WITHIN_S)

    learner = school.run(script)
    assert (learner.num_fetched, learner.num_replayed) == (8, 0)


def test_it_keeps_up_with_four_bytes_an_element_and_step(seed: int) -> None:
    school = School(3, seed)

    async def script() -> None:
        await school.is_learned(5, WITHIN_S)
        for age in range(6, 26):
            school.training.commit()
            assert await school.is_learned(age, WITHIN_S) < 1.0

    learner = school.run(script)
    assert [event.optimizer_age for event in school.learned] == list(range(5, 26))
    assert (learner.num_fetched, learner.num_replayed) == (20, 20 * 20)
    assert sum(donor.num_bytes for donor in school.given) == (WHOLE + 20 * 4) * school.size
    assert school.num_visits == 3, "the connections stay open"


def test_a_gradient_that_no_donor_has_yet_is_waited_for_and_one_that_none_keeps_is_not(seed: int) -> None:
    school = School(1, seed, ranges=2)
    (donor,) = school.given

    async def script() -> None:
        await school.is_learned(5, WITHIN_S)
        donor.lag_s = 0.5
        school.training.commit()
        await school.is_learned(6, WITHIN_S)
        assert (donor.calls["state"], donor.calls["gradient"]) == (2, 2), "waited"
        school.training.keep = 0
        school.training.gradients.clear()
        school.training.commit()
        school.training.gradients.clear()
        await school.is_learned(7, WITHIN_S)
        assert (donor.calls["state"], donor.calls["gradient"]) == (4, 2), "fetched"

    school.run(script)
    assert donor.calls["not held"] > 4


def test_a_gradient_that_comes_when_another_donor_was_faster_is_not_replayed_again(seed: int) -> None:
    school = School(2, seed, ranges=8)
    slow = school.given[0]

    async def script() -> None:
        await school.is_learned(5, WITHIN_S)
        slow.faults = {slow.num_calls + 1: dawdles}
        school.training.commit()
        assert await school.is_learned(6, WITHIN_S) < DAWDLE_S
        await asyncio.sleep(2 * DAWDLE_S)
        assert slow.num_bytes, "it came in the end"
        school.training.commit()
        await school.is_learned(7, WITHIN_S)

    learner = school.run(script)
    assert slow.fired == 1
    assert (learner.num_fetched, learner.num_replayed) == (8, 16)
    assert not school.faults


@pytest.mark.parametrize("num_others", [1, 3])
@pytest.mark.parametrize("fault", [dies, stalls, resets], ids=lambda f: f.__name__)
def test_a_donor_that_fails_amid_a_range_is_replaced(fault: Fault, num_others: int, seed: int) -> None:
    """FIELD-CASE 4, with the swarm committing meanwhile."""
    school = School(1 + num_others, seed)
    failing = school.given[0]
    failing.faults = {3: fault}

    async def script() -> None:
        async with asyncio.timeout(WITHIN_S):
            await failing.struck.wait()
        school.training.commit()
        took = await school.is_learned(6, WITHIN_S)
        assert took < 3 * LAPSE_S, took
        await asyncio.sleep(15)

    learner = school.run(script)
    assert failing.fired == 1
    assert failing.peer in {peer for peer, _ in school.faults}
    assert learner.num_fetched <= 20, "what had come is kept"


@pytest.mark.parametrize("fault", [dies, stalls], ids=lambda f: f.__name__)
def test_without_another_donor_it_says_so_and_waits_and_goes_on_where_it_was(fault: Fault, seed: int) -> None:
    school = School(1, seed)
    (donor,) = school.given
    donor.faults = {8: fault}

    async def script() -> None:
        await asyncio.sleep(60)
        assert donor.fired == 1
        assert not school.learned, "nothing is learned of a part"
        last = school.reports[-1]
        assert (last.num_donors, last.seconds_left) == (0, NO_ESTIMATE_S)
        assert last.num_bytes == 7 * WHOLE * school.range_elements
        donor.dead = False
        await school.is_learned(5, WITHIN_S)

    learner = school.run(script)
    assert learner.num_fetched == 20, "what had come is kept"
    assert len(school.faults) >= 3, "it asks again and again"
    assert school.num_visits < 15, "but ever more seldom"


@pytest.mark.parametrize("fault", [not_a_number, wrong_checksum, too_short], ids=lambda f: f.__name__)
def test_what_does_not_fit_is_not_taken_and_its_donor_is_named(fault: Fault, seed: int) -> None:
    school = School(2, seed)
    school.given[1].always = fault

    async def script() -> None:
        await school.is_learned(5, WITHIN_S)
        school.training.commit()
        await school.is_learned(6, WITHIN_S)

    school.run(script)
    assert school.given[1].fired
    assert {peer for peer, _ in school.faults} <= {"peer1", ""}
    assert school.learned[-1].donors == ("peer0",)


@pytest.mark.parametrize("fault", [other_values, other_digest], ids=lambda f: f.__name__)
@pytest.mark.parametrize("liar", [0, 1, 2])
def test_a_wrong_digest_clears_everything_and_one_donor_is_asked_at_a_time(liar: int, fault: Fault, seed: int) -> None:
    school = School(3, seed)
    school.given[liar].always = fault

    async def script() -> None:
        await school.is_learned(5, 300.0)
        asked = school.given[liar].num_calls
        for age in range(6, 12):
            school.training.commit()
            await school.is_learned(age, WITHIN_S)
        assert school.given[liar].num_calls == asked, "who may have lied is not asked while another one is there"

    learner = school.run(script)
    assert school.given[liar].fired
    assert any("digest is another" in reason for _, reason in school.faults)
    assert f"peer{liar}" not in school.learned[-1].donors
    assert 40 <= learner.num_fetched <= 80
    assert learner.num_replayed == 6 * 20


def test_a_lone_liar_is_never_believed(seed: int) -> None:
    school = School(1, seed)
    school.given[0].always = other_digest
    school.run(lambda: asyncio.sleep(120))
    assert not school.learned
    assert len(school.faults) > 3


def test_a_slow_donor_holds_nobody_up(seed: int) -> None:
    school = School(3, seed)
    school.given[2].rate = 1e4
    took: list[float] = []

    async def script() -> None:
        took.append(await school.is_learned(5, WITHIN_S))

    school.run(script)
    alone_s = WHOLE * school.size / 1e6
    assert took[0] < alone_s + 2 * HEARTBEAT_S, f"two good donors take {alone_s / 2:.1f} s"


def test_a_slow_donor_makes_room_for_one_that_is_not_asked_yet(seed: int) -> None:
    school = School(5, seed, size=400_000, ranges=100)
    school.given[0].rate = school.given[1].rate = 5e4
    school.run(lambda: school.is_learned(5, WITHIN_S))
    assert all(donor.num_calls for donor in school.given)
    assert max(donor.num_calls for donor in school.given[:2]) < 10 < min(donor.num_calls for donor in school.given[2:])


def test_a_donor_that_leaves_the_roster_is_asked_no_more_and_a_new_one_is(seed: int) -> None:
    school = School(4, seed, size=400_000, ranges=100)
    listed = school.training.listed
    school.training.listed = listed[:1]

    async def script() -> None:
        await asyncio.sleep(1.0)
        school.training.listed = listed[1:]
        assert school.training.learner
        school.training.learner.wake()
        await school.is_learned(5, WITHIN_S)

    learner = school.run(script)
    assert 0 < school.given[0].num_calls < 50
    assert all(donor.num_calls for donor in school.given)
    assert learner.num_fetched == 100


def test_progress_is_told_once_a_heartbeat_with_an_estimate_that_comes_true(seed: int) -> None:
    school = School(1, seed, size=1_000_000, ranges=50)
    took: list[float] = []

    async def script() -> None:
        took.append(await school.is_learned(5, WITHIN_S))

    school.run(script)
    gaps = [b - a for a, b in itertools.pairwise(school.report_times)]
    assert min(gaps) >= HEARTBEAT_S
    assert len(school.reports) >= 10
    assert [r.num_bytes for r in school.reports] == sorted(r.num_bytes for r in school.reports)
    ends = [at + report.seconds_left for at, report in zip(school.report_times, school.reports, strict=True)][2:]
    assert all(end == pytest.approx(school.report_times[0] + took[0], abs=0.5) for end in ends)


@pytest.mark.parametrize("one_way_s", [0.02, 0.15])
def test_the_link_of_a_donor_that_is_far_away_is_kept_busy(one_way_s: float, seed: int) -> None:
    """100 Mbit/s, ranges of 3 MiB; with one request at a time it is 0.84 and 0.44 of the link."""
    school = School(1, seed, size=2_500_000, ranges=10)
    (donor,) = school.given
    donor.rate, donor.one_way_s = 12.5e6, one_way_s
    took: list[float] = []

    async def script() -> None:
        took.append(await school.is_learned(5, WITHIN_S))

    school.run(script)
    share = WHOLE * school.size / donor.rate / took[0]
    print(f"{one_way_s:.2f} s one way: {share:.2f} of the link, at most {donor.most_in_flight} requests in flight")
    assert share > 0.8
    assert donor.most_in_flight <= 4
