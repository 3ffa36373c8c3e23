"""What a member shows of its work, what it lets pass as a voter, and what it says of a commit that leaves it out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.chain import Chain, choose_voters
from protocol.commands import Apply, Reduce
from protocol.counted import Claim, Tree, contributors_of, verify
from protocol.crediting import above_of
from protocol.events import Reduced
from protocol.ids import Member
from protocol.messages import Contact, Decide, Held, Propose
from protocol.records import Commit, Roster, Share, StageResult, record_id
from protocol.teller import Teller
from protocol.view import View
from tests.tools.core import BALLOT, LEAD, Core, a_manifest, holders, notes, of, says, sent
from tests.unit.test_protocol_workbench import finish, start_reduce

ME, SIBLING = Member("p1.0", 1), Member("p1.1", 1)


def shares_of(manifest: Any, **bits: str) -> tuple[Share, ...]:
    """Two replicas at each stage, microbatches in turn; `bits`: otherwise, by stage and replica."""
    seats = holders(manifest, 2)
    default = {True: "5", False: "a"}
    return tuple(
        Share(s.stage, s.member, bits.get(s.member.peer.replace(".", "_"), default[not s.member.peer.endswith(".1")]))
        for s in seats
    )


def summed() -> Core:
    """`ME` has half of stage 1, has accumulated it, and holds the stage's sum."""
    manifest = a_manifest()
    c = Core(manifest, ME.peer, holders(manifest, 2))
    c.open()
    for microbatch in (0, 2):
        hop = next(i for i, h in enumerate(c.route(microbatch).hops) if h.peer == ME.peer)
        for kind in ("forward", "backward"):
            finish(c, c.arrive(c.header(kind, microbatch, hop)))
    assert of(c.tell(start_reduce(c, owners=(0, 1, 0, 1), contacts=(Contact(SIBLING.peer, "h:1"),))), Reduce)
    c.do(Reduced(1, 1, 1, "sum", 4.0, 0.1))
    return c


def commit_of(c: Core, shares: tuple[Share, ...], **changes: Any) -> Commit:
    results = tuple(StageResult(s, "sum", 4.0) for s in range(c.manifest.num_stages))
    root = contributors_of(shares, 1, c.manifest)
    return replace(Commit(c.state.chain.head, 1, 1, results, 8.0, c.manifest.batch.tokens_per_step, root), **changes)


def shown(out: list[Any]) -> list[tuple[Claim, str]]:
    found = []
    for fields in notes(out, "counted"):
        root = fields["root"]
        found.append((Claim(**{k: v for k, v in fields.items() if k != "root"} | {"path": tuple(fields["path"])}), root))
    return found


def test_a_member_shows_its_share_with_what_it_is_told() -> None:
    c = summed()
    shares = shares_of(c.manifest)
    commit = commit_of(c, shares)
    out = c.tell(Decide(BALLOT, commit, (), above=Tree(shares, 1, c.manifest).told(ME.peer)))
    ((claim, root),) = shown(out)
    assert root == commit.contributors
    assert verify(claim, root)
    assert (claim.run, claim.step, claim.peer, claim.stage) == (c.manifest.run_id, 1, ME.peer, 1)
    assert (claim.microbatches, claim.tokens) == ("5", 2 * c.manifest.batch.tokens_per_microbatch)
    assert not notes(out, "uncounted")


def test_a_voter_needs_no_more_than_the_shares() -> None:
    c = summed()
    shares = shares_of(c.manifest)
    commit = commit_of(c, shares)
    c.tell(Propose(BALLOT, commit, shares))
    out = c.tell(Decide(BALLOT, commit, ()))
    assert [claim.microbatches for claim, root in shown(out) if verify(claim, root)] == ["5"]
    assert of(out, Apply)


def test_who_is_told_nothing_shows_nothing_and_does_not_complain() -> None:
    c = summed()
    out = c.decide(commit_of(c, shares_of(c.manifest)))
    assert of(out, Apply)
    assert not notes(out, "counted")
    assert not notes(out, "uncounted")


def test_the_sum_of_another_attempt_shows_nothing() -> None:
    c = summed()
    shares = shares_of(c.manifest)
    out = c.tell(Decide(BALLOT, commit_of(c, shares, attempt=2), shares))
    assert of(out, Apply)
    assert not notes(out, "counted")
    assert not notes(out, "uncounted")


