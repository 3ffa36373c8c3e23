"""Bad input from outside: the contract's exit code, one line, never a traceback, nothing lost.

Each command is a real process; most are forks of this one, which saves the imports.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from node.identity import IDENTITY_FILE, StateLock, load_or_create
from node.keys import OrganiserKey
from protocol.invite import Invite, mint
from protocol.version import PROTOCOL_VERSION
from tests.tools.command import forked, refused, regrow
from tests.tools.material import tiny, write_manifest

PEER = "QmWk4D3inzEH9vrPWamP7Em63XkB36wmQEyRn9JJL2mHN2"
BAD_USE, UNREACHABLE, REFUSED = 2, 3, 4
ANY_PORTS = ("--listen", "127.0.0.1:0", "--dht-port", "0", "--metrics", "127.0.0.1:0")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("run"))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def invite_to(address: str, version: int = PROTOCOL_VERSION) -> str:
    return mint(Invite((address,), "ab" * 32, "run", "", version))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


GOOD_INVITE = invite_to(f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}")


# --- invites


@pytest.mark.parametrize(
    ("invite", "words"),
    [
        ("", "no invite"),
        ("hello", "no invite"),
        ("http://127.0.0.1:80", "no invite"),
        (GOOD_INVITE[:40], "truncated"),
        (GOOD_INVITE[:-1], "copy"),
        (GOOD_INVITE[:20] + ("A" if GOOD_INVITE[20] != "A" else "B") + GOOD_INVITE[21:], "copy"),
        (GOOD_INVITE[:20] + "é" + GOOD_INVITE[21:], "mistyped"),
        (GOOD_INVITE + GOOD_INVITE[-4:], "mistyped"),
        (invite_to(f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}", PROTOCOL_VERSION + 1), "protocol version"),
    ],
    ids=["empty", "word", "url", "cut", "last", "typo", "foreign", "doubled", "version"],
)
def test_bad_invite(invite: str, words: str, state: Path) -> None:
    assert words in refused(BAD_USE, "join", invite, "--state-dir", state)
    assert not state.exists()


def test_a_process_of_its_own_says_the_same(state: Path) -> None:
    args = ("join", GOOD_INVITE[:40], "--state-dir", state)
    assert regrow(*args) == forked(*args)


@pytest.mark.parametrize("args", [("join", GOOD_INVITE[:40]), ("start", "no.yaml")], ids=["join", "start"])
def test_with_a_log_in_json_it_is_said_in_json(args: tuple[str, ...], state: Path) -> None:
    ended = forked(*args, "--state-dir", state, "--log-json")
    told = json.loads(ended.line)
    assert (ended.code, ended.out) == (BAD_USE, "")
    assert (told["level"], told["event"]) == ("error", "failed")
    assert told["reason"]


def test_bad_invite_for_status() -> None:
    assert "truncated" in refused(BAD_USE, "status", GOOD_INVITE[:40])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "--peer PEERID"),
        (("--peer", PEER, "--bearer"), "name one of them"),
        (("--peer", "anna"), "no peer id"),
        (("--peer", PEER, "--valid-days", "0"), "--valid-days"),
        (("--peer", PEER), "name the run by its invite"),
        ((GOOD_INVITE, "--peer", PEER), "--key FILE"),
        ((GOOD_INVITE, "--peer", PEER, "--key", "KEY"), "is not the key of"),
        ((GOOD_INVITE[:40], "--peer", PEER, "--key", "KEY"), "truncated"),
        ((GOOD_INVITE, "--peer", PEER, "--key", "nowhere.key"), "nowhere.key"),
    ],
)
def test_bad_ticket_command(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    key = OrganiserKey.create(tmp_path / "organiser.key").path
    assert words in refused(BAD_USE, "ticket", *(str(key) if arg == "KEY" else arg for arg in args))


@pytest.mark.parametrize("ticket", ["hello", "regrow-ticket1:", "regrow-ticket1:a.b.c.d.e.f.g.00000000", GOOD_INVITE])
def test_ticket_that_cannot_be_read(ticket: str, state: Path) -> None:
    assert "--ticket: " in refused(BAD_USE, "join", GOOD_INVITE, "--ticket", ticket, "--state-dir", state)


def test_nobody_at_the_invites_address(state: Path) -> None:
    port = free_port()
    invite = invite_to(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}")
    ended = regrow("join", invite, "--state-dir", state, *ANY_PORTS, "--bootstrap-timeout-s", "3", "--json")
    assert (ended.code, ended.out) == (UNREACHABLE, ""), ended.err
    [line] = [line for line in ended.err.splitlines() if line.startswith("regrow: ")]
    assert str(port) in line
    assert not list(state.glob("*.sock*"))


# --- addresses and ports


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--announce", "203.0.113.5:0"], "port 0"),
        (["--announce", "0.0.0.0:4000"], "0.0.0.0"),
        (["--announce", "somewhere"], "HOST:PORT"),
        (["--dht-announce", "203.0.113.5:4000"], "/ip4/"),
        (["--dht-announce", "/ip4/0.0.0.0/tcp/4000"], "0.0.0.0"),
        (["--listen", "127.0.0.1"], "HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "65535"),
        (["--metrics", "127.0.0.1:x"], "--metrics"),
        (["--device", "abacus"], "abacus"),
        (["--stage", "many"], "--stage"),
        (["--stage", "-2"], "--stage"),
        (["--log-level", "loud"], "--log-level"),
        (["--speed", "11"], "--speed"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_bad_flag(flags: list[str], words: str, manifest: Path, state: Path) -> None:
    assert words in refused(BAD_USE, "start", manifest, "--state-dir", state, *flags)
    assert not state.exists()


def test_a_stage_that_the_run_does_not_have(manifest: Path, state: Path) -> None:
    assert "has stages 0 to" in refused(BAD_USE, "start", manifest, "--state-dir", state, "--stage", "64")


@pytest.mark.parametrize("flag", ["--listen", "--dht-port", "--metrics"])
def test_port_in_use(flag: str, taken_port: int, manifest: Path, state: Path) -> None:
    ports = {"--listen": "127.0.0.1:0", "--dht-port": "0", "--metrics": "127.0.0.1:0"}
    ports[flag] = f"{taken_port}" if flag == "--dht-port" else f"127.0.0.1:{taken_port}"
    words = [word for pair in ports.items() for word in pair]
    ended = regrow("start", manifest, "--state-dir", state, "--json", *words)
    assert (ended.code, ended.out) == (BAD_USE, ""), ended.err
    [line] = [line for line in ended.err.splitlines() if line.startswith("regrow: ")]
    assert str(taken_port) in line
    assert flag in line


def test_bad_variable_and_config_file(manifest: Path, tmp_path: Path, state: Path) -> None:
    line = refused(BAD_USE, "start", manifest, "--state-dir", state, env={"REGROW_DHT_PORT": "lots"})
    assert "REGROW_DHT_PORT" in line
    config = tmp_path / "config.toml"
    config.write_text('lissten = "127.0.0.1:0"\n')
    line = refused(BAD_USE, "start", manifest, "--state-dir", state, "--config", config)
    assert "did you mean listen?" in line


# --- identity


def test_same_identity_twice(manifest: Path, state: Path) -> None:
    with StateLock.take(state):
        line = refused(BAD_USE, "start", manifest, "--state-dir", state, "--json")
    assert str(state) in line
    assert str(os.getpid()) in line


@pytest.mark.parametrize("kept", [0, 1, 100])
def test_broken_identity_is_not_replaced(kept: int, manifest: Path, state: Path) -> None:
    state.mkdir()
    path = load_or_create(state).path
    assert path.name == IDENTITY_FILE
    rest = path.read_bytes()[:kept]
    path.write_bytes(rest)
    line = refused(BAD_USE, "start", manifest, "--state-dir", state, "--json")
    assert str(path) in line
    assert path.read_bytes() == rest


def test_state_dir_that_cannot_be(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "file" in refused(BAD_USE, "start", manifest, "--state-dir", tmp_path / "file")
    assert "/proc" in refused(BAD_USE, "start", manifest, "--state-dir", "/proc/regrow")


# --- manifests


def changed(path: Path, **changes: Any) -> Path:
    """A manifest with these changes, written without looking at it."""
    path.mkdir(exist_ok=True)
    out = path / "run.yaml"
    out.write_text(yaml.safe_dump(tiny(path, **changes)))
    return out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer__lr": 0.1}, "optimizer.lr"),
        ({"num_block_stages": 3}, "block stages"),
        ({"num_block_stages": 0}, "num_block_stages"),
        ({"recovery__policy": "checkfree_plus"}, "checkfree_plus"),
        ({"recovery__policy": "prayer"}, "recovery.policy"),
        ({"batch__global_samples": 7}, "global_samples 7"),
        ({"batch__microbatch_samples": 0}, "microbatch_samples"),
        ({"batch__context_tokens": 64}, "context_tokens 64"),
        ({"start_replicas": 5}, "start_replicas"),
        ({"model__hidden_size": 15}, "hidden_size 15"),
        ({"model__num_key_value_heads": 3}, "num_key_value_heads"),
        ({"optimizer__learning_rate": float("nan")}, "learning_rate"),
        ({"optimizer__learning_rate": float("inf")}, "learning_rate"),
        ({"optimizer__beta1": 1.0}, "beta1"),
        ({"max_steps": -1}, "max_steps"),
        ({"protocol_version": PROTOCOL_VERSION + 1}, "protocol_version"),
        ({"data__train": []}, "data.train"),
        ({"name": "No Slug"}, "name"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_impossible_manifest(changes: dict[str, Any], words: str, tmp_path: Path, state: Path) -> None:
    path = changed(tmp_path / "run", **changes)
    line = refused(BAD_USE, "start", path, "--state-dir", state, "--json")
    assert str(path) in line
    assert words in line


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"a: [", b"\xff\xfe\x00", b"name: a\nname: b\n"], ids=repr)
def test_file_that_is_no_manifest(content: bytes, tmp_path: Path, state: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    assert str(path) in refused(BAD_USE, "start", path, "--state-dir", state)


def test_manifest_that_is_not_there(tmp_path: Path, state: Path) -> None:
    for _ in range(2):  # a start that failed is no visit that the next one would speak of
        assert "no such file" in refused(BAD_USE, "start", tmp_path / "none.yaml", "--state-dir", state)
    assert "is a directory" in refused(BAD_USE, "start", tmp_path, "--state-dir", state)


# --- data


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(data[:-101])
        case "directory":
            path.unlink()
            path.mkdir()
        case "other":
            path.write_bytes(bytes(len(data)))


@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "directory", "other"])
def test_data_that_are_not_what_the_manifest_says(how: str, tmp_path: Path, state: Path) -> None:
    path = write_manifest(tmp_path / "run")
    spoil(tmp_path / "run" / "train.bin", how)
    line = refused(BAD_USE, "start", path, "--state-dir", state, "--stage", "0", "--json")
    assert "data.train[0]" in line
    assert "train.bin" in line


def test_ids_above_the_vocabulary(tmp_path: Path, state: Path) -> None:
    import blake3

    values = tiny(tmp_path)
    ids = np.zeros(20_000, "<u2")
    ids[12_345] = 64
    (tmp_path / "train.bin").write_bytes(ids.tobytes())
    values["data"]["train"][0]["digest"] = blake3.blake3(ids.tobytes()).hexdigest()
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    line = refused(BAD_USE, "start", tmp_path / "run.yaml", "--state-dir", state, "--stage", "0", "--json")
    for words in ("train.bin", "12345", "64"):
        assert words in line.replace(",", "")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty"), (b"good text\n\xff\xfe bad", "byte"), (b"a\0b", "NUL")],
    ids=["empty", "not-utf8", "nul"],
)
def test_text_that_cannot_be_prepared(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(content)
    line = refused(BAD_USE, "data", "prepare", path, "--out", tmp_path / "data")
    assert str(path) in line
    assert words.lower() in line.lower()
    assert not (tmp_path / "data" / "data.json").exists()


def test_text_that_is_not_there(tmp_path: Path) -> None:
    assert "none.txt" in refused(BAD_USE, "data", "prepare", tmp_path / "none.txt", "--out", tmp_path / "data")
    assert "none.txt" in refused(BAD_USE, "init", "--data", tmp_path / "none.txt", "--out", tmp_path / "data")
    ended = forked("demo", "--data", tmp_path / "none.txt")
    assert ended.code == BAD_USE
    assert "none.txt: there is no such file" in ended.err


# --- the other commands


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (BAD_USE, ["frobnicate"], "frobnicate"),
        (BAD_USE, ["start"], "RUN.yaml"),
        (BAD_USE, ["status"], "--state-dir"),
        (BAD_USE, ["status", "--state-dir", "nowhere"], "nowhere"),
        (UNREACHABLE, ["status", "127.0.0.1:1"], "127.0.0.1:1"),
        (UNREACHABLE, ["invite", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (BAD_USE, ["stop", "127.0.0.1:1"], "--key"),
        (BAD_USE, ["pause", "127.0.0.1:1", "--key", "nowhere.key"], "nowhere.key"),
        (BAD_USE, ["debug", "dump", "--stage", "1", "--out", "x", "--state-dir", "nowhere"], "nowhere"),
        (BAD_USE, ["init", "--data", "x", "--preset", "huge"], "huge"),
        (BAD_USE, ["init", "--data", "x", "--set", "seed"], "KEY=VALUE"),
        (BAD_USE, ["demo", "--kill", "2"], "--kill"),
        (BAD_USE, ["demo", "--kill", "9@5"], "--kill"),
        (BAD_USE, ["demo", "--kill", "2@5", "--policy", "none"], "--kill"),
        (BAD_USE, ["demo", "--block-stages", "5"], "--block-stages 5"),
        (BAD_USE, ["demo", "--policy", "prayer"], "--policy"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else None,
)
def test_other_commands(code: int, words: list[str], expected: str) -> None:
    ended = forked(*words)
    assert (ended.code, ended.out) == (code, ""), ended.err
    [line] = [line for line in ended.err.splitlines() if line.startswith("regrow: ")]
    assert expected in line


def test_a_demo_keeps_nothing_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"1")
    assert "not empty" in refused(BAD_USE, "demo", "--keep", tmp_path)
    assert os.listdir(tmp_path) == ["precious"]


def test_help_is_quick_and_imports_nothing_slow() -> None:
    ended = regrow("--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert ended.code == 0
    assert "regrow join INVITE" in ended.out
    loaded = {line.rpartition("|")[2].strip() for line in ended.err.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"torch", "hivemind", "grpc", "numpy", "starlette", "yaml"}
