"""What people see of a node, and the arithmetic behind it."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from node.contribution import Contribution
from node.ports import UnusableError
from node.progress import Progress, duration
from node.running import FILE_NAME, Running, read_running
from node.screen import TICK_S, Introduction, Screen
from protocol.commands import Note, Say
from protocol.events import Learned, LearningGoesOn
from protocol.sizes import model_parameters, stage_parameters
from tests.tools.clock import StepClock
from tests.tools.core import a_manifest

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
            screen.tick()
        screen.summary(1_500_000, 900, "7 steps in 2 starts")
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
    assert sum(line.startswith("step ") for line in lines) == 6, "the tick after the one line that was new says nothing"
    ended = "ended: step 7, loss 2.000, up 1m10s, 1.5 MB received, 900 bytes sent; altogether 7 steps in 2 starts"
    assert lines[-1] == ended


def ticks(screen: Screen, clock: StepClock, out: io.StringIO, seconds: int) -> list[tuple[int, str]]:
    """(second, line) of everything that is written while the clock ticks."""
    seen = []
    for second in range(1, seconds + 1):
        before = len(out.getvalue())
        clock.now += TICK_S
        screen.tick()
        seen += [(second, line) for line in out.getvalue()[before:].splitlines()]
    return seen


def test_never_silent_for_more_than_five_seconds_in_the_first_five_minutes() -> None:
    screen, out, clock = plain()
    with screen:
        early = ticks(screen, clock, out, 6)
        screen.say("waiting: stage 2 needs 1 more node")
        waiting = ticks(screen, clock, out, 290)
        late = ticks(screen, clock, out, 600)
    assert early[0] == (4, "starting (4s)")
    times = [0, *(second for second, _ in waiting)]
    assert max(b - a for a, b in pairwise(times)) <= 5
    assert waiting[0] == (4, "waiting: stage 2 needs 1 more node (4s)")
    assert waiting[-1][1].endswith("more node (4m48s)")
    assert 19 <= len(late) <= 24, "later a line every half a minute is enough"


def test_what_is_new_is_said_once_and_waits_are_repeated_with_their_time() -> None:
    screen, out, clock = plain()
    with screen:
        for sentence in ("entering the directory", "training", "training"):
            clock.now += 1
            screen.say(sentence)
        screen.observe_command(Note("loss", dict(loss(5, 2.0))))
        assert out.getvalue().splitlines() == ["entering the directory", "training"]
        clock.now += 1
        screen.observe_command(Note("loss", dict(loss(6, 1.0))))
        assert ticks(screen, clock, out, 4)[-1][1].startswith("step 6  loss 1.000")


def test_the_routine_of_a_run_is_no_news() -> None:
    screen, out, _ = plain()
    with screen:
        for step in (5, 10):
            screen.say("training")
            screen.say(f"evaluating after step {step}")
        screen.say("paused by the organiser")
        screen.say("training")
    assert out.getvalue().splitlines() == ["training", "paused by the organiser", "training"]


def test_in_its_routine_a_run_shows_its_steps_and_how_late_the_next_one_is() -> None:
    screen, out, clock = plain()
    with screen:
        screen.observe_command(Note("loss", dict(loss(7, 2.0))))
        clock.now += 1
        screen.say("evaluating after step 7")
        seen = [line for _, line in ticks(screen, clock, out, 12)]
    assert seen[-2:] == ["step 7  loss 2.000", "step 7  loss 2.000  last step 13s ago"]


@pytest.mark.parametrize(("others", "held"), [(0, "nobody else holds it"), (1, "1 other holds it"), (2, "2 others hold it")])
def test_a_seat_and_why(others: int, held: str) -> None:
    screen, out, _ = plain()
    screen.granted(3, others)
    assert out.getvalue() == f"the run gives this node stage 3: {held}\n"


def test_a_copy_shows_bytes_and_time_left_and_ends_with_one_line() -> None:
    screen, out, clock = plain()
    clock.now += 1000  # the first minutes are over
    with screen:
        for done in range(0, 60, 2):
            clock.now += 1
            left = (60 - done) / 2
            screen.observe_event(LearningGoesOn(3, done * 10**6, 60 * 10**6, left))
            screen.tick()
        for _ in range(2):
            screen.observe_event(Learned(3, "s", 120, "d", 120, 1.0, 0, ("a", "b"), 61_000_000, 31.0))
            screen.observe_event(LearningGoesOn(3, 62 * 10**6, 60 * 10**6, 0.1))
    lines = out.getvalue().splitlines()
    assert lines[0] == "copying stage 3: 60 MB to download"
    assert "copying stage 3: 8.0 MB of 60 MB, about 26s left" in lines
    assert lines[-1] == "stage 3 is here as of step 120: 61 MB from 2 peers in 31s"
    assert 6 <= len(lines) <= 10


def test_a_transfer_without_an_estimate_gets_one_from_its_rate() -> None:
    screen, out, clock = plain()
    with screen:
        screen.transfer("token shards", 0, 10**7)
        assert ticks(screen, clock, out, 4)[-1][1] == "token shards: 0 bytes of 10 MB, for 4s"
        screen.transfer("token shards", 10**6, 10**7)
        assert ticks(screen, clock, out, 4)[-1][1] == "token shards: 1.0 MB of 10 MB, about 1m12s left"
        screen.transfer("token shards", 10**7, 10**7)
        assert ticks(screen, clock, out, 4)[-1][1].startswith("starting")


def test_the_first_work_that_counts_is_said() -> None:
    screen, out, clock = plain()
    manifest = a_manifest()
    screen.contribution = Contribution(manifest, "me")
    with screen:
        for step in (4, 5):
            clock.now += 1
            screen.observe_command(Note("committed", {"stage": 1, "step": step, "contributors": {"me": "f"}}))
            screen.observe_command(Note("loss", dict(loss(step, 2.0))))
        clock.now += 5
        screen.tick()
        screen.summary(0, 0)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if "training since" in line] == [
        "training since step 4: this node's work is in the run's weights"
    ]
    share = stage_parameters(manifest, 1) / model_parameters(manifest)
    assert f"own share {share:.0%}" in out.getvalue()
    assert lines[-1].startswith(
        f"ended: step 5, loss 2.000, 2 steps and 64 tokens computed here, {share:.0%} of the swarm's work"
    )


def test_who_is_lost_is_named() -> None:
    """The steps go on without it, and what is done now stays what it was."""
    screen, out, _ = plain()
    with screen:
        screen.observe_command(Say("training"))
        screen.observe_command(Note("lost", {"stage": 1, "peer": "Qm12345678", "reason": "its digest differs"}))
        screen.observe_command(Say("training"))
    assert out.getvalue().splitlines() == [
        "training",
        "stage 1 has lost peer 12345678: its digest differs",
    ]


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


def test_an_invite_can_be_copied_from_a_narrow_terminal() -> None:
    out = io.StringIO()
    invite = "regrow1:" + "x" * 300
    with Screen(StepClock(), console=Console(file=out, force_terminal=True, width=40, soft_wrap=True)) as screen:
        screen.up(replace(RUNNING, invite=invite))
    assert f"regrow join {invite}\n" in out.getvalue()


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
        screen.summary(0, 0)
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "pid": RUNNING.pid,
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


def test_a_copy_on_its_way_has_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    with Screen(StepClock(), console=Console(file=out, force_terminal=True, width=120)) as screen:
        screen.transfer("copying stage 3", 3_000_000, 12_000_000, 9.0)
    assert "████░░░░░░░░░░░░ copying stage 3: 3.0 MB of 12 MB, about 9s left" in out.getvalue()
    screen, plain_out, clock = plain()
    screen.transfer("copying stage 3", 3_000_000, 12_000_000, 9.0)
    clock.now += 60.0
    screen.tick()
    assert "░" not in plain_out.getvalue()
