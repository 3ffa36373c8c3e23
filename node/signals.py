"""INT, TERM and HUP: the first asks the node to leave, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

ASKED_TO_LEAVE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Before `on_leave` is set a signal cancels the main task; `exit_code` is then 128 + its number."""

    def __init__(self) -> None:
        self.on_leave: Callable[[str], None] | None = None
        self.received: signal.Signals | None = None
        self._main: asyncio.Task[object] | None = None
        self._before: dict[signal.Signals, object] = {}

    @property
    def exit_code(self) -> int:
        """Of a node that was ended before it could leave in order."""
        return 128 + self.received if self.received else 1

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Signals become calls on this loop; the current task is the main one."""
        self._main = asyncio.current_task(loop)
        for number in ASKED_TO_LEAVE:
            loop.add_signal_handler(number, self._receive, number)

    def _receive(self, number: signal.Signals) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        if self.on_leave:
            self.on_leave(f"asked by {number.name}")
        elif self._main:
            self._main.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.on_leave = None
