"""Who contributed: one hash in the record, shown to voters with all shares, and kept by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol import counted
from protocol.counted import contributors_of
from protocol.ids import Ballot, Member
from protocol.messages import Decide, Held, Propose
from protocol.records import Commit, Share, StageResult, record_id, short
from tests.tools.core import BALLOT, Core, a_manifest, holders, sent
from tests.tools.lead import lead, votes, whole_step

MANIFEST = a_manifest()


@pytest.mark.parametrize(
    "change", [{"stage": 2}, {"member": Member("b", 2)}, {"microbatches": "7"}, {"member": Member("c", 1)}], ids=str
)
def test_every_part_of_a_share_counts(change: dict[str, Any]) -> None:
    shares = Share(0, Member("a", 1), "3"), Share(1, Member("b", 1), "3")
    assert contributors_of((shares[0], replace(shares[1], **change)), 1, MANIFEST) != contributors_of(shares, 1, MANIFEST)


def test_what_is_remembered_is_right_and_bounded() -> None:
    many = [(Share(0, Member("a", life), "3"),) for life in range(3 * counted.MAX_TREES)]
    roots = [contributors_of(shares, 1, MANIFEST) for shares in many]
    assert len(set(roots)) == len(many)
    assert [contributors_of((replace(shares[0]),), 1, MANIFEST) for shares in many] == roots, "equal shares, other objects"
    assert [contributors_of(shares, 1, MANIFEST) for shares in many] == roots
    assert len(counted._trees) <= counted.MAX_TREES


def test_a_record_has_the_first_digits_of_a_digest() -> None:
    c = lead()
    out = whole_step(c)
    record = sent(out, Propose, "a")[0].record
    assert short("0123456789abcdef" * 4) == "0123456789abcdef"
    assert [r.digest for r in record.results] == ["sum0", "sum1", "sum2"]
    assert record.contributors == contributors_of(sent(out, Propose, "a")[0].shares, 1, c.manifest)


def test_who_holds_the_record_is_not_told_the_shares_again() -> None:
    """`a` has said that it holds it, `b` is a voter too and may never have been asked."""
    c = lead()
    out = whole_step(c)
    shares = sent(out, Propose, "a")[0].shares
    out = votes(c, out)
    assert sent(out, Decide, "a")[0].shares == ()
    assert sent(out, Decide, "b")[0].shares == shares
    assert [d.shares for d in c.state.chain.after(sent(out, Decide, "a")[0].record.parent)] == [shares]


def a_voter() -> tuple[Core, Commit, tuple[Share, ...]]:
    manifest = a_manifest()
    c = Core(manifest, "p1.0", holders(manifest))
    every = f"{(1 << manifest.batch.num_microbatches) - 1:x}"
    shares = tuple(Share(s.stage, s.member, every) for s in c.state.chain.seatings)
    results = tuple(StageResult(stage, "d", 1.0) for stage in range(manifest.num_stages))
    tokens = manifest.batch.tokens_per_step
    return c, Commit(c.state.chain.head, 1, 1, results, 1.0, tokens, contributors_of(shares, 1, manifest)), shares


def test_a_voter_keeps_the_shares_of_what_it_held() -> None:
    c, commit, shares = a_voter()
    assert sent(c.tell(Propose(BALLOT, commit, shares)), Held) == [Held(BALLOT, record_id(commit))]
    c.tell(Decide(BALLOT, commit, ()))
    assert [d.shares for d in c.state.chain.after(commit.parent) or ()] == [shares]


def test_a_voter_that_held_another_record_keeps_none_of_its_shares() -> None:
    c, commit, shares = a_voter()
    c.tell(Propose(BALLOT, commit, shares))
    other = replace(commit, loss_sum=2.0)
    c.tell(Decide(Ballot(2, "lead"), other, ()))
    assert [d.shares for d in c.state.chain.after(commit.parent) or ()] == [()]


def test_shares_that_the_record_does_not_name_are_not_kept() -> None:
    c, commit, shares = a_voter()
    c.tell(Decide(BALLOT, commit, shares[:-1]))
    assert [d.shares for d in c.state.chain.after(commit.parent) or ()] == [()]


def test_a_voter_refuses_a_record_without_contributors() -> None:
    c, commit, _ = a_voter()
    assert not sent(c.tell(Propose(BALLOT, replace(commit, contributors=""), ())), Held)
