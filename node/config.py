"""Settings of a node: what they are, and where each one's value came from.

Precedence: flag, then REGROW_* variable, then config file (TOML), then default. The config file is --config or REGROW_CONFIG,
else STATE_DIR/config.toml, else regrow/config.toml under XDG_CONFIG_HOME or ~/.config; the first that exists is read, alone.
Nothing here reads the environment by itself: it is an argument. Errors are `UnusableError(2)` that name flag, variable or file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from dataclasses import dataclass as plain_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from node.limits import parse_size
from node.manifest_yaml import read_text
from node.ports import UnusableError
from protocol.addresses import check_announce, parse_host_port, parse_multiaddress

PREFIX = "REGROW_"
RESERVED = ("REGROW_TEST_", "REGROW_CONFIG")
CONFIG_FILE = "config.toml"
GRPC_PORT, DHT_PORT, METRICS_PORT = 28480, 28481, 28482
"""Registered for nothing else. A default port that is taken gives way to any free one; one that was asked for does not."""


def _host_port(text: str) -> str:
    host, port = parse_host_port(text)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _published(text: str) -> str:
    return _host_port(text) if text.strip() else ""


def _announced(text: str) -> str:
    if text:
        check_announce(text)
        _host_port(text)
    return text.strip()


def _announced_dht(text: str) -> str:
    if text:
        parse_multiaddress(text)
        check_announce(text)
    return text.strip()


def _folder(path: Path) -> Path:
    if not str(path).strip() or "\0" in str(path):
        raise ValueError("is not the name of a folder")
    return path.absolute()


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text):
        raise ValueError(f"{text!r} is no device; use auto, cpu, cuda or cuda:N")
    return text


def _size(text: str) -> str:
    if text:
        parse_size(text)
    return text.strip()


def _rate(value: float) -> float:
    if 0 < value < 1:
        raise ValueError("is too little to take part; give at least 1, or 0 for no limit")
    return value


def _name(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class NodeSettings:
    """How this node runs on this machine. What a run agrees on is in its manifest."""

    state_dir: Annotated[Path, AfterValidator(_folder)] = Field(
        description="Folder for the node's identity, data, event log; one node at a time."
    )
    threads: int = Field(ge=1, le=1024, description="Threads of the computation on a CPU.")
    stage: int | None = Field(None, ge=0, le=64, description="Stage to hold; none = wherever the run needs one.")
    listen: Annotated[str, AfterValidator(_host_port)] = Field(
        f"0.0.0.0:{GRPC_PORT}", description="HOST:PORT for other nodes (gRPC); port 0 = any free one."
    )
    announce: Annotated[str, AfterValidator(_announced)] = Field(
        "", description="HOST:PORT at which other nodes reach `listen`, where a router forwards it; empty = find out."
    )
    dht_port: int = Field(DHT_PORT, ge=0, le=65535, description="TCP port of the directory (DHT); 0 = any free one.")
    dht_announce: Annotated[str, AfterValidator(_announced_dht)] = Field(
        "",
        description="Multiaddress at which others reach the DHT port, as /ip4/203.0.113.7/tcp/4000; empty = find out.",
    )
    lan: bool = Field(
        False, description="All nodes of the run are in one network: private addresses such as 192.168.1.5 may be announced."
    )
    metrics: Annotated[str, AfterValidator(_host_port)] = Field(
        f"127.0.0.1:{METRICS_PORT}", description="HOST:PORT of /metrics, /status and health; port 0 = any free one."
    )
    publish: Annotated[str, AfterValidator(_published)] = Field(
        "", description="HOST:PORT of the status page alone, safe to show to everybody (0 = any free port); empty = nowhere."
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        "auto", description="Where to compute: auto (a GPU if there is one), cpu, cuda or cuda:N."
    )
    memory_limit: Annotated[str, AfterValidator(_size)] = Field(
        "", description="Memory that the node may plan with, as 4GB or 512MiB; empty = what is free at its start."
    )
    max_upload_mbit: Annotated[float, AfterValidator(_rate)] = Field(
        0.0, ge=0, le=1e6, description="Most megabits per second that it sends as payload, at least 1; 0 = no limit."
    )
    max_gb: float = Field(
        0.0, ge=0, le=1e9, description="Leave in order after so many gigabytes in and out since its start; 0 = no limit."
    )
    name: Annotated[str, AfterValidator(_name)] = Field("", max_length=40, description="Name shown to others; empty = none.")
    ticket: str = Field(
        "", max_length=2000, description="The organiser's ticket for this node, where a run is by invitation; empty = none."
    )
    json: bool = Field(False, description="One JSON line on stdout when the node is up; everything else on stderr.")
    log_json: bool = Field(
        False, description="What people see on stderr as JSON: one object a line with t, level, event, ids, reason."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="Least level of log lines on stderr."
    )
    bootstrap_timeout_s: float = Field(
        90.0, gt=0, le=3600, description="Seconds to wait for the directory's start and for a first peer."
    )
    retry: bool = Field(
        False, description="Where the run cannot be reached, or the node broke: wait, longer each time, and start again."
    )
    record: bool = Field(
        False, description="Write what the node is told, and what it decides, to recording-*.jsonl: for finding defects."
    )


@plain_dataclass(frozen=True, slots=True)
class Row:
    """One setting, for `regrow config`."""

    name: str
    value: str
    origin: str
    description: str


@plain_dataclass(frozen=True, slots=True)
class Resolved:
    """Settings and, for each, where its value came from. `notes` are sentences for the user."""

    settings: NodeSettings
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def rows(self) -> list[Row]:
        """All settings in order."""
        return [
            Row(name, _plain(getattr(self.settings, name)), self.origins[name], field.description or "")
            for name, field in _fields().items()
        ]

    def as_json(self) -> dict[str, dict[str, Any]]:
        """{setting: {"value", "origin", "description"}}."""
        values = asdict(self.settings)
        return {
            row.name: {"value": _jsonable(values[row.name]), "origin": row.origin, "description": row.description}
            for row in self.rows()
        }


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> Resolved:
    """Settings from flags (by field name; None = not given), environment and config file. Raises `UnusableError(2)`."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []

    def take(found: Iterator[tuple[str, Any, str]]) -> None:
        for name, value, origin in found:
            if name not in values:
                values[name], origins[name] = value, origin

    take((name, value, f"--{_dashed(name)}") for name, value in flags.items() if value is not None)
    take(_from_environment(environ, notes))
    file = _config_file(config, environ, values.get("state_dir"))
    if file is not None:
        take(_from_file(file))
    take(_defaults(environ, values))
    return Resolved(_validated(values, origins), origins, tuple(notes))


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """XDG_STATE_HOME/regrow, else ~/.local/state/regrow. Raises `UnusableError(2)` without a home."""
    folder = _xdg(environ, "XDG_STATE_HOME", ".local/state")
    if folder is None:
        raise UnusableError(2, "HOME is not set, so there is no default folder for the node's state; give --state-dir DIR")
    return folder


