"""The virtual-time loop: time jumps, order is fixed; what would hang or touch the outside is an error."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from node.ports import Clock
from node.sim.loop import (
    EPOCH_S,
    START_S,
    DeadlockError,
    LivelockError,
    OutsideWorldError,
    TimeLimitError,
    VirtualClock,
    run_virtual,
)


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run_virtual(main(), limit_s=4000) == pytest.approx(START_S + 3600)
    assert time.monotonic() - began < 60


def test_timers_fire_in_order_at_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, seen = asyncio.get_running_loop(), []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, round(loop.time() - START_S, 9)))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("c", 0.3), ("a", 0.1), ("b", 0.2), ("d", 0.3)):
                group.create_task(wait(name, seconds), name=name)
        return seen

    assert run_virtual(main()) == [("a", 0.1), ("b", 0.2), ("c", 0.3), ("d", 0.3)]


def test_timeouts_count_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.sleep(100)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(START_S + 2.5)


def test_deadlock_names_the_tasks_and_where_they_wait() -> None:
    async def waits_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_nobody(), name="stuck")

    with pytest.raises(DeadlockError, match=r"stuck in .*waits_for_nobody"):
        run_virtual(main())


def test_cleaning_up_after_a_deadlock_still_runs() -> None:
    cleaned = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            cleaned.append(True)

    with pytest.raises(DeadlockError):
        run_virtual(main(), limit_s=1)
    assert cleaned


def test_limit_of_virtual_time() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(TimeLimitError, match=r"10\.000 s"):
        run_virtual(main(), limit_s=10)


def test_time_that_stands_still_is_noticed() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(LivelockError):
        run_virtual(main())


async def _connect() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _listen() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)


async def _thread() -> None:
    await asyncio.to_thread(time.monotonic)


async def _process() -> None:
    await asyncio.create_subprocess_exec("true")


@pytest.mark.parametrize("act", [_connect, _listen, _thread, _process])
def test_the_outside_world_is_refused(act: object) -> None:
    assert callable(act)
    with pytest.raises(OutsideWorldError):
        run_virtual(act())


def test_a_foreign_thread_is_refused() -> None:
    caught: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def intrude() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except OutsideWorldError as error:
                caught.append(error)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    run_virtual(main())
    assert caught


def test_errors_of_the_program_come_through() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main())


def test_the_clock_is_the_loops() -> None:
    async def main() -> tuple[float, float]:
        clock: Clock = VirtualClock(skew_s=2.0)
        await clock.sleep(7)
        return clock.monotonic(), clock.wall()

    monotonic, wall = run_virtual(main())
    assert monotonic == pytest.approx(START_S + 7)
    assert wall == pytest.approx(EPOCH_S + START_S + 9)
