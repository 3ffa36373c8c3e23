"""What people see of a node, and the arithmetic behind it."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from node.ports import UnusableError
from node.progress import Progress, duration
from node.running import FILE_NAME, Running, read_running
from node.screen import Introduction, Screen
from protocol.commands import Note, Say
from tests.tools.clock import StepClock

RUNNING = Running(os.getpid(), "12D3peer", "regrow1:xyz", "127.0.0.1:1", "127.0.0.1:2", "state")


def loss(step: int, value: float) -> dict[str, float]:
    return {"step": step, "value": value, "tokens": 100}


def test_progress_counts_each_step_once() -> None:
    progress = Progress(last_step=100)
    for step in range(1, 11):
        for _ in range(2):
            progress.note("loss", loss(step, 10.0 - step), now=2.0 * step)
    assert progress.num_tokens == 1000
    assert (progress.first_loss, progress.last_loss) == (7.0, 2.0)
    assert progress.tokens_per_s == 50.0
    assert progress.eta_s == 180.0
    assert progress.sentence() == "step 10/100  loss 0.000  50 tokens/s  3m00s left"


def test_progress_before_anything_happened() -> None:
    progress = Progress()
    assert progress.sentence() == "step 0"
    assert progress.tokens_per_s is progress.eta_s is progress.share is progress.first_loss is None
    progress.note("loss", loss(1, 3.0), now=1.0)
    assert progress.tokens_per_s is None


def test_share_of_own_stages() -> None:
    progress = Progress(peer="me")
    fields = {"step": 1, "stage": 1, "contributors": {"me": "3", "other": "c"}}
    for _ in range(2):
        progress.note("committed", fields, now=0.0)
    passive = {"step": 1, "stage": 0, "contributors": {"other": "f"}}
    progress.note("committed", passive, now=0.0)
    assert progress.share == 0.5


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (75, "1m15s"), (59.7, "1m00s"), (7300, "2h01m")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def plain() -> tuple[Screen, io.StringIO, StepClock]:
    out, clock = io.StringIO(), StepClock()
    return Screen(clock, console=Console(file=out, soft_wrap=True)), out, clock


def test_plain_lines_where_there_is_no_terminal() -> None:
    screen, out, clock = plain()
    who = Introduction("run-1", "anna [x]", "12D3peer", "cpu", (2,), "it was the slowest")
    with screen:
        screen.introduce(who, last_step=9)
        screen.up(RUNNING)
        for step in range(1, 8):
            clock.now += 10
            screen.observe_command(Note("loss", dict(loss(step, 2.0))))
            screen.observe_command(Say("training"))
        screen.summary()
    lines = out.getvalue().splitlines()
    assert lines[:4] == [
        "run: run-1",
        "node: anna [x] (12D3peer)",
        "device: cpu",
        "stage: 2 (it was the slowest)",
    ]
    assert sum("no code from elsewhere" in line for line in lines) == 1
    assert "others join with: regrow join regrow1:xyz" in lines
    assert lines.count("training") == 1
    assert sum(line.startswith("step ") for line in lines) == 3
    assert lines[-1] == "ended: step 7, 700 tokens, loss 2.000, up 1m10s"


def test_a_terminal_gets_a_live_line_and_names_as_they_are() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Screen(StepClock(), console=console) as screen:
        screen.introduce(Introduction("run-1", "[red]a", "12D3peer", "cpu", (), ""), 9)
        screen.observe_command(Note("loss", dict(loss(3, 2.0))))
        screen.log_handler().emit(logging.LogRecord("x", logging.ERROR, "f", 1, "disk [/]", (), None))
    text = out.getvalue()
    assert "[red]a" in text
    assert "step 3/9  loss 2.000" in text
    assert "error: disk [/]" in text


def test_what_peers_say_cannot_drive_the_terminal() -> None:
    screen, out, _ = plain()
    screen.say("bad tensor from \x1b[2Jevil\n\x07" + "x" * 5000)
    assert out.getvalue().startswith("bad tensor from ?[2Jevil??xxx")
    assert len(out.getvalue()) < 2100


def test_json_is_the_only_thing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(StepClock(), as_json=True) as screen:
        screen.introduce(Introduction("run-1", "", "12D3peer", "cpu", (1,), "asked for", local=True), 9)
        screen.up(RUNNING)
        screen.say("waiting for stage 2")
        screen.summary()
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "pid": os.getpid(),
        "peer": "12D3peer",
        "invite": "regrow1:xyz",
        "grpc": "127.0.0.1:1",
        "http": "127.0.0.1:2",
        "state_dir": "state",
    }
    assert captured.out.count("\n") == 1
    assert "waiting for stage 2" in captured.err


def test_a_running_node_is_found_by_its_state_directory(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(RUNNING.line())
    assert read_running(tmp_path) == RUNNING


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 3, "no node runs"),
        ("{", 2, "damaged"),
        ('{"pid": 1}', 2, "damaged"),
        ("gone", 3, "is gone"),
    ],
)
def test_no_running_node(tmp_path: Path, content: str | None, code: int, words: str) -> None:
    if content == "gone":
        content = Running(dead_pid(), "p", "i", "g", "h", "s").line()
    if content is not None:
        (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(UnusableError, match=words) as raised:
        read_running(tmp_path)
    assert raised.value.code == code
    with pytest.raises(UnusableError, match="no state directory"):
        read_running(tmp_path / "missing")
