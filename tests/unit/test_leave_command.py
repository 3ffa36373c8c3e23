"""`regrow leave`: whom it asks, what it shows, when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.cli.leave import LIMIT_S, POLL_S, is_over, sentences
from node.identity import StateLock
from node.ports import UnusableError


class Going:
    """A node that says these sentences, one a look, and is gone afterwards; and a clock."""

    def __init__(self, *said: str) -> None:
        self.said, self.now = list(said), 0.0

    def status(self) -> dict[str, Any]:
        sentence = self.said.pop(0)
        if not sentence:
            raise UnusableError(3, "it does not answer")
        return {"sentence": sentence}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def told(self) -> list[str]:
        return list(sentences(self.status, lambda: not self.said, lambda: self.now, self.sleep))


def test_each_sentence_is_shown_once_until_it_is_gone() -> None:
    going = Going("training", "leaving after handing over stage 2", "leaving after handing over stage 2", "", "left")
    assert going.told() == ["training", "leaving after handing over stage 2", "left"]
    assert going.now == 5 * POLL_S


def test_it_does_not_wait_for_ever() -> None:
    going = Going(*["stuck"] * round(LIMIT_S / POLL_S + 10))
    with pytest.raises(UnusableError, match="still there"):
        going.told()


def test_it_is_over_when_the_state_directory_is_free(tmp_path: Path) -> None:
    with StateLock.take(tmp_path):
        assert not is_over(tmp_path)
    assert is_over(tmp_path)
