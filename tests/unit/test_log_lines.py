"""The log: an object a line for machines, no line twice in a row, nothing over and over; and what people see is as before."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from node import log_lines
from node.log_lines import JsonLog, Limiter, as_json, set_logging, told
from node.running import Running
from node.screen import Introduction, Screen
from node.sim.nodes import Decider, NodeSpec, real_state
from node.sim.scenario import make_scenario
from node.sim.trial import Trial
from protocol.commands import Command, Exit, Note, Say
from protocol.manifest import Manifest
from tests.sim.test_invariants import Twisted
from tests.tools.clock import StepClock

RUNNING = Running(1, "12D3peer", "regrow1:abc", "127.0.0.1:1", "127.0.0.1:2", "/state")


class Log:
    """A screen that writes JSON, and what it wrote."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self.lines: list[str] = []
        self.screen = Screen(self.clock, log=JsonLog(self.clock, self.lines.append))

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def test_a_line_is_one_object() -> None:
    log = Log()
    log.clock.now = 5.0
    fields = {"stage": 2, "peer": "p\n[x]", "reason": "silent for 3 s", "step": 4, "silent_s": 3.0}
    log.screen.observe_command(Note("lost", fields))
    (line,) = log.lines
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    told_ = json.loads(line)
    assert set(told_) == {"t", "level", "event", "ids", "reason"}
    assert (told_["level"], told_["event"], told_["reason"]) == ("warning", "lost", "silent for 3 s")
    assert told_["ids"] == {"stage": 2, "peer": "p\n[x]", "step": 4, "silent_s": 3.0}


def test_a_node_tells_who_it_is_what_it_is_given_and_how_it_ended() -> None:
    log = Log()
    with log.screen as screen:
        screen.introduce(Introduction("run-1", "anna", "12D3peer", "cpu", (2,), "asked for", local=True), last_step=9)
        screen.up(RUNNING)
        screen.observe_command(Note("granted", {"stage": 2, "role": "active", "generation": 0}))
        screen.granted(2, 0)
        screen.observe_command(Say("training"))
        for step in (1, 2):
            log.clock.now += 40
            screen.observe_command(Note("loss", {"step": step, "value": 2.0, "tokens": 64}))
            screen.tick()
            screen.tick()
        screen.observe_command(Exit(0, "left"))
        screen.summary(1, 2)
    events = [line["event"] for line in log.told]
    assert events == ["node", "up", "granted", "state", "progress", "progress", "ended"]
    assert log.told[1]["ids"]["http"] == "127.0.0.1:2"
    assert [line["ids"]["step"] for line in log.told if line["event"] == "progress"] == [1, 2]


def test_a_sentence_that_only_repeats_the_reason_is_left_out() -> None:
    log = Log()
    log.screen.observe_command(Note("voided", {"step": 3, "attempt": 1, "reason": "peer ab: too slow"}))
    log.screen.observe_command(Say("step 3 voided: peer ab: too slow"))
    log.screen.observe_command(Say("waiting for stage 2"))
    assert [(line["event"], line["reason"]) for line in log.told] == [
        ("voided", "peer ab: too slow"),
        ("state", "waiting for stage 2"),
    ]


def test_nothing_is_said_while_nothing_changes() -> None:
    log = Log()
    log.screen.observe_command(Say("waiting for a quorum"))
    for _ in range(100):
        log.clock.now += 10
        log.screen.tick()
        log.screen.observe_command(Say("waiting for a quorum"))
    assert len(log.lines) == 1


@pytest.mark.parametrize("as_log", [True, False])
def test_what_flaps_is_limited_and_counted(as_log: bool) -> None:
    log, out, clock = Log(), io.StringIO(), StepClock()
    screen = log.screen if as_log else Screen(clock, console=Console(file=out, soft_wrap=True))
    clock = log.clock if as_log else clock

    def seen() -> list[str]:
        return [line["reason"] for line in log.told] if as_log else out.getvalue().splitlines()

    for turn in range(50):
        clock.now += 1.0
        screen.observe_command(Say(f"waiting: {turn % 3} of 3 voters answer"))
        screen.observe_command(Say("found them again"))
    assert len(seen()) == 2 * log_lines.MOST_OFTEN
    clock.now += log_lines.WITHIN_S
    screen.observe_command(Say("waiting: 9 of 9 voters answer"))
    held_back = 50 - log_lines.MOST_OFTEN
    assert seen()[-1] == f"waiting: 9 of 9 voters answer ({held_back} more like it since)"


