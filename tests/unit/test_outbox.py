"""What waits for a stream, how long a dialer waits, where peers are, and who is let in."""

from __future__ import annotations

from random import Random

import pytest

from node.ports import UnusableError
from node.transport.checks import WireError
from node.transport.config import Hello, TransportConfig, split_address
from node.transport.greeting import AddressBook, admit
from node.transport.outbox import Backoff, Outbox
from protocol.version import PROTOCOL_VERSION


def drained(box: Outbox[str]) -> list[str]:
    out = []
    while (item := box.pop()) is not None:
        out.append(item)
    return out


def filled(limit: int, text: str) -> Outbox[str]:
    """Lower case: messages; upper case: heartbeats."""
    box: Outbox[str] = Outbox(limit)
    for letter in text:
        box.put(letter, letter.isupper())
    return box


@pytest.mark.parametrize(
    ("limit", "text", "out", "dropped"),
    [
        (9, "abcd", "abcd", (0, 0)),
        (9, "aAbB", "ABab", (0, 0)),
        (2, "abc", "ab", (0, 1)),
        (2, "ABC", "BC", (1, 0)),
        (2, "AabB", "ab", (2, 0)),
        (2, "abA", "ab", (1, 0)),
        (3, "AaBb", "Bab", (1, 0)),
    ],
)
def test_heartbeats_overtake_and_fall_first(limit: int, text: str, out: str, dropped: tuple[int, int]) -> None:
    box = filled(limit, text)
    assert len(box) == len(out)
    assert "".join(drained(box)) == out
    assert (box.dropped_heartbeats, box.dropped_messages) == dropped


def test_waits_double_up_to_a_limit_and_start_again() -> None:
    backoff = Backoff(0.1, 2.0, Random(1))
    sizes = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    for size in sizes:
        assert size / 2 <= backoff.after_failure() <= size
    backoff.reset()
    assert backoff.after_failure() <= 0.1


def test_waits_differ_between_peers() -> None:
    waits = {Backoff(0.1, 2.0, Random(seed)).after_failure() for seed in range(10)}
    assert len(waits) == 10


def test_a_newer_incarnation_knows_its_address_best() -> None:
    book = AddressBook(2)
    assert book.introduce("p", "a:1")
    assert not book.introduce("p", "a:1")
    assert book.learn("p", 1, "b:1"), "the first word of an incarnation counts"
    assert not book.learn("p", 1, "c:1"), "its second does not"
    assert book.introduce("p", "d:1"), "what this node is told counts always"
    assert not book.learn("p", 1, "e:1")
    assert book["p"] == "d:1"
    assert not book.learn("p", 2, "")
    assert book.learn("p", 2, "f:1")
    assert book["p"] == "f:1"


def test_strangers_do_not_fill_the_book() -> None:
    book = AddressBook(2)
    for number in range(5):
        book.learn(f"p{number}", 1, "a:1")
    assert [f"p{number}" in book for number in range(5)] == [True, True, False, False, False]
    book.forget("p0")
    assert "p0" not in book
    assert book.learn("p4", 1, "a:1")


CONFIG = TransportConfig("run-1", "me", 1)


@pytest.mark.parametrize(
    ("hello", "code", "words"),
    [
        (Hello(PROTOCOL_VERSION + 1, "run-1", "you", 1, "h:1", "me"), "version", "install the version of regrow"),
        (Hello(PROTOCOL_VERSION, "run-2", "you", 1, "h:1", "me"), "run", "belongs to run run-1, not to run-2"),
        (Hello(PROTOCOL_VERSION, "run-1", "you", 1, "h:1", "her"), "peer", "her is not here: this is me"),
        (Hello(PROTOCOL_VERSION, "run-1", "me", 1, "h:1", "me"), "peer", "no peer that could call here"),
        (Hello(PROTOCOL_VERSION, "run-1", "", 1, "h:1", "me"), "peer", "nobody is no peer"),
        (Hello(PROTOCOL_VERSION, "run-1", "you", 1, "h:0", "me"), "value", "port 0"),
        (Hello(PROTOCOL_VERSION, "run-1", "you", 1, "h", "me"), "value", "HOST:PORT"),
    ],
)
def test_who_is_not_let_in(hello: Hello, code: str, words: str) -> None:
    with pytest.raises(WireError) as caught:
        admit(CONFIG, hello)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_who_is_let_in() -> None:
    admit(CONFIG, Hello(PROTOCOL_VERSION, "run-1", "you", 1, "", "me"))
    admit(CONFIG, Hello(PROTOCOL_VERSION, "run-1", "you", 1, "[::1]:5", "me"))


def test_addresses() -> None:
    assert split_address("[::1]:5", "x") == ("::1", 5)
    assert split_address("host:0", "x") == ("host", 0)
    with pytest.raises(UnusableError, match=r"--listen 'host' is not HOST:PORT; example"):
        split_address("host", "--listen")
