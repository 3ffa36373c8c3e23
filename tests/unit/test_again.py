"""--retry: which ends are tried again, after which pauses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.again import run_again
from node.ports import PeerError, UnusableError


class World:
    """Ends of lives in order; each lives for `lived_s`."""

    def __init__(self, *ends: int | BaseException, lived_s: float = 1.0) -> None:
        self.ends, self.lived_s = list(ends), lived_s
        self.now, self.pauses, self.said = 0.0, list[float](), list[str]()

    def live(self) -> int:
        self.now += self.lived_s
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def run(self) -> int:
        return run_again(self.live, self.sleep, lambda: self.now, self.said.append)


def unreachable() -> UnusableError:
    return UnusableError(3, "nobody there")


def test_pauses_grow_to_five_minutes_and_are_said() -> None:
    world = World(*(unreachable() for _ in range(9)), 0)
    assert world.run() == 0
    assert world.pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert world.said[0] == "nobody there; starting again in 5 s (Ctrl-C ends it)"
    assert len(world.said) == 9


def test_after_a_long_life_it_is_tried_soon_again() -> None:
    world = World(unreachable(), unreachable(), unreachable(), 0, lived_s=1000.0)
    assert world.run() == 0
    assert world.pauses == [5, 5, 5]


@pytest.mark.parametrize("end", [PeerError("a", "gone"), ZeroDivisionError("bug"), ExceptionGroup("x", [OSError("y")])])
def test_what_broke_is_tried_again(end: Exception, caplog: pytest.LogCaptureFixture) -> None:
    world = World(end, 0)
    assert world.run() == 0
    assert world.pauses == [5]


@pytest.mark.parametrize("code", [0, 143])
def test_who_left_stays_away(code: int) -> None:
    world = World(code)
    assert (world.run(), world.pauses) == (code, [])


@pytest.mark.parametrize("end", [lambda: UnusableError(2, "bad"), lambda: UnusableError(4, "refused"), KeyboardInterrupt])
def test_what_only_the_user_can_mend_is_not_tried_again(end: Callable[[], BaseException]) -> None:
    error = end()
    with pytest.raises(type(error)):
        World(error, 0).run()
