"""No fork, in any order of events up to a bound: the machines that decide, explored exhaustively; and this would find one."""

from __future__ import annotations

from collections import Counter

import pytest

from protocol.acceptor import Acceptor, Holding
from protocol.candidate import Candidate
from protocol.ids import Ballot, Member
from protocol.records import Record, Seating, Share
from tests.tools.core import a_manifest
from tests.tools.model import Bounds, Explorer, Found
from tests.tools.model_node import ForkError

LAYOUTS = {"two": (0, 1), "2+1": (0, 0, 1), "1+1+1": (0, 1, 2), "1+2": (0, 1, 1), "3+2": (0, 0, 0, 1, 1)}
"""The stage that each node holds."""
QUICK = [
    ("two", Bounds(terms=3, places=2, crashes=2)),
    ("2+1", Bounds(terms=2, places=1, crashes=0)),
    ("1+1+1", Bounds(terms=2, places=1, crashes=0, rosters=False)),
    ("1+1+1", Bounds(terms=2, places=1, crashes=1, rosters=False, stand="b")),
]
FULL = [
    ("two", Bounds(terms=4, places=2, crashes=2)),
    ("1+1+1", Bounds(terms=2, places=1, crashes=0)),
    ("2+1", Bounds(terms=2, places=1, crashes=1, rosters=False)),
    ("2+1", Bounds(terms=2, places=1, crashes=2, rosters=False, stand="b")),
    ("2+1", Bounds(terms=2, places=1, crashes=1, stand="b")),
    ("3+2", Bounds(terms=2, places=1, crashes=0, rosters=False, stand="b", vote="cde")),
]


def explore(layout: str, bounds: Bounds, limit: int = 1_000_000) -> Found:
    stages = LAYOUTS[layout]
    return Explorer(a_manifest(max(stages), microbatches=1), seated(stages), bounds).explore(limit)


def seated(stages: tuple[int, ...]) -> tuple[Seating, ...]:
    return tuple(Seating(stage, Member("abcde"[i], 1), "active") for i, stage in enumerate(stages))


REBUILDS = [("two", Bounds(terms=4, places=2, crashes=2, rosters=False))]
MORE_REBUILDS = [
    ("two", Bounds(terms=4, places=3, crashes=3, rosters=False)),
    ("1+2", Bounds(terms=2, places=1, crashes=1, rosters=False, stand="b")),
]
"""Where the last block stage has no holder from the start: nothing is committed before a Rebuild is."""


def rebuild(layout: str, bounds: Bounds) -> Found:
    stages = LAYOUTS[layout]
    manifest = a_manifest(max(stages) + 1, microbatches=1, policy="checkfree")
    return Explorer(manifest, seated(stages), bounds).explore(1_000_000)


def name(value: object) -> str:
    if isinstance(value, Bounds):
        roster = "-rosters" if value.rosters else ""
        return f"{value.terms}terms-{value.places}places-{value.crashes}crashes{roster}-{value.stand}"
    return str(value)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("layout", "bounds"), QUICK, ids=name)
def test_nothing_forks(layout: str, bounds: Bounds, tally: Counter[str]) -> None:
    found = explore(layout, bounds)
    tally[f"model states {layout} {name(bounds)}"] = found.states
    assert found.taken_over, (
        "no record that another ballot left behind was ever decided: the bound is too small to say anything"
    )
    assert len({term for term, _ in found.decided}) >= 2, "only one coordinator ever decided anything"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("layout", "bounds"), FULL, ids=name)
def test_nothing_forks_further_out(layout: str, bounds: Bounds, tally: Counter[str]) -> None:
    test_nothing_forks(layout, bounds, tally)


@pytest.mark.parametrize(("layout", "bounds"), REBUILDS, ids=name)
def test_nothing_forks_where_nodes_restart_while_a_stage_is_made_again(
    layout: str, bounds: Bounds, tally: Counter[str]
) -> None:
    found = rebuild(layout, bounds)
    tally[f"model states rebuild {layout} {name(bounds)}"] = found.states
    assert found.states > 10_000, "the bound is too small to say anything"
    assert found.rebuilt_over, "no Rebuild that another coordinator had begun was ever decided"
    assert found.rebuilt_amid, "nobody ever restarted before one was decided"
    assert len({name for _, name in found.rebuilt}) >= 2, "the same node made the stage in all of them"


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("layout", "bounds"), MORE_REBUILDS, ids=name)
def test_nothing_forks_where_nodes_restart_while_a_stage_is_made_again_further_out(
    layout: str, bounds: Bounds, tally: Counter[str]
) -> None:
    test_nothing_forks_where_nodes_restart_while_a_stage_is_made_again(layout, bounds, tally)


# ---- it would find one ----


def test_a_rebuild_that_is_not_proposed_again_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes make the same stage."""
    monkeypatch.setattr(Candidate, "advance", lambda _self: None)
    monkeypatch.setattr(Candidate, "has_won", property(lambda self: self._has_quorum()))
    with pytest.raises(ForkError):
        rebuild(*REBUILDS[0])


def forks(layout: str = "2+1", bounds: Bounds = QUICK[1][1]) -> None:
    with pytest.raises(ForkError):
        explore(layout, bounds)


def test_an_acceptor_that_looks_at_no_ballot_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(self: Acceptor, ballot: Ballot, record: Record, shares: tuple[Share, ...]) -> bool:
        self.holding = Holding(ballot, record, shares)
        return True

    monkeypatch.setattr(Acceptor, "hold", hold)
    forks()


def test_a_quorum_of_one_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.proposal.is_quorum", lambda held, _voters: bool(held))
    forks()


def test_promises_of_a_minority_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.candidate.is_quorum", lambda held, _voters: bool(held))
    forks()


def test_a_candidate_that_proposes_nothing_again_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Candidate, "advance", lambda _self: None)
    monkeypatch.setattr(Candidate, "has_won", property(lambda self: self._has_quorum()))
    forks()


def test_half_of_the_voters_whichever_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly half is enough only with the coordinator of the Roster that named the voters."""
    for place in ("protocol.proposal.is_quorum", "protocol.candidate.is_quorum"):
        monkeypatch.setattr(place, lambda held, voters: 2 * len(held & set(voters)) >= len(voters))
    forks("two", QUICK[0][1])


def test_an_acceptor_that_forgets_what_it_holds_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    promise = Acceptor.promise

    def forgetful(self: Acceptor, asked: object, chain: object) -> object:
        self.holding = None
        return promise(self, asked, chain)  # type: ignore[arg-type]

    monkeypatch.setattr(Acceptor, "promise", forgetful)
    forks()
