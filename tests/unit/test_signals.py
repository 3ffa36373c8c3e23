"""Signals to a process that hangs: in an import, on its way out, or while it waits for its loop."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUSY = """
import asyncio, sys, time
from node.signals import Signals

def hang():
    print("here", flush=True)
    time.sleep(60)

async def main(signals):
    signals.watch(asyncio.get_running_loop())
    signals.abrupt = {abrupt}
    {body}

with Signals(exit_within_s={limit_s}) as signals:
    try:
        asyncio.run(main(signals))
    except asyncio.CancelledError:
        sys.exit(signals.exit_code)
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def after_signals(body: str, *numbers: int, limit_s: float = 30.0, abrupt: bool = False) -> int:
    """Exit code (128+n for a signal) of the program, sent the signals once it says that it is there."""
    program = BUSY.format(body=body, limit_s=limit_s, abrupt=abrupt)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            for number in numbers:
                assert process.stdout.readline() == "here\n"
                process.send_signal(number)
            code = process.wait(timeout=20)
        finally:
            process.kill()
    return code if code >= 0 else 128 - code


@pytest.mark.parametrize("number", SIGNALS)
def test_first_one_cancels_the_main_task(number: int) -> None:
    assert after_signals('print("here", flush=True); await asyncio.sleep(60)', number) == 128 + number


def test_first_one_is_told_to_who_can_leave_in_order() -> None:
    body = """
    done = asyncio.Event()
    signals.on_leave = lambda reason: (print(reason, file=sys.stderr), done.set())
    print("here", flush=True)
    await done.wait()"""
    assert after_signals(body, signal.SIGTERM) == 0


def test_second_one_ends_a_busy_process() -> None:
    """The loop does not run: what the first one asks for cannot happen."""
    body = """
    signals.on_leave = lambda reason: None
    print("here", flush=True)
    while signals.received is None:
        time.sleep(0.01)
    hang()"""
    assert after_signals(body, signal.SIGTERM, signal.SIGHUP) == 128 + signal.SIGHUP


@pytest.mark.parametrize("number", SIGNALS)
def test_first_one_ends_who_has_nothing_open(number: int) -> None:
    assert after_signals("hang()", number, abrupt=True) == 128 + number


def test_who_hangs_after_the_first_one_is_ended() -> None:
    assert after_signals("hang()", signal.SIGINT, limit_s=0.2) == 130


def test_who_hangs_after_having_left_has_left() -> None:
    assert after_signals("signals.left = True; hang()", signal.SIGTERM, limit_s=0.2) == 0
