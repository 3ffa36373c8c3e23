"""Server-sent events of the page: a snapshot, then what changed, to a bounded number of listeners.

A listener that comes back with the id that it saw last gets what it missed, where that is still here, else a snapshot. One that
does not read is let go: it comes back by itself when it can.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

View = dict[str, Any]
MAX_LISTENERS = 32
MAX_QUEUED = 16
KEPT_DELTAS = 64
RETRY_MS = 2000
NUMBERED = "events"
"""The section whose entries carry serials: only new and changed ones are sent."""
GROWING = "curves"
"""The section of lists that mostly grow: only what differs from the common beginning is sent."""


class FullError(Exception):
    """As many listen as may."""


class Listener:
    """What waits to be written to one of them."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED)
        self.is_open = True

    def put(self, message: bytes) -> None:
        """Queue it; one for which too much waits already is let go."""
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            self.close()

    def close(self) -> None:
        """No more comes."""
        self.is_open = False
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)

    async def next(self) -> bytes | None:
        """The next message; None at the end."""
        return await self._waiting.get() if self.is_open or not self._waiting.empty() else None


class Feed:
    """`look` makes the view; it is called only while somebody listens. `boot` tells this process from others."""

    def __init__(self, look: Callable[[], View], boot: str) -> None:
        self._look, self._boot = look, boot
        self.number = 0
        """Of the newest change."""
        self._view: View | None = None
        self._deltas: deque[tuple[int, bytes]] = deque(maxlen=KEPT_DELTAS)
        self._listeners: set[Listener] = set()

    @property
    def num_listeners(self) -> int:
        """Present ones."""
        return len(self._listeners)

    def refresh(self) -> None:
        """Tell the listeners what is new, if there are any."""
        if self._listeners:
            self._advance()

    def listen(self, last_id: str = "") -> Listener:
        """A new listener, with what it needs first. Raises `FullError`."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise FullError
        self._advance()
        listener = Listener()
        missed = self._missed(last_id)
        if missed is None or len(missed) >= MAX_QUEUED:
            listener.put(_message("view", self._id(), self._view or {}))
        else:
            for message in missed:
                listener.put(message)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """It is gone."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """Let everybody go."""
        for listener in tuple(self._listeners):
            listener.close()
            self.leave(listener)

    def _id(self) -> str:
        return f"{self._boot}-{self.number}"

    def _missed(self, last_id: str) -> list[bytes] | None:
        boot, _, number = last_id.rpartition("-")
        if boot != self._boot or not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        last = int(number)
        first = self._deltas[0][0] if self._deltas else self.number + 1
        return [message for n, message in self._deltas if n > last] if first - 1 <= last <= self.number else None

    def _advance(self) -> None:
        before, self._view = self._view, json.loads(json.dumps(self._look()))
        if before is None or (delta := difference(before, self._view)) is None:
            return
        self.number += 1
        message = _message("delta", self._id(), delta)
        self._deltas.append((self.number, message))
        for listener in tuple(self._listeners):
            listener.put(message)
            if not listener.is_open:
                self.leave(listener)


def difference(before: View, after: View) -> View | None:
    """Sections of `after` that differ; None if none does but the time."""
    changed = {name: value for name, value in after.items() if name != "now" and before.get(name) != value}
    if not changed:
        return None
    if NUMBERED in changed:
        known = {entry["serial"]: entry for entry in before.get(NUMBERED, ())}
        changed[NUMBERED] = [entry for entry in after[NUMBERED] if known.get(entry["serial"]) != entry]
    if GROWING in changed:
        old, new = before.get(GROWING, {}), after[GROWING]
        changed[GROWING] = {name: _tail(old.get(name, []), rows) for name, rows in new.items() if old.get(name) != rows}
    return {"now": after["now"]} | changed


def _tail(old: list[Any], new: list[Any]) -> dict[str, Any]:
    """`from`: how many of the old ones stay; `add`: what follows them."""
    same = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        same += 1
    return {"from": same, "add": new[same:]}


def _message(event: str, number: str, view: View) -> bytes:
    data = json.dumps(view, separators=(",", ":"))  # escapes line breaks, and all that is not ASCII
    return f"retry: {RETRY_MS}\nid: {number}\nevent: {event}\ndata: {data}\n\n".encode()
