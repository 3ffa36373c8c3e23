"""Settings: flag before variable before file before default, each with its origin, and mistakes named where they were made."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from node.config import NodeSettings, resolve
from node.ports import UnusableError


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(flags: dict[str, Any], environ: dict[str, str], config: Path | None = None) -> str:
    with pytest.raises(UnusableError) as caught:
        resolve(flags, environ, config)
    assert caught.value.code == 2
    return str(caught.value)


def test_defaults(home: dict[str, str], tmp_path: Path) -> None:
    found = resolve({"stage": None, "name": None}, home)
    settings = found.settings
    assert settings.state_dir == tmp_path / ".local/state/regrow"
    assert (settings.stage, settings.listen, settings.metrics) == (None, "0.0.0.0:28480", "127.0.0.1:28482")
    assert (settings.device, settings.json, settings.name) == ("auto", False, "")
    assert settings.threads >= 1
    assert settings.bootstrap_timeout_s >= 60
    assert {origin for name, origin in found.origins.items() if name != "threads"} == {"default"}
    assert found.notes == ()


def test_flag_beats_variable_beats_file_beats_default(home: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", 'name = "file"\nmetrics = "127.0.0.1:3"\nlisten = "127.0.0.1:3"\ndht-port = 3\n')
    environ = home | {"REGROW_LISTEN": "127.0.0.1:2", "REGROW_METRICS": "127.0.0.1:2"}
    found = resolve({"listen": "127.0.0.1:1"}, environ, file)
    settings = found.settings
    assert (settings.listen, settings.metrics, settings.name, settings.dht_port) == ("127.0.0.1:1", "127.0.0.1:2", "file", 3)
    assert [found.origins[name] for name in ("listen", "metrics", "name", "dht_port", "device")] == [
        "--listen",
        "REGROW_METRICS",
        str(file),
        str(file),
        "default",
    ]


def test_one_config_file_is_read_the_nearest(home: dict[str, str], tmp_path: Path) -> None:
    shared = write(tmp_path / ".config/regrow/config.toml", 'name = "shared"\ndevice = "cpu"')
    assert resolve({}, home).settings.name == "shared"
    assert resolve({}, home).origins["name"] == str(shared)
    write(tmp_path / ".local/state/regrow/config.toml", 'name = "own"')
    assert (resolve({}, home).settings.name, resolve({}, home).settings.device) == ("own", "auto")
    write(tmp_path / "elsewhere/config.toml", 'name = "elsewhere"')
    assert resolve({"state_dir": tmp_path / "elsewhere"}, home).settings.name == "elsewhere"
    assert resolve({}, home | {"REGROW_STATE_DIR": str(tmp_path / "elsewhere")}).settings.name == "elsewhere"
    named = write(tmp_path / "named.toml", 'name = "named"')
    assert resolve({}, home | {"REGROW_CONFIG": str(named)}).settings.name == "named"
    moved = home | {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "XDG_STATE_HOME": str(tmp_path / "state")}
    write(tmp_path / "xdg/regrow/config.toml", 'name = "xdg"')
    assert resolve({}, moved).settings.name == "xdg"
    assert resolve({}, moved).settings.state_dir == tmp_path / "state/regrow"


def test_a_config_file_may_move_the_state(home: dict[str, str], tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", f'state-dir = "{tmp_path}/there"')
    assert resolve({}, home, file).settings.state_dir == tmp_path / "there"


def test_threads_follow_the_environment(home: dict[str, str]) -> None:
    found = resolve({}, home | {"OMP_NUM_THREADS": "3"})
    assert (found.settings.threads, found.origins["threads"]) == (3, "OMP_NUM_THREADS")
    assert resolve({"threads": 2}, home | {"OMP_NUM_THREADS": "3"}).settings.threads == 2
    assert resolve({}, home | {"OMP_NUM_THREADS": "many"}).origins["threads"].startswith("default")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("yes", True), ("0", False), ("off", False)])
def test_switches_in_the_environment(home: dict[str, str], text: str, value: bool) -> None:
    assert resolve({}, home | {"REGROW_JSON": text}).settings.json is value


@pytest.mark.parametrize(
    ("given", "kept"),
    [("[::1]:80", "[::1]:80"), (" localhost:0 ", "localhost:0"), ("0.0.0.0:65535", "0.0.0.0:65535")],
)
def test_addresses(home: dict[str, str], given: str, kept: str) -> None:
    assert resolve({"listen": given}, home).settings.listen == kept


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"listen": "127.0.0.1:x"}, r"--listen 127\.0\.0\.1:x: .*'127\.0\.0\.1:x'.*port"),
        ({"listen": "127.0.0.1:65536"}, r"--listen 127\.0\.0\.1:65536: .*port"),
        ({"listen": "127.0.0.1"}, r"--listen 127\.0\.0\.1: .*HOST:PORT"),
        ({"listen": ":80"}, r"--listen :80: .*HOST:PORT"),
        ({"listen": "::1:80"}, r"--listen ::1:80: "),
        ({"listen": ""}, r"--listen '': .*HOST:PORT"),
        ({"metrics": "300.1.1.1:80"}, r"--metrics 300\.1\.1\.1:80: "),
        ({"announce": "10.0.0.1:0"}, r"--announce 10\.0\.0\.1:0: port 0 cannot be dialled"),
        ({"announce": "0.0.0.0:80"}, r"--announce 0\.0\.0\.0:80: 0\.0\.0\.0 cannot be dialled"),
        ({"announce": "/ip4/10.0.0.1/tcp/80"}, r"--announce /ip4/10\.0\.0\.1/tcp/80: .*HOST:PORT"),
        ({"dht_announce": "10.0.0.1:80"}, r"--dht-announce 10\.0\.0\.1:80: .*not of the form /ip4/HOST/tcp/PORT"),
        ({"dht_announce": "/ip4/0.0.0.0/tcp/80"}, r"--dht-announce /ip4/0\.0\.0\.0/tcp/80: .*cannot be dialled"),
        ({"stage": -1}, r"--stage -1: should be greater than or equal to 0"),
        ({"stage": "first"}, r"--stage first: should be a valid integer"),
        ({"device": "gpu"}, r"--device gpu: 'gpu' is no device; use auto, cpu, cuda or cuda:N"),
        ({"threads": 0}, r"--threads 0: should be greater than or equal to 1"),
        ({"memory_limit": "4"}, r"--memory-limit 4: '4' is no size; write it as 4GB or 512MiB"),
        ({"memory_limit": "-1GB"}, r"--memory-limit -1GB: '-1GB' is no size"),
        ({"max_upload_mbit": 0.5}, r"--max-upload-mbit 0\.5: is too little to take part; give at least 1"),
        ({"max_upload_mbit": -1}, r"--max-upload-mbit -1: should be greater than or equal to 0"),
        ({"max_gb": "inf"}, r"--max-gb inf: should be"),
        ({"name": "a\x1b[2J"}, r"--name .*: has characters that cannot be printed"),
        ({"name": "x" * 41}, r"--name x+: should have at most 40 characters"),
        ({"log_level": "loud"}, r"--log-level loud: should be 'debug', 'info', 'warning' or 'error'"),
        ({"bootstrap_timeout_s": "nan"}, r"--bootstrap-timeout-s nan: should be"),
        ({"state_dir": "a\0b"}, r"--state-dir .*: is not the name of a folder"),
    ],
)
def test_a_bad_flag(home: dict[str, str], flags: dict[str, Any], says: str) -> None:
    found = refusal(flags, home)
    assert "\n" not in found
    assert re.match(says, found), found


def test_a_bad_variable_and_a_bad_file_value_name_their_place(home: dict[str, str], tmp_path: Path) -> None:
    assert refusal({}, home | {"REGROW_STAGE": "x"}).startswith("REGROW_STAGE x: should be a valid integer")
    file = write(tmp_path / "c.toml", "stage = 99")
    assert refusal({}, home, file).startswith(f"{file}: stage 99: should be less than or equal to 64")
    assert refusal({"listen": "x"}, home | {"REGROW_STAGE": "x"}).count("\n") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lisen = 1", "unknown setting lisen; did you mean listen?"),
        ("[node]\nlisten = 1", "unknown setting node; known: state_dir, "),
        ("name = x\n", "not valid TOML: Invalid value (at line 1"),
        ("a = 1\na = 2", "not valid TOML: "),
    ],
)
def test_a_bad_config_file(home: dict[str, str], tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path / "c.toml", text)
    assert refusal({}, home, file).startswith(f"{file}: {says}")


def test_a_config_file_that_was_named_must_be_there(home: dict[str, str], tmp_path: Path) -> None:
    assert "gone.toml: there is no such file" in refusal({}, home, tmp_path / "gone.toml")
    assert "gone.toml: there is no such file" in refusal({}, home | {"REGROW_CONFIG": str(tmp_path / "gone.toml")})
    assert "is a directory" in refusal({}, home, tmp_path)


def test_a_variable_that_is_no_setting_is_said(home: dict[str, str]) -> None:
    found = resolve({}, home | {"REGROW_LISTN": "x", "REGROW_TEST_SEED": "1", "OTHER": "x"})
    assert found.notes == ("REGROW_LISTN is not a setting and is ignored; did you mean REGROW_LISTEN?",)


def test_without_a_home_the_folder_must_be_named(tmp_path: Path) -> None:
    assert "HOME is not set" in refusal({}, {})
    assert resolve({"state_dir": tmp_path}, {}).settings.state_dir == tmp_path


def test_the_table_has_every_setting(home: dict[str, str]) -> None:
    found = resolve({"stage": 2, "state_dir": "relative"}, home)
    rows = {row.name: row for row in found.rows()}
    assert set(rows) == {field.name for field in dataclasses.fields(NodeSettings)}
    assert all(row.description.endswith(".") and row.origin for row in rows.values())
    assert (rows["stage"].value, rows["stage"].origin) == ("2", "--stage")
    as_json = json.loads(json.dumps(found.as_json()))
    assert as_json["stage"] == {"value": 2, "origin": "--stage", "description": rows["stage"].description}
    assert as_json["state_dir"]["value"] == str(Path("relative").absolute())