def _fields() -> dict[str, FieldInfo]:
    return cast("dict[str, FieldInfo]", vars(NodeSettings)["__pydantic_fields__"])


def _dashed(name: str) -> str:
    return name.replace("_", "-")


# ---- sources ----


def _from_environment(environ: Mapping[str, str], notes: list[str]) -> Iterator[tuple[str, Any, str]]:
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable.startswith(RESERVED):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in _fields():
            yield name, environ[variable], variable
        else:
            near = get_close_matches(variable, [PREFIX + field.upper() for field in _fields()], n=1)
            notes.append(f"{variable} is not a setting and is ignored{f'; did you mean {near[0]}?' if near else ''}")


def _config_file(config: Path | None, environ: Mapping[str, str], state_dir: Any) -> Path | None:
    named = config or (Path(environ["REGROW_CONFIG"]) if environ.get("REGROW_CONFIG") else None)
    if named is not None:
        return named
    own = Path(state_dir) if state_dir else _xdg(environ, "XDG_STATE_HOME", ".local/state")
    shared = _xdg(environ, "XDG_CONFIG_HOME", ".config")
    for folder in filter(None, (own, shared)):
        if (folder / CONFIG_FILE).exists():
            return folder / CONFIG_FILE
    return None


def _from_file(path: Path) -> Iterator[tuple[str, Any, str]]:
    try:
        table = tomllib.loads(read_text(path).replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise UnusableError(2, f"{path}: not valid TOML: {error}") from None
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _fields():
            near = get_close_matches(name, [*_fields()], n=1)
            known = f"did you mean {near[0]}?" if near else f"known: {', '.join(_fields())}"
            raise UnusableError(2, f"{path}: unknown setting {key}; {known}")
        yield name, value, str(path)


def _defaults(environ: Mapping[str, str], values: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    if "state_dir" not in values:
        yield "state_dir", default_state_dir(environ), "default"
    omp = environ.get("OMP_NUM_THREADS", "")
    if omp.isdecimal() and int(omp) > 0:
        yield "threads", int(omp), "OMP_NUM_THREADS"
    yield "threads", os.cpu_count() or 1, "default (this machine's CPUs)"
    for name, field in _fields().items():
        if not field.is_required():
            yield name, field.default, "default"


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path | None:
    if environ.get(variable):
        return Path(environ[variable]) / "regrow"
    return Path(environ["HOME"]) / fallback / "regrow" if environ.get("HOME") else None


# ---- checking ----


def _validated(values: Mapping[str, Any], origins: Mapping[str, str]) -> NodeSettings:
    try:
        return NodeSettings(**values)
    except ValidationError as error:
        lines = [_sentence(detail["loc"], detail["msg"], values, origins) for detail in error.errors(include_url=False)]
        raise UnusableError(2, "\n".join(lines)) from None


def _sentence(loc: tuple[str | int, ...], message: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    name = str(loc[0])
    origin = origins.get(name, name)
    place = origin if origin.startswith(("--", PREFIX)) else f"{origin}: {name}"
    message = message.removeprefix("Value error, ")
    if message.startswith("--announce"):
        message = message.removeprefix("--announce").partition(": ")[2]
    message = re.sub(r"^(Input|String) ", "", message)
    return f"{place} {_plain(values.get(name))}: {message}"


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "none" if value is None else "''"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _jsonable(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
