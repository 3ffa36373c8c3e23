"""INT, TERM and HUP: the first asks the node to leave, the second ends the process at once.

The handlers are Python's own and not the loop's: they run between two bytecodes even while the loop is busy with an import that
takes seconds. Whatever hangs on the way out, the process ends `EXIT_WITHIN_S` after the first signal. As long as a node is
`abrupt` the first signal counts as the second one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

ASKED_TO_LEAVE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_WITHIN_S = 8.0


class Signals:
    """Once the node is not `abrupt` any more, and before `on_leave` is set, a signal cancels the main task; `exit_code` is then
    128 + its number.

    A context manager, to be entered in the main thread.
    """

    def __init__(self, exit_within_s: float = EXIT_WITHIN_S) -> None:
        self.on_leave: Callable[[str], None] | None = None
        self.received: signal.Signals | None = None
        self.abrupt = True
        """Nothing is open that has to be closed, and slow imports and reading of data are ahead: a signal ends the process."""
        self.left = False
        """The swarm was told and what is left to do is to close: nothing is lost if that is cut short."""
        self._exit_within_s = exit_within_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """Of a node that was ended before it could leave in order."""
        return 128 + self.received if self.received else 1

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that signals are handed to; the current task is the main one. What came earlier counts."""
        self._loop, self._main = loop, asyncio.current_task(loop)
        if self.received is not None:
            self._leave()

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.abrupt or self.received is not None:
            _show_cursor()
            os._exit(128 + number)
        self.received = signal.Signals(number)
        signal.signal(signal.SIGALRM, self._give_up)
        signal.setitimer(signal.ITIMER_REAL, self._exit_within_s)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leave)

    def allow(self, seconds: float) -> None:
        """The node has still so much to do before it goes: what hangs is ended `exit_within_s` after that."""
        if self.received is not None and seconds > 0:
            signal.setitimer(signal.ITIMER_REAL, seconds + self._exit_within_s)

    def _leave(self) -> None:
        assert self.received is not None, "a signal was received"
        if self.on_leave:
            self.on_leave(f"asked by {self.received.name}")
        elif self._main:
            self._main.cancel()

    def _give_up(self, _number: int, _: FrameType | None) -> None:
        os._exit(0 if self.left else self.exit_code)

    def __enter__(self) -> Self:
        for number in ASKED_TO_LEAVE:
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.on_leave = self._loop = None
        if self.received is None:
            for number, handler in self._before.items():
                signal.signal(number, handler)


def _show_cursor() -> None:
    """A live line on a terminal hides it."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")
