"""Claims against the root of a step: what is counted is shown, nothing else passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.sim.credit import root_by_hand
from protocol.counted import (
    MAX_CLAIM_CHARS,
    MAX_PATH,
    Claim,
    Tree,
    claim_of,
    contributors_of,
    num_above,
    root_of,
    show,
    stage_rows,
    verify,
)
from protocol.ids import Member, members_of
from protocol.records import Share
from tests.tools.core import a_manifest

STEP = 7
MANIFEST = a_manifest(num_block_stages=4, microbatches=6)
OTHER = MANIFEST.model_copy(update={"name": "another"})
WHOLE = st.tuples(
    st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5), st.permutations(range(30))
)
"""For each stage the replica of each microbatch; and an order."""
Drawn = tuple[list[list[int]], list[int]]


def shares_of(owners: list[list[int]], order: list[int]) -> tuple[Share, ...]:
    """Every microbatch of every stage is one replica's. Who has none has an empty share."""
    found = []
    for stage, row in enumerate(owners):
        for replica in range(4):
            bits = sum(1 << m for m, owner in enumerate(row) if owner == replica)
            found.append(Share(stage, Member(f"p{(stage + replica) % 5}", 1 + replica), f"{bits:x}"))
    return tuple(share for _, share in sorted(zip(order, found, strict=False), key=lambda pair: pair[0]))


def claims(shares: tuple[Share, ...], step: int = STEP) -> list[Claim]:
    """What each can show of its shares."""
    tree = Tree(shares, step, MANIFEST)
    return [
        show(share.member, [s for s in shares if s.stage == share.stage], tree.above(share.stage), step, MANIFEST)
        for share in shares
        if int(share.microbatches, 16)
    ]


@settings(max_examples=60)
@given(WHOLE)
def test_everybody_can_show_its_own_whatever_the_order_in_which_shares_are_told(
    drawn: Drawn,
) -> None:
    shares = shares_of(*drawn)
    root = contributors_of(shares, STEP, MANIFEST)
    assert contributors_of(tuple(reversed(shares)), STEP, MANIFEST) == root
    assert contributors_of(tuple(s for s in shares if s.microbatches != "0"), STEP, MANIFEST) == root
    counted = {(s.stage, s.member): members_of(s.microbatches) for s in shares if s.microbatches != "0"}
    assert root_by_hand(counted, STEP, MANIFEST, MANIFEST.run_id) == root, "the same by other means"
    shown = claims(shares)
    assert all(verify(claim, root) for claim in shown)
    assert {(c.stage, Member(c.peer, c.incarnation)): members_of(c.microbatches) for c in shown} == counted
    for stage in range(len(drawn[0])):
        assert sum(c.tokens for c in shown if c.stage == stage) == MANIFEST.batch.tokens_per_step


@settings(max_examples=40)
@given(WHOLE, st.data())
def test_no_path_shows_another_leaf_a_larger_share_or_another_step(drawn: Drawn, data: st.DataObject) -> None:
    shares = shares_of(*drawn)
    root, shown = contributors_of(shares, STEP, MANIFEST), claims(shares)
    mine = data.draw(st.sampled_from(shown))
    for other in shown:
        if other != mine:
            assert not verify(replace(mine, path=other.path), root) or mine.path == other.path
            assert not verify(replace(other, path=mine.path), root) or mine.path == other.path
            assert mine.path != other.path, "each has a way of its own"
    more = f"{int(mine.microbatches, 16) | 1 << data.draw(st.integers(0, 9)):x}"
    if more != mine.microbatches:
        assert not verify(replace(mine, microbatches=more), root)
        assert not verify(replace(mine, microbatches=more, tokens=int(more, 16).bit_count() * 8), root)
    for wrong in (
        {"tokens": mine.tokens + 1},
        {"step": STEP + 1},
        {"stage": mine.stage + 1},
        {"peer": "q"},
        {"incarnation": 9},
    ):
        assert not verify(replace(mine, **wrong), root)  # type: ignore[arg-type]
    assert not verify(replace(mine, run="another"), root)
    assert not verify(mine, contributors_of(shares, STEP + 1, MANIFEST))
    assert not verify(mine, contributors_of(shares, STEP, OTHER))


