"""What a node decided can be decided again from its recording alone."""

from __future__ import annotations

import json
from collections import defaultdict
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from node.ports import UnusableError
from node.recording import Recording, heading, line_of, replay
from node.sim.mixed import Mixed
from node.sim.mixture import Mixture, Options
from node.sim.nodes import Decider, NodeSpec
from protocol.commands import Command
from protocol.events import Event, Tick
from protocol.ids import Member
from protocol.manifest import Manifest
from protocol.node_state import NodeConfig, NodeState


class Recorded:
    """As `node.runtime` records."""

    def __init__(self, state: NodeState, lines: list[str]) -> None:
        self._state, self._lines = state, lines

    def handle(self, event: Event, now: float) -> list[Command]:
        commands = self._state.handle(event, now)
        self._lines.append(line_of(event, now, commands))
        return commands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


@pytest.fixture(scope="module")
def recordings() -> dict[str, list[str]]:
    """Of all nodes of a swarm to which this and that happens."""
    lines: dict[str, list[str]] = defaultdict(list)

    def make(manifest: Manifest, spec: NodeSpec, address: str) -> Decider:
        config = NodeConfig(manifest, spec.member, spec.name, address, spec.founder, spec.wished_stage, spec.memory_bytes)
        mine = lines[address]
        mine.append(heading(config))
        return Recorded(NodeState(config), mine)

    Mixed(Options(5, 8), make).run()
    return lines


def test_every_node_decides_the_same_again(recordings: dict[str, list[str]]) -> None:
    for lines in recordings.values():
        replayed = replay(lines)
        assert replayed.events == len(lines) - 1
    assert max(len(lines) for lines in recordings.values()) > 200


def test_a_torn_last_line_is_left_out(recordings: dict[str, list[str]]) -> None:
    lines = next(iter(recordings.values()))
    assert replay([*lines[:50], lines[50][:-5]]).events == 49


def test_another_decision_is_noticed(recordings: dict[str, list[str]]) -> None:
    lines = next(found for found in recordings.values() if any('"Decide"' in line for line in found))
    changed = [lines[0]]
    for line in lines[1:]:
        told = json.loads(line)
        if told["event"]["$"] == "MessageReceived" and told["event"]["message"]["$"] == "Decide":
            told["event"]["message"]["record"]["step"] += 1
        changed.append(json.dumps(told))
    with pytest.raises(ValueError, match=r"line \d+: .* led to other commands"):
        replay(changed)


def test_a_disk_that_is_full_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "recording-1.jsonl").symlink_to("/dev/full")
    mixture = Mixture(Options(5, 8))
    config = NodeConfig(mixture.manifest, Member("a", 1), "a", "a:1")
    with pytest.raises(UnusableError, match=r"cannot write .*recording-1.jsonl: No space left"):
        Recording(tmp_path, config, print)


def test_a_disk_that_gets_full_ends_the_recording_only(tmp_path: Path) -> None:
    said: list[str] = []
    mixture = Mixture(Options(5, 8))
    with Recording(tmp_path, NodeConfig(mixture.manifest, Member("a", 1), "a", "a:1"), said.append) as recording:
        recording._file.close()
        recording._file = FileIO("/dev/full", "w")
        for now in (1.0, 2.0):
            recording.note(Tick(), now, [])
    assert said == ["the recording ends here: No space left on device"]


def test_something_else_is_no_recording() -> None:
    for lines in ([], ["{}"], ['{"now": 1.0}']):
        with pytest.raises(ValueError, match="line 1"):
            replay(lines)
