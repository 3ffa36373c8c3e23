"""What a monitor counts: what is shown, against what others know; who claims more gets nothing for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from node.monitor import counted as module
from node.monitor.counted import Counted
from node.monitor.told import ShownProofs, read_proofs
from protocol.counted import Claim, Tree, show
from protocol.ids import Member
from protocol.records import Share
from tests.tools.core import a_manifest

MANIFEST = a_manifest()
TOKENS = MANIFEST.batch.tokens_per_microbatch
PEERS = ("a", "b", "c")


class Run:
    """Three nodes; at each stage, `a` has microbatches 0 and 1, `b` 2, `c` 3. All know all roots."""

    def __init__(self) -> None:
        self.counted = Counted(MANIFEST.run_id)
        self.members: frozenset[str] = frozenset(PEERS)

    def shares(self, bits: tuple[str, str, str] = ("3", "4", "8")) -> tuple[Share, ...]:
        return tuple(Share(stage, Member(p, 1), b) for stage in range(3) for p, b in zip(PEERS, bits, strict=True))

    def claims(self, peer: str, step: int, shares: tuple[Share, ...] | None = None) -> list[Claim]:
        shares = shares or self.shares()
        tree = Tree(shares, step, MANIFEST)
        mine = [s for s in shares if s.member.peer == peer and s.microbatches != "0"]
        return [show(s.member, [o for o in shares if o.stage == s.stage], tree.above(s.stage), step, MANIFEST) for s in mine]

    def root(self, step: int) -> str:
        return Tree(self.shares(), step, MANIFEST).root

    def tell(self, peer: str, claims: list[Claim] = [], roots: list[tuple[int, str]] = []) -> None:  # noqa: B006
        told = {"claims": [claim.text() for claim in claims], "roots": roots}
        self.counted.hear(peer, read_proofs(json.dumps(told).encode()))

    def all_tell(self, *steps: int) -> None:
        for peer in PEERS:
            for step in steps:
                self.tell(peer, self.claims(peer, step), [(step, self.root(step))])

    def settled(self, peer: str) -> dict[int, int]:
        self.counted.settle(self.members)
        return dict(self.counted.tokens(peer))


def test_over_all_nodes_of_a_stage_the_tokens_are_those_of_the_run() -> None:
    run = Run()
    run.all_tell(1, 2, 3)
    assert run.settled("a") == dict.fromkeys(range(3), 3 * 2 * TOKENS)
    for stage in range(3):
        assert sum(run.settled(peer)[stage] for peer in PEERS) == 3 * MANIFEST.batch.tokens_per_step
    run.all_tell(2, 3)
    assert run.settled("a")[0] == 3 * 2 * TOKENS, "what is told again counts once"
    assert not run.counted.num_refused


def test_nothing_counts_before_others_know_the_root() -> None:
    run = Run()
    run.tell("a", run.claims("a", 1), [(1, run.root(1))])
    assert run.settled("a") == {}, "its own word for the root"
    run.tell("b", [], [(1, run.root(1))])
    assert run.settled("a")[1] == 2 * TOKENS
    run.members = frozenset()
    run.tell("c", run.claims("c", 1))
    assert run.settled("c") == {}, "as long as it is not known who is a member"


def test_a_claim_that_the_root_does_not_show_counts_nothing() -> None:
    run = Run()
    run.all_tell(1)
    before = run.settled("b")
    honest = run.claims("b", 2)[0]
    run.all_tell(2)
    run.settled("b")
    lies = [
        replace(honest, microbatches="f", tokens=4 * TOKENS),
        replace(honest, tokens=2**50),
        replace(honest, step=1, stage=2, microbatches="8"),
        *run.claims("b", 2, run.shares(("0", "f", "0")))[:1],
    ]
    news = []
    for lie in lies:
        run.tell("b", [lie])
        news += run.counted.settle(run.members)
    assert news == ["b"], "said once"
    assert run.settled("b") == {stage: 2 * tokens for stage, tokens in before.items()}
    assert run.counted.num_refused["b"] >= 2


def test_a_claim_of_another_node_or_run_is_refused() -> None:
    run = Run()
    run.all_tell(1)
    run.tell("b", run.claims("a", 1))
    run.tell("b", [replace(claim, run="another") for claim in run.claims("b", 1)])
    assert run.settled("b") == dict.fromkeys(range(3), TOKENS)
    assert run.counted.num_refused["b"] == 6


def test_one_liar_among_the_others_does_not_change_the_root() -> None:
    run = Run()
    false = Tree(run.shares(("f", "0", "0")), 1, MANIFEST).root
    run.tell("a", run.claims("a", 1, run.shares(("f", "0", "0"))), [(1, false)])
    run.tell("b", [], [(1, false)])
    run.tell("c", [], [(1, run.root(1))])
    assert run.settled("a") == {}, "the others are at odds"
    run.members = run.members | {"d"}
    run.tell("d", [], [(1, run.root(1))])
    assert run.settled("a") == {}
    assert run.counted.num_refused["a"] == 3
    run.tell("stranger", [], [(1, false)])
    run.tell("a", run.claims("a", 1))
    assert run.settled("a")[0] == 2 * TOKENS


def test_who_is_alone_is_believed() -> None:
    run = Run()
    run.members = frozenset(["a"])
    run.tell("a", run.claims("a", 1), [(1, run.root(1))])
    assert run.settled("a")[2] == 2 * TOKENS


def test_no_two_nodes_are_counted_for_the_same_microbatch() -> None:
    """A root that counts one twice is decided by no honest quorum; if the others tell one, it is not counted twice here."""
    run = Run()
    shares = run.shares(("3", "3", "c"))
    root = Tree(shares, 1, MANIFEST).root
    for peer in PEERS:
        run.tell(peer, run.claims(peer, 1, shares), [(1, root)])
    tokens = [run.settled(peer).get(0, 0) for peer in PEERS]
    assert sum(tokens) == MANIFEST.batch.tokens_per_step


def test_a_step_that_was_decided_again_counts_as_it_is_now() -> None:
    run = Run()
    run.all_tell(1, 2)
    assert run.settled("a")[0] == 4 * TOKENS
    for peer in PEERS:
        run.counted.went_back(peer, 1)
    assert run.settled("a")[0] == 2 * TOKENS
    shares = run.shares(("1", "6", "8"))
    for peer in PEERS:
        run.tell(peer, run.claims(peer, 2, shares), [(2, Tree(shares, 2, MANIFEST).root)])
    assert [run.settled(peer)[0] for peer in PEERS] == [3 * TOKENS, 3 * TOKENS, 2 * TOKENS]


def test_who_has_gone_is_forgotten_and_counted_anew_when_it_comes_again() -> None:
    run = Run()
    run.all_tell(1)
    assert run.settled("a")
    run.counted.keep(["b", "c"])
    assert run.settled("a") == {}
    run.all_tell(1)
    assert run.settled("a")[0] == 2 * TOKENS
    assert run.settled("b")[0] == TOKENS


def test_it_stays_bounded_and_what_was_counted_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 5)
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    run = Run()
    for step in range(1, 31):
        run.all_tell(step)
        run.counted.settle(run.members)
    assert run.settled("a")[0] >= 29 * 2 * TOKENS
    run.all_tell(1)
    assert run.settled("a")[0] <= 30 * 2 * TOKENS, "an old one is not counted again"
    for step in range(40, 60):
        run.tell("b", run.claims("b", step))
    assert len(run.counted._waiting["b"]) <= 4
    assert len(run.counted._roots) <= 5
    assert len(run.counted._steps) <= 5


@pytest.mark.parametrize(
    "data",
    [b"[]", b"{", b'{"claims": 1}', b'{"claims": ["x"]}', b'{"roots": [[1, "x"]]}', b'{"roots": [[-1, "%s"]]}' % (b"a" * 32),
     b'{"claims": ["%s"]}' % (b"[" * 9000), b'{"roots": [[1, 2, 3]]}', b'{"claims": [1]}'],
)  # fmt: skip
def test_what_are_no_proofs_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^its list of proofs is not one") as caught:
        read_proofs(data)
    assert "\n" not in str(caught.value)


def test_who_shows_nothing_is_no_fault() -> None:
    empty: Any = ShownProofs()
    assert read_proofs(b"") == read_proofs(b"{}") == empty
