"""Lines of a node's log: as JSON where a machine reads them, and in either form never the same one over and over."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from node.ports import Clock

MOST_OFTEN, WITHIN_S = 5, 60.0
"""What comes more often than that is held back, and counted."""
MAX_KEYS = 256
MAX_LISTED = 16
MAX_REASON_CHARS = 500
QUIET = frozenset("accumulated reduced committed counted loss decided validation saved shadow granted".split())
"""Notes that are no change of state, or told otherwise."""
WARNINGS = frozenset("lost suspected uncounted refused voided digest_mismatch forked yielded".split())
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class Limiter:
    """Counts how often each thing is said. Numbers apart, sentences of one kind are the same."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._held: dict[str, int] = {}

    def admit(self, sentence: str, now: float) -> int | None:
        """How often it was held back since it was last said; None to hold it back now."""
        key = _NUMBER.sub("#", sentence)
        times = self._times.pop(key, None) or deque(maxlen=MOST_OFTEN)
        self._times[key] = times  # the one of which nothing was heard for longest is forgotten first
        while len(self._times) > MAX_KEYS:
            oldest = next(iter(self._times))
            del self._times[oldest]
            self._held.pop(oldest, None)
        if len(times) == MOST_OFTEN and now - times[0] < WITHIN_S:
            self._held[key] = self._held.get(key, 0) + 1
            return None
        times.append(now)
        return self._held.pop(key, 0)


def set_logging(handler: logging.Handler) -> None:
    """All loggers' records go there, and nowhere else: a node that starts again in this process replaces it."""
    root = logging.getLogger()
    for known in list(root.handlers):
        if getattr(known, "is_nodes", False):
            root.removeHandler(known)
    handler.is_nodes = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(handler.level)


def write_line(line: str) -> None:
    """To stderr, at once."""
    sys.stderr.write(line)
    sys.stderr.flush()


def told(sentence: str, held_back: int) -> str:
    """The sentence, and how often it was not said."""
    return f"{sentence} ({held_back} more like it since)" if held_back else sentence


def as_json(wall: float, level: str, event: str, ids: Mapping[str, Any], reason: str) -> str:
    """One line."""
    line = {"t": round(wall, 3), "level": level, "event": event, "ids": dict(ids), "reason": reason[:MAX_REASON_CHARS]}
    return json.dumps(line, separators=(",", ":"), default=str)


class JsonLog:
    """One object a line: t (s since the epoch), level, event, ids (of what it is about), reason (a sentence, or '')."""

    def __init__(self, clock: Clock, write: Callable[[str], object]) -> None:
        self._clock, self._write = clock, write
        self._limiter = Limiter()
        self._last: tuple[str, str, str] = ("", "", "")
        self._reason = ""

    def line(self, event: str, reason: str = "", ids: Mapping[str, Any] | None = None, level: str = "info") -> None:
        """Something happened. What is as the line before is left out, and so is what comes again and again."""
        known = dict(ids or {})
        same = (event, reason, json.dumps(known, sort_keys=True, default=str))
        if same == self._last:
            return
        about = " ".join(f"{name}={value}" for name, value in known.items() if isinstance(value, str))
        held_back = self._limiter.admit(f"{event} {about} {reason}", self._clock.monotonic())
        if held_back is None:
            return
        self._last = same
        self._write(as_json(self._clock.wall(), level, event, known, told(reason, held_back)) + "\n")

    def say(self, sentence: str) -> None:
        """A sentence for people. One that only says again why something happened is left out."""
        if not (self._reason and sentence.endswith(self._reason)):
            self.line("state", sentence)
        self._reason = ""

    def note(self, type_: str, fields: Mapping[str, Any]) -> None:
        """A note of the node; those that are no change of state are left out."""
        if type_ in QUIET:
            return
        self._reason = str(fields.get("reason", ""))
        ids = {name: value for name, value in fields.items() if name != "reason" and _is_short(value)}
        self.line(type_, self._reason, ids, "warning" if type_ in WARNINGS else "info")


def _is_short(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= MAX_LISTED and all(isinstance(item, str | int | float) for item in value)
    return isinstance(value, str | int | float)
