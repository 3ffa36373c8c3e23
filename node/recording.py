"""What a node was told and what it decided, line by line, so that the same decisions can be made again from the file alone.

The first line says who the node is and in which run. Each later one is an event: `now` (s of the node's clock), `event`, and
`decided`, a digest of the commands that followed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from node.ports import UnusableError
from protocol.commands import Command
from protocol.events import Event
from protocol.ids import Member, hash_of
from protocol.manifest import from_mapping
from protocol.node_config import NodeConfig
from protocol.node_state import NodeState
from protocol.plain import from_plain, to_plain


def heading(config: NodeConfig) -> str:
    """The first line."""
    names = ("name", "address", "founder", "wished_stage", "memory_bytes")
    plain = {name: getattr(config, name) for name in names} | {"member": to_plain(config.member)}
    return json.dumps(plain | {"manifest": config.manifest.model_dump(mode="json")}, separators=(",", ":"))


def line_of(event: Event, now: float, commands: Sequence[Command]) -> str:
    """An event and what followed from it."""
    return json.dumps({"now": now, "event": to_plain(event), "decided": digest_of(commands)}, separators=(",", ":"))


def digest_of(commands: Sequence[Command]) -> str:
    """Of commands in their order; '' for none."""
    return hash_of(json.dumps(to_plain(commands))) if commands else ""


class Recording:
    """A recording on disk, of one incarnation; a kill costs at most its last line."""

    def __init__(self, folder: Path, config: NodeConfig, report: Callable[[str], None]) -> None:
        """Raises `UnusableError(2)` where it cannot be written. `report` is told if it ends before the node does."""
        path = folder / f"recording-{config.member.incarnation}.jsonl"
        self._report = report
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._append(heading(config))
        except OSError as error:
            self._file.close()
            raise _unusable(path, error) from error

    def note(self, event: Event, now: float, commands: list[Command]) -> None:
        """One more event. A full disk ends the recording, never the training."""
        if self._file.closed:
            return
        try:
            self._append(line_of(event, now, commands))
        except OSError as error:
            self._file.close()
            self._report(f"the recording ends here: {error.strerror}")

    def _append(self, line: str) -> None:
        """What a full disk leaves of it is torn, and the next one fails."""
        self._file.write(line.encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _unusable(path: Path, error: OSError) -> UnusableError:
    return UnusableError(2, f"cannot write {path}: {error.strerror}; leave --record out")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay: how many events, and the state after the last one."""

    events: int
    state: NodeState


def replay(lines: Iterable[str]) -> Replayed:
    """Make all decisions again. Raises `ValueError` at the first that is another one, with its line; a torn last line is left
    out."""
    rest = iter(lines)
    head = json.loads(next(rest, "null"))
    if not isinstance(head, dict) or "manifest" not in head:
        raise ValueError("line 1: a recording begins with the node's run")
    head["manifest"], head["member"] = from_mapping(head["manifest"]), from_plain(Member, head["member"])
    state, count = NodeState(NodeConfig(**head)), 0
    for number, told in _told(rest):
        commands = state.handle(from_plain(Event, told["event"]), told["now"])
        if digest_of(commands) != told["decided"]:
            raise ValueError(f"line {number}: {told['event']['$']} led to other commands: {commands}")
        count += 1
    return Replayed(count, state)


def _told(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 2):
        try:
            told = json.loads(line)
        except ValueError:
            return
        yield number, told
