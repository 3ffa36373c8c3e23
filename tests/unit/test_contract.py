"""The outside contract: its schema holds what decisions note and tell, and can object; docs and flags agree.

tests/integration holds the output of real nodes against the same schema.
"""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import typer

from node.cli.main import app
from node.event_log import EventLog, read_events
from node.http import finite
from node.sim.nodes import NodeSpec, real_state
from node.sim.scenario import make_scenario
from node.sim.trial import Trial
from protocol.chain import Chain
from protocol.commands import Command, Note
from protocol.events import Event
from protocol.manifest import Manifest
from protocol.node_state import NodeState
from protocol.rungs import LADDER, Rung
from protocol.status import snapshot
from protocol.workbench import Workbench
from tests.tools.clock import StepClock
from tests.tools.contract import DOCS, schema, violations

STATUS = {
    "run_id": "tiny-0123456789abcdef",
    "peer": "12D3KooW",
    "pid": 7,
    "incarnation": 1,
    "phase": "training",
    "step": 3,
    "ballot": [1, "12D3KooW"],
    "loss": 5.5,
    "seats": [
        {
            "stage": 1,
            "role": "active",
            "state_id": "ab",
            "step": 3,
            "digest": "cd",
            "optimizer_age": 3,
            "lr_factor": 1.0,
            "generation": 0,
            "provenance": {"rung": "seed"},
        }
    ],
    "view": [{"peer": "QmOther", "stages": [0], "phase": "live", "seen_s": 0.4}],
}
READY = {
    "pid": 7,
    "peer": "12D3KooW",
    "invite": "regrow1:abc",
    "grpc": "127.0.0.1:4000",
    "http": "[::1]:80",
    "state_dir": "d",
}
DEMO = {
    "steps": 20,
    "first_loss": 7.5,
    "last_loss": 6.0,
    "recoveries": 0,
    "block_stages": 4,
    "pids": [1, 2, 3, 4, 5],
}
AT = {"t": 1.0, "wall": 2.0}
ACCUMULATED = AT | {
    "type": "accumulated",
    "stage": 1,
    "microbatch": 0,
    "tokens": 256,
    "ballot": [1, "p"],
    "step": 1,
    "attempt": 0,
}
COMMITTED = AT | {
    "type": "committed",
    "stage": 1,
    "step": 1,
    "state_id": "ab",
    "digest": "cd",
    "contributors": {"p": "ff"},
}
COUNTED = AT | {
    "type": "counted",
    "run": "r-1",
    "step": 1,
    "peer": "p",
    "incarnation": 1,
    "stage": 1,
    "microbatches": "f",
    "tokens": 32,
    "path": ["l" + "0" * 32, "r" + "f" * 32],
    "root": "a" * 32,
}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("status", STATUS),
    ("ready", READY),
    ("demo", DEMO),
    ("event", ACCUMULATED),
    ("event", COMMITTED),
    ("event", COUNTED),
    ("event", AT | {"type": "of a later version"}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("status", STATUS | {"phase": "dreaming"}),
    ("status", STATUS | {"step": -1}),
    ("status", STATUS | {"ballot": [1]}),
    ("status", STATUS | {"seats": [{"stage": 1}]}),
    ("status", STATUS | {"view": [{"peer": "p"}]}),
    ("ready", READY | {"grpc": "127.0.0.1:0"}),
    ("ready", READY | {"invite": "abc"}),
    ("demo", DEMO | {"first_loss": None}),
    ("event", AT | {"type": "accumulated"}),
    ("event", COMMITTED | {"contributors": ["p"]}),
    ("event", COUNTED | {"path": ["x" + "0" * 32]}),
    ("event", {"type": "loss", "step": 1, "value": 1.0, "tokens": 2}),
]


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(("definition", "value"), GOOD)
def test_schema_lets_pass(definition: str, value: dict[str, Any]) -> None:
    assert violations(definition, value) == []
    assert violations(definition, value | {"added_later": 1}) == []


