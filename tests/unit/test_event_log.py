"""The event log: one write a line, survives kills and full disks, goes on after both."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.event_log import EventLog, EventTail, read_events
from node.ports import UnusableError
from tests.tools.clock import StepClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_lines_carry_time_type_and_fields(path: Path) -> None:
    log = EventLog.open(path, StepClock())
    log.note("loss", {"step": 3, "value": 2.5, "tokens": 64})
    assert path.read_bytes() == b'{"t":100.0,"wall":100.0,"type":"loss","step":3,"value":2.5,"tokens":64}\n'
    log.close()


def test_goes_on_after_a_torn_line(path: Path) -> None:
    path.write_bytes(b'{"type":"joined"}\n{"type":"comm')
    log = EventLog.open(path, StepClock())
    log.note("left", {})
    log.note("left", {})
    log.close()
    assert [event["type"] for event in read_events(path)] == ["joined", "left", "left"]
    assert path.read_bytes().count(b"\n") == 4


def test_not_finite_numbers_stay_json(path: Path) -> None:
    log = EventLog.open(path, StepClock())
    log.note("loss", {"value": math.nan, "norms": [1.0, math.inf]})
    log.close()
    [line] = path.read_text().splitlines()
    event = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert event["value"] == "nan"
    assert event["norms"] == [1.0, "inf"]


def test_full_disk_is_reported_once_and_counted() -> None:
    said: list[str] = []
    log = EventLog.open(Path("/dev/full"), StepClock(), said.append)
    for step in range(3):
        log.note("committed", {"step": step})
    log.close()
    assert log.num_dropped == 3
    assert len(said) == 1
    assert "No space left" in said[0]


@pytest.fixture
def limited() -> Iterator[int]:
    """No file of this process grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, before[1]))
    yield 150
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_fits_in_part_is_ended_later(path: Path, limited: int) -> None:
    said: list[str] = []
    log = EventLog.open(path, StepClock(), said.append)
    for step in range(4):
        log.note("committed", {"step": step})
    assert path.stat().st_size == limited
    assert log.num_dropped == 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    log.note("committed", {"step": 4})
    log.close()
    assert [event["step"] for event in read_events(path)] == [0, 1, 4]
    assert len(said) == 2
    assert "2 lines are missing" in said[1]


@pytest.mark.parametrize("where", ["missing/events.jsonl", "."])
def test_unusable_place_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(UnusableError, match="--state-dir") as raised:
        EventLog.open(tmp_path / where, StepClock())
    assert raised.value.code == 2


def test_notes_after_close_are_counted(path: Path) -> None:
    log = EventLog.open(path, StepClock())
    log.close()
    log.note("left", {})
    assert log.num_dropped == 1


def test_tail_gives_each_whole_line_once(path: Path) -> None:
    tail = EventTail(path)
    assert tail.read() == []
    path.write_bytes(b'{"type":"joined"}\n{"type":')
    assert [event["type"] for event in tail.read()] == ["joined"]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b'"left"}\n')
    assert [event["type"] for event in tail.read()] == ["left"]


def test_nothing_but_the_last_line_is_lost_on_kill(path: Path) -> None:
    """A process notes and kills itself: what it noted is there, without any close or flush."""
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom node.event_log import EventLog\n"
        "class C:\n    monotonic = wall = lambda self: 0.0\n"
        "log = EventLog.open(Path(sys.argv[1]), C())\n"
        "for i in range(50): log.note('accumulated', {'microbatch': i})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", program, str(path)]
    ended = subprocess.run(command, check=False, env=environment, timeout=30)
    assert ended.returncode == -signal.SIGKILL
    assert [event["microbatch"] for event in read_events(path)] == list(range(50))