@pytest.mark.parametrize(
    "bits",
    [{"p1_0": "1", "p1_1": "e"}, {"p1_0": "0", "p1_1": "f"}, {"p1_0": "d", "p1_1": "2"}, {"p1_0": "a", "p1_1": "5"}],
    ids=str,
)
def test_a_robbed_member_says_so(bits: dict[str, str]) -> None:
    """The coordinator gives a part of the work, or all of it, to a friend."""
    c = summed()
    shares = shares_of(c.manifest, **bits)
    out = c.tell(Decide(BALLOT, commit_of(c, shares), (), above=Tree(shares, 1, c.manifest).above(1)))
    assert not notes(out, "counted")
    assert notes(out, "uncounted") == [
        {"stage": 1, "step": 1, "microbatches": "5", "root": contributors_of(shares, 1, c.manifest)}
    ]
    assert any("does not count what was computed of stage 1 here" in sentence for sentence in says(out))


@pytest.mark.parametrize("bits", [{"p1_0": "1", "p1_1": "e"}, {"p1_0": "d", "p1_1": "2"}], ids=str)
def test_a_robbed_voter_does_not_hold_it(bits: dict[str, str]) -> None:
    c = summed()
    shares = shares_of(c.manifest, **bits)
    out = c.tell(Propose(BALLOT, commit_of(c, shares), shares))
    assert not sent(out, Held)
    assert any("summed of stage 1 here" in note["reason"] for note in notes(out, "refused"))
    assert sent(c.tell(Propose(BALLOT, commit_of(c, shares_of(c.manifest)), shares_of(c.manifest))), Held)


def test_a_voter_that_was_excluded_holds_what_the_others_did() -> None:
    c = summed()
    shares = shares_of(c.manifest, p1_0="0", p1_1="f")
    assert sent(c.tell(Propose(BALLOT, commit_of(c, shares), shares)), Held)


def test_a_share_of_a_stage_that_there_is_not_is_refused() -> None:
    """Each stage is covered, and a friend is counted besides."""
    c = summed()
    shares = (*shares_of(c.manifest), Share(7, Member("p2.0", 1), "f"))
    out = c.tell(Propose(BALLOT, commit_of(c, shares), shares))
    assert not sent(out, Held)
    assert any("stage that there is not" in note["reason"] for note in notes(out, "refused"))


def test_wrong_hashes_show_nothing() -> None:
    c = summed()
    shares = shares_of(c.manifest)
    above = Tree(shares, 1, c.manifest).told(ME.peer)
    out = c.tell(Decide(BALLOT, commit_of(c, shares), (), above=tuple(reversed(above))))
    assert len(above) == 2
    assert not notes(out, "counted")
    assert notes(out, "uncounted")


def test_the_coordinator_tells_a_few_hashes_to_those_that_do_not_vote() -> None:
    manifest = a_manifest()
    seats = holders(manifest, 4)
    chain = Chain(manifest, LEAD)
    chain.append(Roster(chain.head, 0, tuple(seats), (), choose_voters(seats, LEAD)), ())
    shares = tuple(Share(s.stage, s.member, f"{1 << replica % 4:x}") for replica, s in enumerate(seats))
    results = tuple(StageResult(stage, "sum", 4.0) for stage in range(3))
    tokens, root = manifest.batch.tokens_per_step, contributors_of(shares, 1, manifest)
    commit = Commit(chain.head, 1, 1, results, 1.0, tokens, root)
    teller = Teller(BALLOT, LEAD, chain, View(3.0), {}, manifest.timing)
    voters = {voter.peer for voter in chain.voters}
    for message in teller.decided(commit, shares, chain.voters[:3], (), 1.0):
        told, tree = message.message, Tree(shares, 1, manifest)
        assert isinstance(told, Decide)
        assert told.above == (() if message.peer in voters else tree.told(message.peer))
        assert bool(told.shares) == (message.peer in {voter.peer for voter in chain.voters[3:]})
    assert above_of("p2.3", commit, shares, manifest) == Tree(shares, 1, manifest).told("p2.3") != ()
    assert above_of("p2.3", commit, (), manifest) == ()
    chain.append(commit, shares)
    (again,) = teller.asked(Member("p2.3", 1), commit.parent, 9.0)
    assert again.message.above == above_of("p2.3", commit, shares, manifest), "who asks later is told as much"  # type: ignore[union-attr]


def test_an_early_decision_keeps_what_came_with_it() -> None:
    """The Commit overtakes the record before it, which is none that the members' states follow from."""
    c = summed()
    shares = shares_of(c.manifest)
    roster = Roster(c.state.chain.head, 0, (), (), (LEAD, ME))
    commit = replace(commit_of(c, shares), parent=record_id(roster))
    told = Decide(BALLOT, commit, (), above=Tree(shares, 1, c.manifest).told(ME.peer))
    c.tell(told)
    assert [kept.above for kept in c.state.follower._early.values()] == [told.above]
