"""Going on without a quorum, in every order of events up to a bound: each lineage is one chain; and this would find two."""

from __future__ import annotations

from collections import Counter

import pytest

from protocol.acceptor import Acceptor
from protocol.candidate import Candidate
from protocol.fork import fork_roster
from protocol.ids import NO_BALLOT, Member
from protocol.proposal import Proposal
from protocol.records import Roster, Seating
from tests.tools.core import a_manifest
from tests.tools.model import Bounds, Explorer, Found
from tests.tools.model_node import ForkError

LAYOUTS = {
    "with a loss": "a0 b1 c2 b0p",
    "with a loss, on two sides": "a0 b1 c2 b0p c0p",
    "two": "a0 b1 b0p",
    "two that hold everything": "a0 a1p b1 b0p",
    "2+1": "a0 b0 c1 c0p",
    "1+1+1": "a0 b1 c2 c0p c1p",
}
"""Node and stage; p: a passive replica. A node that holds everything may go on alone; with a loss: whoever has stage 0 and a
block stage, which the others are made of."""
QUICK = [
    ("two", Bounds(terms=3, places=1, crashes=2, fork="b")),
    ("two that hold everything", Bounds(terms=3, places=1, crashes=1, fork="ab")),
    ("2+1", Bounds(terms=2, places=1, crashes=0, rosters=False, stand="b", fork="bc")),
    ("1+1+1", Bounds(terms=2, places=1, crashes=0, rosters=False, stand="b", fork="c")),
    ("two that hold everything", Bounds(terms=3, places=1, crashes=1, fork="ab", anew=True)),
]
LOSSY = [
    ("with a loss", Bounds(terms=2, places=1, crashes=0, rosters=False, stand="b", fork="b")),
    ("with a loss, on two sides", Bounds(terms=2, places=1, crashes=0, rosters=False, stand="", fork="bc")),
]
MORE_LOSSY = [
    ("with a loss", Bounds(terms=2, places=1, crashes=1, rosters=False, stand="", fork="b")),
    ("with a loss", Bounds(terms=2, places=1, crashes=0, stand="b", fork="b")),
    ("with a loss, on two sides", Bounds(terms=2, places=1, crashes=1, rosters=False, stand="", fork="bc")),
]
NO_SOURCE = ("with a loss", Bounds(terms=2, places=1, crashes=0, rosters=False, stand="b", fork="c"))
ANEW = Bounds(terms=2, places=1, crashes=1, rosters=False, stand="b", anew=True)
FULL = [
    ("two that hold everything", Bounds(terms=4, places=2, crashes=1, fork="ab")),
    ("2+1", Bounds(terms=2, places=1, crashes=1, rosters=False, stand="", fork="bc")),
    ("2+1", Bounds(terms=2, places=1, crashes=0, stand="b", fork="c")),
    ("1+1+1", Bounds(terms=2, places=1, crashes=1, rosters=False, stand="", fork="c")),
    ("2+1", Bounds(terms=2, places=1, crashes=1, rosters=False, stand="b", fork="c", anew=True)),
    ("2+1", Bounds(terms=2, places=1, crashes=2, rosters=False, stand="", fork="bc")),
    ("1+1+1", Bounds(terms=2, places=1, crashes=2, rosters=False, stand="", fork="c")),
]


def explore(layout: str, bounds: Bounds, limit: int = 1_000_000) -> Found:
    seats = [Seating(int(x[1]), Member(x[0], 1), "passive" if x[2:] else "active") for x in LAYOUTS[layout].split()]
    policy = "checkfree" if layout.startswith("with a loss") else "none"
    manifest = a_manifest(max(seat.stage for seat in seats), microbatches=1, policy=policy)
    return Explorer(manifest, tuple(seats), bounds).explore(limit)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("layout", "bounds"), QUICK, ids=str)
def test_each_lineage_is_one_chain(layout: str, bounds: Bounds, tally: Counter[str]) -> None:
    found = explore(layout, bounds)
    tally["model states with forks"] += found.states
    assert found.forks, "nobody ever went on without a quorum: the bound is too small to say anything"
    assert found.grown, "no lineage went on after it had parted"
    assert found.parted, "there were never two lineages"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("layout", "bounds"), FULL, ids=str)
def test_each_lineage_is_one_chain_further_out(layout: str, bounds: Bounds, tally: Counter[str]) -> None:
    test_each_lineage_is_one_chain(layout, bounds, tally)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("layout", "bounds"), LOSSY, ids=str)
def test_each_lineage_is_one_chain_with_a_loss(layout: str, bounds: Bounds, tally: Counter[str]) -> None:
    found = explore(layout, bounds)
    tally["model states with forks"] += found.states
    assert found.lossy, "everybody always held everything"
    assert found.regrown, "what was lost was never made again"
    assert found.parted, "there were never two lineages"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("layout", "bounds"), MORE_LOSSY, ids=str)
def test_each_lineage_is_one_chain_with_a_loss_further_out(layout: str, bounds: Bounds, tally: Counter[str]) -> None:
    test_each_lineage_is_one_chain_with_a_loss(layout, bounds, tally)


@pytest.mark.timeout(120)
def test_who_begins_anew_undoes_nothing(tally: Counter[str]) -> None:
    """By name it is a voter still, at places where it has forgotten what it held; one that is behind may take it in."""
    found = explore("2+1", ANEW)
    tally["model states with forks"] += found.states
    assert found.taken_over


# ---- it would find two ----


def breaks(layout: str = "2+1", bounds: Bounds = QUICK[2][1]) -> None:
    with pytest.raises(ForkError):
        explore(layout, bounds)


@pytest.mark.parametrize(("layout", "bounds"), [QUICK[2], NO_SOURCE], ids=str)
def test_going_on_without_a_stage(layout: str, bounds: Bounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.candidate.may_part", lambda _chain, _stay, _heard: True)
    breaks(layout, bounds)


def test_seating_those_that_promised_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork(self: Candidate, me: Member, wait: bool) -> Roster | None:
        return None if self.proposal or self._has_quorum() else fork_roster(self._chain, self.ballot, self.forks, me)

    monkeypatch.setattr(Candidate, "fork", fork)
    breaks()


def test_a_minority_that_decides_an_ordinary_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mark it is one of two records after the same parent."""
    plain = lambda chain, _ballot, stay, me: fork_roster(chain, NO_BALLOT, stay, me)  # noqa: E731
    monkeypatch.setattr("protocol.candidate.fork_roster", plain)
    breaks()


def test_a_minority_that_takes_over_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be decided, but it need not be: the others may decide another record in its place."""
    advance = Candidate.advance

    def settles(self: Candidate) -> Proposal | None:
        left = [held for promise in self.promises.values() for held in promise.held]
        if self.forks and left and left[0].record.parent == self._chain.head:
            return Proposal(self.ballot, left[0].record, ())
        return advance(self)

    monkeypatch.setattr(Candidate, "advance", settles)
    breaks()


def test_a_voter_that_begins_anew_as_if_it_had_never_voted(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_anew(self: Acceptor) -> None:
        self.promised, self.holding, self._granted = NO_BALLOT, None, None

    monkeypatch.setattr(Acceptor, "begin_anew", begin_anew)
    breaks("2+1", ANEW)


def test_a_voter_that_begins_anew_and_forgets_where_it_voted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acceptor, "may_vote", lambda self, _head, ballot: ballot >= self.floor)
    breaks("2+1", ANEW)
