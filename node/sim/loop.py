"""An asyncio event loop on virtual time: real coroutines, no waiting, no sockets, no threads.

When nothing is ready the clock jumps to the next timer, so an hour of timeouts costs what its callbacks cost.
The order of callbacks depends on nothing outside the program. What would wait for ever is an error here:

SimulationError
+- DeadlockError      nothing is ready and no timer is set
+- TimeLimitError     the next timer lies beyond the limit
+- LivelockError      callbacks follow callbacks and time never passes
+- OutsideWorldError  the program asked for a socket, a thread, a process, a signal or a file descriptor
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_S = 1000.0
"""Where virtual time begins; not 0, which would hide a forgotten offset."""
EPOCH_S = 1_750_000_000.0
"""Wall-clock time at which the virtual monotonic clock would read 0."""
MAX_ROUNDS_AT_ONE_TIME = 200_000


class SimulationError(RuntimeError):
    """The simulated program did something that cannot go on."""


class DeadlockError(SimulationError):
    """Nothing is ready and no timer is set: every task waits for another one."""


class TimeLimitError(SimulationError):
    """The program is not done within the virtual time that it was given."""


class LivelockError(SimulationError):
    """The loop is always busy and time stands still."""


class OutsideWorldError(SimulationError):
    """The program reached for something that does not exist in the simulated world."""


class _Jump:
    """Stands where a selector would: waiting means setting the loop's clock forward."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.pass_time(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. Use `run_virtual`, or `asyncio.Runner(loop_factory=VirtualLoop)`."""

    def __init__(self, limit_s: float = math.inf) -> None:
        super().__init__()
        self._selector = _Jump(self)
        self._clock_resolution = 1e-9
        self._now = START_S
        self._deadline = START_S + limit_s
        self._rounds = 0
        self._thread = threading.get_ident()

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def lift_limit(self) -> None:
        """Give cleaning up all the time that it wants."""
        self._deadline = math.inf

    def pass_time(self, timeout: float | None) -> None:
        """Called once per round of callbacks; `timeout` is 0 if more are ready, None without any timer."""
        if timeout is None:
            raise DeadlockError(f"nothing is ready and no timer is set at {self._now:.3f} s; {self._waiting()}")
        if timeout <= 0:
            self._rounds += 1
            if self._rounds > MAX_ROUNDS_AT_ONE_TIME:
                raise LivelockError(f"{self._rounds} rounds of callbacks and it is still {self._now:.3f} s; {self._waiting()}")
            return
        self._rounds = 0
        if self._now + timeout > self._deadline:
            raise TimeLimitError(f"not done at the limit of {self._deadline - START_S:.3f} s; {self._waiting()}")
        self._now += timeout

    def _waiting(self) -> str:
        lines = []
        for task in sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()):
            frames = task.get_stack(limit=1)
            where = f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "not started"
            lines.append(f"{task.get_name()} in {where}")
        return "tasks: " + ("; ".join(lines) or "none")

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing: there are no file descriptors."""

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """`call_soon`; from another thread an error."""
        if threading.get_ident() != self._thread:
            raise OutsideWorldError("a thread called into the virtual loop")
        return self.call_soon(callback, *args, context=context)


def _forbid(name: str, what: str) -> None:
    def refuse(self: VirtualLoop, *_args: Any, **_options: Any) -> NoReturn:
        raise OutsideWorldError(f"loop.{name}: there {what} on the virtual loop")

    setattr(VirtualLoop, name, refuse)


for _name in (
    "create_connection create_server create_datagram_endpoint create_unix_connection create_unix_server"
    " connect_accepted_socket start_tls sendfile getaddrinfo getnameinfo sock_recv sock_recv_into"
    " sock_recvfrom sock_recvfrom_into sock_sendall sock_sendto sock_connect sock_accept sock_sendfile"
).split():
    _forbid(_name, "are no sockets")
for _name in (
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "connect_read_pipe",
    "connect_write_pipe",
):
    _forbid(_name, "are no file descriptors")
for _name in ("subprocess_exec", "subprocess_shell"):
    _forbid(_name, "are no processes")
for _name in ("run_in_executor", "set_default_executor"):
    _forbid(_name, "are no threads")
for _name in ("add_signal_handler", "remove_signal_handler"):
    _forbid(_name, "are no signals")


def run_virtual(main: Coroutine[Any, Any, T], *, limit_s: float = 3600.0) -> T:
    """Run `main` to its end on a new virtual loop and return its result.

    Raises what `main` raises, or a `SimulationError` where it would wait for ever or past `limit_s` virtual
    seconds. In either case all tasks are cancelled and awaited first, as `asyncio.run` does.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(limit_s)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        try:
            return runner.run(main)
        finally:
            loop.lift_limit()


class VirtualClock:
    """`node.ports.Clock` of the running virtual loop. `skew_s`: how far this node's wall clock is off."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self._skew_s = skew_s

    def monotonic(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """Virtual seconds since a fixed epoch, plus the skew."""
        return EPOCH_S + self._skew_s + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)