@pytest.mark.parametrize(("definition", "value"), BAD)
def test_schema_objects(definition: str, value: dict[str, Any]) -> None:
    assert violations(definition, value)


@pytest.mark.parametrize(("definition", "value"), GOOD[:6])
def test_no_key_may_be_missing(definition: str, value: dict[str, Any]) -> None:
    for key in value:
        less = copy.deepcopy(value)
        del less[key]
        assert violations(definition, less), key


class Recorder:
    """The production decision object, what it notes and what it tells being kept."""

    def __init__(self, state: NodeState, log: EventLog, told: list[dict[str, Any]]) -> None:
        self._state, self._log, self._told = state, log, told
        self._handled = 0

    @property
    def chain(self) -> Chain:
        return self._state.chain

    @property
    def bench(self) -> Workbench:
        return self._state.bench

    def handle(self, event: Event, now: float) -> list[Command]:
        commands = self._state.handle(event, now)
        for command in commands:
            if isinstance(command, Note):
                self._log.note(command.type, command.fields)
        self._handled += 1
        if self._handled % 100 == 1:
            self._told.append(finite(snapshot(self._state, now)) | {"pid": os.getpid()})
        return commands


SEEDS = (0, 1, 2, 22)
"""In the last one a replica of a stage that has another cannot be reached in the middle of a step."""


def test_simulated_swarms_keep_the_contract(tmp_path: Path) -> None:
    """Every note and status of a few whole runs with a fault each."""
    log = EventLog.open(tmp_path / "events.jsonl", StepClock())
    told: list[dict[str, Any]] = []

    def make_state(manifest: Manifest, spec: NodeSpec, address: str) -> Recorder:
        state = real_state(manifest, spec, address)
        assert isinstance(state, NodeState)
        return Recorder(state, log, told)

    for seed in SEEDS:
        Trial(make_scenario(seed), make_state).run()
    log.close()
    events = read_events(tmp_path / "events.jsonl")
    wrong = {line for event in events for line in violations("event", event)}
    wrong |= {line for status in told for line in violations("status", status)}
    assert not wrong, "\n".join(sorted(wrong)[:20])
    seen = {event["type"] for event in events}
    assert seen >= {"accumulated", "reduced", "committed", "loss", "decided", "joined", "granted", "rerouted"}, seen


def test_rungs_have_one_vocabulary() -> None:
    text = (DOCS / "contract.md").read_text()
    documented = re.findall(r"^\| `([a-z]+)` \| were|^\| `(returned|older_copy)` \|", text, re.MULTILINE)
    told = {first or second for first, second in documented}
    assert told == set(schema()["$defs"]["rung"]["enum"]) == set(get_args(Rung))
    recovered = [r for r in schema()["$defs"]["event"]["allOf"] if r["if"]["properties"]["type"]["const"] == "recovered"]
    assert recovered[0]["then"]["properties"]["rung"]["enum"] == list(LADDER)


def documented_flags(command: str) -> set[str]:
    text = (DOCS / "contract.md").read_text()
    if command in ("start", "join"):
        return set(re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE))
    [line] = re.findall(rf"^    regrow {command} (.*)$", text, re.MULTILINE)
    return set(re.findall(r"--[a-z-]+", line))


@pytest.mark.parametrize("command", ["start", "join", "demo", "init", "debug dump"])
def test_documented_flags_exist(command: str) -> None:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    options = {name for parameter in found.params for name in parameter.opts}
    wanted = documented_flags(command)
    assert len(wanted) >= 3
    assert wanted <= options


def test_documents_name_every_key() -> None:
    text = (DOCS / "contract.md").read_text()
    definitions = schema()["$defs"]
    for name in ("ready", "status", "demo"):
        for key in definitions[name]["required"]:
            assert f'"{key}"' in text, f"{name}.{key}"
    for rule in definitions["event"]["allOf"]:
        assert f"`{rule['if']['properties']['type']['const']}`" in text
