"""`regrow sim` in this process."""

from __future__ import annotations

import json

import pytest

from node.cli.main import main

SMALL = ["sim", "--seed", "5", "--nodes", "5"]


def test_it_tells_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--faults", "slow,join", "--limit", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 5: 5 nodes, ")
    assert any("lines left out" in line for line in lines)
    assert lines[-1].startswith("held: went on; ")


def test_json_is_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--faults", "none", "--json"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert (told["seed"], told["held"], told["verdict"], told["fired"]) == (5, True, "went on", {})
    assert "commits" in shown.err


@pytest.mark.parametrize("life", ["static", "leaving", "takeover-open"])
def test_narrow_lives(life: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seed", "1", "--life", life]) == 0
    assert "held: " in capsys.readouterr().out


def test_what_broke_is_said_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("protocol.proposal.is_quorum", lambda *_: True)
    assert main(["sim", "--seed", "3"]) == 1
    shown = capsys.readouterr()
    assert "BROKEN: " in shown.err
    assert "replay: regrow sim --seed 3\n" in shown.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--nodes", "3"], "--nodes 3: a simulated swarm has 4 to 1000 nodes"),
        (["--faults", "kill,fire"], "--faults fire: there is no such fault; there are kill, "),
        (["--faults", ""], "--faults : there is no such fault; there are kill, "),
        (["--life", "short"], "--life short: there is no such life; there are mixed, static, "),
        (["--life", "churn", "--nodes", "9"], "--life churn has nodes and faults of its own"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
    ],
)
def test_bad_input_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seed", "1", *words]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"regrow: {line}")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