def shows(text: str, root: str) -> bool:
    """Is it read as a claim, and right?"""
    try:
        return verify(claim_of(text), root)
    except ValueError:
        return False


@settings(max_examples=15)
@given(WHOLE, st.data())
def test_a_claim_with_any_byte_changed_shows_nothing(drawn: Drawn, data: st.DataObject) -> None:
    shares = shares_of(*drawn)
    root = contributors_of(shares, STEP, MANIFEST)
    text = data.draw(st.sampled_from(claims(shares))).text()
    assert shows(text, root)
    others = data.draw(st.text(st.characters(codec="latin-1"), min_size=len(text), max_size=len(text)))
    for place, byte in enumerate(text):
        before, after = text[:place], text[place + 1 :]
        for other in {others[place], chr(ord(byte) ^ 1), chr(ord(byte) ^ 32)} - {byte}:
            assert not shows(before + other + after, root)
            assert not shows(before + other + byte + after, root)
        assert not shows(before + after, root)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[" * 8000, "1", "[1,2,3,4,5,6,7,8]", '["r",1,"p",1,1,"1",8,[1]]', '["r",1,"p",1,1,"1",8,["l00"]]',
     '["r",1,"p",1,1,"0",8,[]]', '["r",1,"p",1,1,"01",8,[]]', '["r",true,"p",1,1,"1",8,[]]', '["r",1.0,"p",1,1,"1",8,[]]',
     '["r",-1,"p",1,1,"1",8,[]]', '["r",9223372036854775808,"p",1,1,"1",8,[]]', '["r",1,"p",1,1,"1",NaN,[]]',
     '["r", 1,"p",1,1,"1",8,[]]', '["r",1,"p",1,1,"1",8,[],0]', f'["{"r" * MAX_CLAIM_CHARS}",1,"p",1,1,"1",8,[]]'],
)  # fmt: skip
def test_what_is_no_claim_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        claim_of(text)


def test_a_path_that_is_too_long_is_refused() -> None:
    claim = Claim("r", 1, "p", 1, 0, "1", 8, ("l" + "0" * 32,) * MAX_PATH)
    assert claim_of(claim.text()) == claim
    assert verify(claim, root_of(claim))
    longer = replace(claim, path=(*claim.path, claim.path[0]))
    assert not verify(longer, root_of(longer))


def test_a_leaf_is_no_node_and_a_stage_no_leaf() -> None:
    """A share of the only replica of a stage: its leaf is the stage's root, and stays a leaf."""
    shares = tuple(Share(stage, Member(f"p{stage}", 1), "3f") for stage in range(5))
    tree = Tree(shares, STEP, MANIFEST)
    rows = [stage_rows([share], STEP, MANIFEST)[-1][0] for share in shares]
    first = Claim(MANIFEST.run_id, STEP, "p0", 1, 0, "3f", 48, ())
    assert root_of(first) == rows[0]
    assert verify(replace(first, path=tuple("r" + name for name in tree.above(0))), tree.root)
    assert not verify(first, tree.root)
    assert tree.above(4) == (root_of(replace(first, peer="none", path=())),) or len(tree.above(4)) == 1
    assert [num_above(stage, MANIFEST) for stage in range(5)] == [3, 3, 3, 3, 1]
    assert [len(tree.above(stage)) for stage in range(5)] == [3, 3, 3, 3, 1]
    assert tree.told("p2") == tree.above(2)
    assert tree.told("nobody") == ()


def test_a_peer_with_two_stages_is_told_of_both() -> None:
    shares = tuple(Share(stage, Member("p" if stage < 2 else "q", 1), "3f") for stage in range(5))
    tree = Tree(shares, STEP, MANIFEST)
    assert tree.told("p") == tree.above(0) + tree.above(1)


def test_who_is_told_little_is_told_as_little_in_a_large_swarm() -> None:
    """Above a stage lie as many hashes as there are stages, however many replicas they have."""
    for replicas in (1, 6):
        shares = tuple(Share(stage, Member(f"p{stage}.{r}", 1), f"{1 << r:x}") for stage in range(5) for r in range(replicas))
        assert len(Tree(shares, STEP, MANIFEST).told("p3.0")) == 3
