"""events.jsonl: what happened at this node, one JSON object a line, written so that a kill loses nothing.

Each line is one write(2) on a descriptor opened with O_APPEND. A process that is killed leaves at most one
torn line, the last one; the next life ends it with a newline and goes on. A full disk costs lines, never the
training.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from node.ports import Clock, UnusableError

FILE_NAME = "events.jsonl"
_log = logging.getLogger(__name__)


class EventLog:
    """The `EventSink` of a node. `report` gets a sentence when writing fails and when it works again."""

    def __init__(self, path: Path, clock: Clock, report: Callable[[str], None] = _log.warning) -> None:
        self._path, self._clock, self._report = path, clock, report
        self._fd = -1
        self._torn = self._failing = False
        self.num_dropped = 0
        """Lines that could not be written."""

    @classmethod
    def open(cls, path: Path, clock: Clock, report: Callable[[str], None] = _log.warning) -> EventLog:
        """Open for appending, creating the file. Raises `UnusableError(2)` where that is impossible."""
        log = cls(path, clock, report)
        try:
            log._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            log._torn = _ends_torn(path)
        except OSError as error:
            log.close()
            raise UnusableError(
                2, f"cannot write the event log {path}: {error.strerror}; choose another --state-dir"
            ) from error
        return log

    def note(self, type_: str, fields: dict[str, Any]) -> None:
        """Append one line: `t` (monotonic s), `wall` (s since the epoch), `type`, then the fields.

        The kernel has it when this returns: it outlives the process, not the machine.
        """
        if self._fd < 0:
            self.num_dropped += 1
            return
        stamped = {"t": self._clock.monotonic(), "wall": self._clock.wall(), "type": type_} | fields
        line = _encode(stamped) + b"\n"
        self._append(b"\n" + line if self._torn else line)

    def _append(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self._drop(error.strerror or str(error))
            return
        if written < len(data):
            self._torn = True
            self._drop("no space left for a whole line")
            return
        self._torn = False
        if self._failing:
            self._failing = False
            self._report(f"the event log {self._path} is written again; {self.num_dropped} lines are missing")

    def _drop(self, reason: str) -> None:
        self.num_dropped += 1
        if not self._failing:
            self._failing = True
            self._report(f"cannot write to the event log {self._path}: {reason}; training goes on without it")

    def close(self) -> None:
        """Close the file; later notes are dropped and counted."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _encode(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain).encode()
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, default=str).encode()


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _finite(value: Any) -> Any:
    """JSON knows no NaN: what is not finite is written as a word."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return _finite(_plain(value)) if is_dataclass(value) else value


def parse_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """The objects in whole lines; torn and foreign lines are passed over."""
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def read_events(path: Path) -> list[dict[str, Any]]:
    """All events of a log, oldest first; none where there is no such file. A torn line is passed over."""
    try:
        return list(parse_lines(path.read_bytes()))
    except FileNotFoundError:
        return []


class EventTail:
    """Reads a growing log: each `read` returns the events that were completed since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New events, oldest first; none while the file does not exist."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(parse_lines(whole))
