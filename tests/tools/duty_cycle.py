"""A process that is stopped most of the time: to the others it is as a machine that computes so much slower."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import TracebackType

STOPPED_S, RUNS_S = 0.08, 0.02


class DutyCycle:
    """While it is entered, SIGSTOP and SIGCONT by turns, so that the process runs a fifth of the time; it runs at the end.
    `send`: how the process gets a signal."""

    def __init__(self, send: Callable[[int], None]) -> None:
        self._send = send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="duty cycle", daemon=True)
        self.num_stops = 0

    def __enter__(self) -> DutyCycle:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.is_set():
            self._send(signal.SIGSTOP)
            self.num_stops += 1
            self._over.wait(STOPPED_S)
            self._send(signal.SIGCONT)
            self._over.wait(RUNS_S)
