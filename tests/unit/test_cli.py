"""The command line in this process: help, settings and where they come from, manifests from text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer

from node.cli import node_commands
from node.cli.main import app, main
from node.config import NodeSettings
from node.manifest_file import loads
from node.ports import PeerError, UnusableError
from protocol.invite import Invite, mint
from protocol.version import PROTOCOL_VERSION

INVITE = mint(Invite((f"/ip4/127.0.0.1/tcp/9/p2p/Qm{'a' * 44}",), "d" * 64, "test", ""))


def commands(command: Any = None, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All commands, as words."""
    command = command or typer.main.get_command(app)
    inner = getattr(command, "commands", {})
    return [words] if not inner else [c for name, sub in inner.items() for c in commands(sub, (*words, name))]


def test_there_are_all_commands() -> None:
    wanted = "init,advise,start,join,invite,status,leave,stop,pause,resume,ticket,demo,sim,config,lab forks,lab grid"
    wanted += ",lab report,data prepare,debug dump,monitor,watch"
    assert {" ".join(words) for words in commands()} == set(wanted.split(","))


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_of_every_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr()
    assert f"regrow {' '.join(words)}" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("command", [node_commands.start, node_commands.join, node_commands.show_config])
def test_every_setting_is_an_option_of_every_command_that_takes_settings(command: Callable[..., int]) -> None:
    """The three signatures are written out; none may lack a setting that another one has."""
    settings = {field.name for field in fields(NodeSettings)} - {"json"} | {"as_json", "config"}
    assert set(signature(command).parameters) - {"manifest", "invite", "dry_run"} == settings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["regrow2:abc"], "no invite"),
        ([INVITE, "--listen", "here"], "--listen here"),
        ([INVITE, "--listen", "127.0.0.1:70000"], "65535"),
        ([INVITE, "--listen", "203.0.113.5:0"], "--listen"),
    ],
)
def test_a_monitor_that_cannot_be_is_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", *words]) == 2
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert said in line
    assert shown.out == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"regrow 0.1.0 (protocol {PROTOCOL_VERSION})\n"


def test_settings_and_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('name = "from file"\ndevice = "cpu"\nlisten = "127.0.0.1:1"\n')
    monkeypatch.setenv("REGROW_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("REGROW_DEVICE", "cuda")
    monkeypatch.setenv("REGROW_STAGES", "1")
    words = ["config", "--json", "--config", str(file), "--state-dir", str(tmp_path), "--listen", "127.0.0.1:3"]
    assert main(words) == 0
    shown = capsys.readouterr()
    told = {name: (entry["value"], entry["origin"]) for name, entry in json.loads(shown.out).items()}
    assert told["listen"] == ("127.0.0.1:3", "--listen")
    assert told["device"] == ("cuda", "REGROW_DEVICE")
    assert told["name"] == ("from file", str(file))
    assert told["metrics"] == ("127.0.0.1:28482", "default")
    assert "REGROW_STAGE?" in shown.err
    assert main(words[:1] + words[2:]) == 0
    assert "127.0.0.1:3" in capsys.readouterr().out


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("book") / "book.txt"
    path.write_text("".join(f"chapter {i}: the {i * 7919 % 1000}th word of the {i}th line\n" for i in range(3000)))
    return path


def test_manifest_from_text(book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--block-stages", "2", "--steps", "30", "--policy", "none", "--seed", "9", "--set", "batch.max_in_flight=3"]
    assert main(["init", "--data", str(book), "--out", str(tmp_path / "data"), *words]) == 0
    text = capsys.readouterr().out
    manifest = loads(text, "stdout")
    assert (manifest.num_block_stages, manifest.max_steps, manifest.seed) == (2, 30, 9)
    assert (manifest.recovery.policy, manifest.batch.max_in_flight) == ("none", 3)
    assert all(Path(source).is_file() for source in manifest.data.train[0].sources)
    assert text.count("# ") > 60


def test_manifest_from_prepared_data(book: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data"
    assert main(["data", "prepare", str(book), "--out", str(out), "--vocab-size", "3000"]) == 0
    data_file = capsys.readouterr().out.strip()
    assert data_file == str(out / "data.json")
    assert main(["init", "--preset", "tiny", "--data", data_file]) == 0
    manifest = loads(capsys.readouterr().out, "stdout")
    assert manifest.data.tokenizer is not None
    assert manifest.model.vocab_size >= 2048


def raising(error: BaseException) -> int:
    """What `main` makes of an error inside a command."""

    def broken() -> None:
        raise error

    app.command("broken", hidden=True)(broken)
    try:
        return main(["broken"])
    finally:
        app.registered_commands.pop()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UnusableError(5, "stage 2 is lost"), 5, "stage 2 is lost"),
        (PeerError("QmPeer", "broke off"), 3, "peer QmPeer: broke off"),
        (ValueError("wrong"), 2, "wrong"),
        (FileNotFoundError(2, "No such file", "x.yaml"), 2, "x.yaml: No such file"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ExceptionGroup("tasks", [ExceptionGroup("", [UnusableError(4, "refused")])]), 4, "refused"),
        (UnusableError(2, "a\x1b[2J"), 2, "a?[2J"),
    ],
)
def test_errors_are_one_line(error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(error) == code
    assert capsys.readouterr().err == f"regrow: {line}\n"


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup):
        raising(ExceptionGroup("tasks", [KeyError("ours"), UnusableError(4, "refused")]))
    with pytest.raises(AssertionError):
        raising(AssertionError("ours"))
