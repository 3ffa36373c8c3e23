"""A node's notebook of proofs: what outlives a kill, a damaged file, a rollback, a lost lineage; and that it stays bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from node import proofs as module
from node.proofs import Proofs
from protocol.counted import Claim, Tree, claim_of, show, verify
from protocol.ids import Member
from protocol.records import Share
from tests.tools.core import a_manifest

MANIFEST = a_manifest()
ME, OTHER = Member("me", 3), Member("other", 1)
TOKENS = MANIFEST.batch.tokens_per_microbatch


def step_of(number: int, bits: str = "5", stages: Iterable[int] = (1,)) -> tuple[str, list[Claim]]:
    """A commit of which this node has these microbatches of these stages: its root, and what it shows."""
    rest = f"{0xF & ~int(bits, 16):x}"
    mine = [Share(stage, ME, bits) for stage in stages]
    shares = (*mine, *(Share(stage, OTHER, rest if stage in set(stages) else "f") for stage in range(3)))
    tree = Tree(shares, number, MANIFEST)
    claims = [show(ME, [s for s in shares if s.stage == own.stage], tree.above(own.stage), number, MANIFEST) for own in mine]
    return tree.root, claims


def live(book: Proofs, number: int, **how: Any) -> str:
    """The node decides and shows it."""
    root, claims = step_of(number, **how)
    book.observe("decided", {"step": number, "root": root})
    for claim in claims:
        book.observe("counted", asdict(claim) | {"path": list(claim.path), "root": root})
    return root


def a_book(path: Path) -> Proofs:
    return Proofs.open(path, MANIFEST.run_id, ME.peer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counted.jsonl"


def test_sums_and_proofs_outlive_a_start(path: Path) -> None:
    book = a_book(path)
    roots = {1: live(book, 1), 2: live(book, 2, stages=(0, 2)), 3: live(book, 3, bits="1")}
    told = book.sums()
    assert (told["steps"], told["microbatches"], told["tokens"]) == (3, 7, 7 * TOKENS)
    assert told["stages"] == [
        {"stage": 0, "tokens": 2 * TOKENS},
        {"stage": 1, "tokens": 3 * TOKENS},
        {"stage": 2, "tokens": 2 * TOKENS},
    ]
    assert (told["first_step"], told["shown"], told["shown_from"]) == (1, 3, 1)
    again = a_book(path)
    assert again.sums() == told
    assert again.claims(0) == book.claims(0)
    assert again.roots(1) == [(2, roots[2]), (3, roots[3])]
    assert [claim_of(text).step for text in again.claims(1)] == [2, 2, 3]
    assert all(verify(claim_of(text), roots[claim_of(text).step]) for text in again.claims(0))
    live(again, 4)
    assert a_book(path).sums()["steps"] == 4


def test_a_step_that_is_told_twice_counts_once(path: Path) -> None:
    book = a_book(path)
    live(book, 1)
    live(book, 2)
    size = path.stat().st_size
    live(book, 2)
    assert book.sums()["steps"] == 2
    assert a_book(path).sums() == book.sums()
    assert path.stat().st_size < 2 * size


@pytest.mark.parametrize("lost", range(1, 40, 3))
def test_a_torn_last_line_costs_that_line(path: Path, lost: int) -> None:
    book = a_book(path)
    for number in (1, 2, 3):
        live(book, number)
    path.write_bytes(path.read_bytes()[:-lost])
    again = a_book(path)
    assert again.sums()["steps"] == (3 if lost == 1 else 2)
    live(again, 4)
    assert a_book(path).sums()["steps"] == again.sums()["steps"] == (4 if lost == 1 else 3)


@pytest.mark.parametrize(
    "line",
    ["", "null", "{}", "[]", "[1]", '["root"]', '["root",0,"a"]', '["root","1","a"]', '["root",1,5]', '["claim","a","b"]',
     '["back"]', '["back","x"]', '["sum",1]', '["sum",-1,0,0,[]]', '["sum",1,1,1,[[1,2,3]]]', '["sum",1,1,1,7]',
     "[" * 5000, "\udcff", '["later",1]'],
)  # fmt: skip
def test_a_line_that_is_none_is_passed_over(path: Path, line: str) -> None:
    book = a_book(path)
    live(book, 1)
    told = book.sums()
    path.write_bytes(path.read_bytes() + line.encode("utf-8", "surrogateescape") + b"\n")
    assert a_book(path).sums() == told


def test_a_claim_in_the_file_counts_only_if_it_is_shown(path: Path) -> None:
    """Somebody writes more into his own file."""
    book = a_book(path)
    live(book, 1)
    true = path.read_bytes()
    for old, new in ((b'\\"5\\"', b'\\"7\\"'), (b'\\"me\\"', b'\\"it\\"'), (MANIFEST.run_id.encode(), b"another-run")):
        assert old in true
        path.write_bytes(true.replace(old, new))
        assert a_book(path).sums()["steps"] == 0


def test_going_back_gives_up_what_came_after(path: Path) -> None:
    book = a_book(path)
    for number in range(1, 6):
        live(book, number)
    book.observe("rolled_back", {"step": 3})
    assert book.sums()["steps"] == 3
    assert [step for step, _ in book.roots(0)] == [1, 2, 3]
    live(book, 4, bits="1")
    assert a_book(path).sums() == book.sums()
    assert book.sums()["microbatches"] == 7


def test_what_a_lost_lineage_trained_counts_for_nothing(path: Path) -> None:
    book = a_book(path)
    for number in (1, 2):
        live(book, number)
    book.observe("forked", {"step": 2})
    for number in (3, 4):
        live(book, number)
    book.observe("yielded", {"to": "c"})
    assert book.sums()["steps"] == 2
    assert a_book(path).sums() == book.sums()


def test_a_step_that_was_decided_otherwise_replaces_it_and_all_after(path: Path) -> None:
    """This node was in the lineage that did not note a fork: the roots of the other one tell."""
    book = a_book(path)
    for number in range(3, 8):
        live(book, number)
    live(book, 2, bits="1")
    assert [step for step, _ in book.roots(0)] == [2]
    assert book.sums()["steps"] == 1
    assert a_book(path).sums() == book.sums()


def test_it_stays_bounded_and_sums_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 8)
    monkeypatch.setattr(module, "MAX_LINES", 40)
    monkeypatch.setattr(module, "MAX_SHOWN", 3)
    book = a_book(path)
    most = 0
    for number in range(1, 101):
        live(book, number, stages=(0, 1, 2))
        most = max(most, path.stat().st_size)
        if number % 17 == 0:
            book.close()
            book = a_book(path)
        assert book.sums()["steps"] == number
    assert (book.sums()["tokens"], book.sums()["first_step"]) == (100 * 3 * 2 * TOKENS, 1)
    assert (book.sums()["shown"], book.sums()["shown_from"]) == (8, 93)
    assert [step for step, _ in book.roots(0)] == [93, 94, 95]
    assert [claim_of(text).step for text in book.claims(98)] == [99] * 3 + [100] * 3
    assert most < 100 * 600
    assert a_book(path).sums() == book.sums()
    assert not list(path.parent.glob("*.new"))
    monkeypatch.setattr(module, "MAX_SHOWN_CLAIMS", 8)
    assert [claim_of(text).step for text in book.claims(0)] == [93] * 3 + [94] * 3, "each step whole"


def test_a_file_that_cannot_be_had_costs_only_the_proofs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = a_book(tmp_path / "nowhere" / "counted.jsonl")
    assert "proofs of work are not kept" in caplog.text
    live(book, 1)
    assert book.sums()["steps"] == 1


def test_a_full_disk_is_said_once(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    book = a_book(path)
    live(book, 1)
    monkeypatch.setattr(module.os, "write", lambda fd, data: 3)
    live(book, 2)
    live(book, 3)
    assert caplog.text.count("proofs of work are not kept any more") == 1
    assert book.sums()["steps"] == 3
