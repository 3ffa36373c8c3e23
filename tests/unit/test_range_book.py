"""Which range a learner goes for next."""

from __future__ import annotations

from node.ports import StateFacts
from node.range_book import COPY_ELEMENTS, Errand, Part, RangeBook
from protocol.replays import Replay

PATIENCE_S = 2.0
HEAD = 9
STEAL_S = 1.0


def facts(age: int) -> StateFacts:
    return StateFacts(f"state{age}", age, age, 1.0, 0, "")


def lead(of: StateFacts) -> tuple[Replay, ...] | None:
    """States 0 to 9 are known, 9 is the newest."""
    since = int(of.state_id.removeprefix("state"))
    return tuple(Replay(f"state{age}", age, 1.0, 0.1, 1.0) for age in range(since + 1, HEAD + 1)) if since <= HEAD else None


def book_of(*ages: int | None) -> RangeBook:
    """A range of 10 elements of each age; None: nothing is there."""
    book = RangeBook(10 * len(ages), PATIENCE_S, 10)
    for part, age in zip(book.parts, ages, strict=True):
        part.facts = None if age is None else facts(age)
    return book


def take(book: RangeBook, now: float = 0.0, peer: str = "a") -> Errand | None:
    return book.take(lead, now, STEAL_S, peer)


def taken(book: RangeBook, now: float = 0.0) -> list[tuple[int, str]]:
    """(range, what for) of everything that can be taken now, in order."""
    out = []
    while (errand := take(book, now)) is not None:
        out.append((errand.part.first // 10, errand.replay.state_id if errand.replay else "all"))
    return out


def test_ranges_cover_everything_once() -> None:
    for size in (1, 9, 10, 11, 95):
        parts = RangeBook(size, PATIENCE_S, 10).parts
        assert [e for part in parts for e in range(part.first, part.first + part.count)] == list(range(size))
    assert len(RangeBook(3 * COPY_ELEMENTS, PATIENCE_S).parts) == 3


def test_what_is_nearly_new_comes_first_and_the_stalest_of_it_in_front() -> None:
    book = book_of(None, 8, 3, 7, 9, 8)
    assert taken(book) == [(3, "state8"), (1, "state9"), (5, "state9"), (0, "all"), (2, "all")]


def test_what_another_donor_has_been_at_for_long_is_taken_over() -> None:
    book = book_of(None, None)
    assert taken(book, 0.0) == [(0, "all"), (1, "all")]
    assert take(book, 0.9, "b") is None
    assert take(book, 1.0, "a") is None, "nobody takes over what is his own"
    first = take(book, 1.0, "b")
    assert first
    book.settle(first, facts(HEAD))
    second = take(book, 1.1, "b")
    assert second
    assert second.part is not first.part
    assert take(book, 1.5, "c") is None, "it was taken over just now"
    assert take(book, 2.2, "c")
    assert take(book, 9.9, "d") is None, "three are enough"


def test_of_what_is_to_be_fetched_the_lowest_rank_comes_first() -> None:
    book = book_of(None, 8, None, None)
    order = []
    while (errand := book.take(lead, 0.0, STEAL_S, "a", lambda first: -first)) is not None:
        order.append(errand.part.first // 10)
    assert order == [1, 3, 2, 0], "what can be brought forward cannot wait"


def test_what_comes_second_is_late() -> None:
    book = book_of(7)
    one, two = take(book, 0.0), take(book, 1.0, "b")
    assert one and two
    book.settle(two, facts(8))
    assert book.is_late(one)
    assert book.states() == {facts(8)}
    book.give_back(one)
    book.give_back(two)
    assert taken(book) == [(0, "state9")]


def test_an_unknown_state_is_waited_for_and_then_fetched_anew() -> None:
    """A donor may be ahead of what was heard of decisions; one that is elsewhere is not."""
    book = book_of(HEAD + 1)
    assert take(book, 5.0) is None
    assert take(book, 5.0 + PATIENCE_S - 0.1) is None
    assert taken(book, 5.0 + PATIENCE_S) == [(0, "all")]


def test_a_gradient_that_none_has_is_waited_for_only_if_it_is_the_newest() -> None:
    book = book_of(8, 7)
    stale, newest = take(book), take(book)
    assert stale and newest
    for errand in (stale, newest):
        book.miss(errand, lead, 1.0)
        book.give_back(errand)
    assert taken(book, 1.0) == [(0, "state9"), (1, "all")]
    book.miss(newest, lead, 1.0 + PATIENCE_S)
    book.parts[0].takers.clear()
    assert taken(book, 1.0) == [(0, "all")]


def test_bytes_that_are_needed() -> None:
    assert book_of(None, 9, 8, 7, 6).bytes_needed(lead) == 10 * (12 + 0 + 4 + 8 + 12)
    assert book_of(HEAD + 1).bytes_needed(lead) == 120
    weights = RangeBook(25, PATIENCE_S, 10, state_bytes=4)
    assert weights.bytes_needed(lead) == 100
    errands = [take(weights) for _ in weights.parts]
    assert [errand.num_bytes for errand in errands if errand] == [40, 40, 20]


def test_all_of_one_state() -> None:
    book = book_of(9, 9)
    assert book.is_of("state9")
    book.clear()
    assert not book.is_of("state9")
    assert book.states() == {None}
    assert [part.version for part in book.parts] == [1, 1]
    assert isinstance(book.parts[0], Part)
