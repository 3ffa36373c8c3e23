"""Who goes when attempt after attempt fails at the same peer, and who never does."""

from __future__ import annotations

import pytest

from protocol.blame import ATTEMPTS, MEMORY_STEPS, Blame
from protocol.chain import Chain
from protocol.ids import Member
from protocol.losses import Losses
from protocol.records import Roster
from protocol.view import View
from tests.tools.core import LEAD, a_manifest, holders

MANIFEST = a_manifest()


def chain_of(replicas: int) -> Chain:
    made = Chain(MANIFEST, LEAD)
    made.append(Roster(made.head, 0, tuple(holders(MANIFEST, replicas)), (), (LEAD,)), ())
    return made


def member(peer: str) -> Member:
    return Member(peer, 1)


@pytest.fixture
def blame() -> Blame:
    return Blame(chain_of(3), LEAD)


def enter(blame: Blame, by: str, peer: str, step: int = 1, attempts: int = ATTEMPTS) -> list[Member]:
    told = [blame.enter(member(by), peer, step, attempt) for attempt in range(1, attempts + 1)]
    return [found[0] for found in told if found]


def test_it_takes_several_attempts_at_one_step(blame: Blame) -> None:
    assert enter(blame, "p2.0", "p1.0", attempts=ATTEMPTS - 1) == []
    assert enter(blame, "p2.0", "p1.0", step=2, attempts=ATTEMPTS - 1) == [], "the next step counts anew"
    for _ in range(5):
        assert blame.enter(member("p2.0"), "p1.0", 2, 1) is None, "a repeated word is one word"
    assert blame.enter(member("p2.0"), "p1.0", 2, ATTEMPTS) == (
        member("p1.0"),
        f"{ATTEMPTS} attempts at step 2 failed at it, says p2.0",
    )


def test_a_stage_keeps_its_last_replica_and_the_coordinator_stays() -> None:
    assert enter(Blame(chain_of(1), LEAD), "p2.0", "p1.0") == []
    assert enter(Blame(chain_of(3), LEAD), "p2.0", LEAD.peer) == []


def test_who_names_one_after_another_goes_itself(blame: Blame) -> None:
    assert enter(blame, "p2.0", "p1.0", step=1) == [member("p1.0")]
    assert enter(blame, "p2.0", "p1.1", step=2) == [member("p2.0")]
    assert enter(blame, "p2.1", "p1.1", step=3) == [member("p1.1")], "somebody else is believed"
    assert enter(blame, "p2.1", "p1.2", step=3 + MEMORY_STEPS) == [member("p1.2")], "not held against it for ever"


def test_two_that_agree_are_believed(blame: Blame) -> None:
    assert enter(blame, "p2.0", "p1.0", step=1) == [member("p1.0")]
    assert blame.enter(member("p0.1"), "p1.1", 2, 1) is None
    assert blame.enter(member("p2.0"), "p1.1", 2, 2) is None
    assert blame.enter(member("p2.0"), "p1.1", 2, 3) is not None
    assert blame.enter(member("p2.0"), "p1.1", 2, 3)[0] == member("p1.1")  # type: ignore[index]


@pytest.mark.parametrize("peer", ["", "nobody", "p2.0"])
def test_nobody_is_dropped_for_what_names_nobody_else(blame: Blame, peer: str) -> None:
    assert enter(blame, "p2.0", peer) == []


def test_whoever_is_seated_again_was_lost_before_that() -> None:
    """It was found lost once more between the proposal that dropped it and its decision."""
    chain, view = chain_of(2), View(1.0)
    losses = Losses(LEAD, chain, view, 1.0)
    gone = member("p1.0")
    losses.drop(gone, "a test")
    assert losses.take() == {gone: "a test"}
    losses.drop(gone, "still the same")
    seat = next(s for s in chain.seatings if s.member == gone)
    chain.append(Roster(chain.head, 0, (), (seat,), (LEAD,)), ())
    losses.look(1.0)
    chain.append(Roster(chain.head, 0, (seat,), (), (LEAD,)), ())
    losses.look(2.0)
    assert not losses
    assert losses.take() == {}


def test_an_opinion_about_nobody_on_the_roster_is_none() -> None:
    losses = Losses(LEAD, chain_of(2), View(1.0), 1.0)
    assert losses.suspect("p2.0", member("p1.0"), 1.0)
    for nobody in (Member("p1.0", 2), Member("stranger", 1)):
        assert not losses.suspect("p2.0", nobody, 1.0)