def test_a_limiter_forgets_and_stays_small() -> None:
    limiter = Limiter()
    for number in range(3 * log_lines.MAX_KEYS):
        assert limiter.admit("x" * number, 1.0) == 0
    assert len(limiter._times) == log_lines.MAX_KEYS
    assert told("a", 0) == "a"


def test_the_same_line_does_not_come_twice_in_a_row_to_people() -> None:
    out = io.StringIO()
    screen = Screen(StepClock(), console=Console(file=out, soft_wrap=True))
    for _ in range(3):
        screen.line("once")
    screen.line("other")
    screen.line("once")
    assert out.getvalue().splitlines() == ["once", "other", "once"]


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_what_the_libraries_log_goes_the_same_way(root_logger: logging.Logger) -> None:
    first, log = Log(), Log()
    set_logging(first.screen.log_handler())
    set_logging(log.screen.log_handler(logging.INFO))
    logging.getLogger("some.library").info("disk %s", "full")
    logging.getLogger("some.library").debug("never mind")
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("some.library").exception("the node broke")
    assert not first.lines, "a node that starts again in this process replaces it"
    assert [(line["level"], line["event"], line["reason"]) for line in log.told] == [
        ("info", "log", "disk full"),
        ("error", "log", "the node broke: KeyError: 'x'"),
    ]
    assert log.told[0]["ids"] == {"logger": "some.library"}


def test_what_cannot_be_told_in_a_line_is_left_out() -> None:
    log = Log()
    fields = {"stage": 1, "sources": [{"stage": 2}], "stages": [1, 2], "many": list(range(99)), "to": {"p": "f"}}
    fields["reason"] = "r" * 9999
    log.screen.observe_command(Note("rebuild", fields))
    assert log.told[0]["ids"] == {"stage": 1, "stages": [1, 2]}
    assert len(log.told[0]["reason"]) == log_lines.MAX_REASON_CHARS
    assert json.loads(as_json(1.0, "info", "x", {"path": RUNNING}, ""))["ids"]["path"]


class Told(Twisted):
    """A simulated node that logs all that it decides, both ways."""

    def __init__(self, state: Decider, log: Log, screen: Screen) -> None:
        super().__init__(state, lambda command: [command])
        self._log, self._screen_ = log, screen

    def handle(self, event: Any, now: float) -> list[Command]:
        out = super().handle(event, now)
        self._log.clock.now = now
        for command in out:
            self._log.screen.observe_command(command)
            self._screen_.observe_command(command)
        self._log.screen.tick()
        return out


def same_twice(lines: list[str]) -> list[str]:
    return [line for line, following in pairwise(lines) if line == following]


@pytest.mark.parametrize("seed", [1, 4, 7, 11])
def test_no_line_comes_twice_in_a_row_over_a_run_with_a_fault(seed: int) -> None:
    """Crashes, freezes and restarts, with voids, losses and takeovers: each line of every node is another one than before."""
    logs: list[tuple[Log, io.StringIO]] = []

    def make(manifest: Manifest, spec: NodeSpec, address: str) -> Decider:
        log, out = Log(), io.StringIO()
        logs.append((log, out))
        console = Console(file=out, soft_wrap=True)
        return Told(real_state(manifest, spec, address), log, Screen(log.clock, console=console))

    Trial(make_scenario(seed), make).run()
    assert sum(len(log.lines) for log, _ in logs) > 10
    for log, out in logs:
        without_time = [json.dumps(line | {"t": 0}) for line in log.told]
        assert not same_twice(without_time)
        assert not same_twice(out.getvalue().splitlines())
