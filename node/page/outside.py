"""The page of a run as a monitor sees it: no node speaks of itself; what several tell is told once, what one tells is its word.

Everything here comes from strangers: only members of the run are listened to, none fills the page alone, texts are made safe.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from node.page.chronicle import LEVELS, Entry
from node.page.feed import Feed
from node.page.history import MARKED, History
from node.page.view import SHOWN_EVENTS, Known, View, called, make_view
from node.page.words import public
from node.plain_json import finite
from node.ports import Clock
from protocol.ids import PeerId

if TYPE_CHECKING:
    from node.monitor.picture import Picture

SAME_S = 60.0
"""What several nodes tell in the same words within so long is one thing."""
MOST_OF_ONE = 20
"""Entries shown of one node that nobody else told."""
OF_ONE = frozenset("provenance averaged transfer counted uncounted caught_up shadow_sealed evaluation_skipped heard".split())
"""What concerns one node alone."""


class Outside:
    """`look` gives what is known now, `told` what nodes noted, oldest first: entries with `peer`, who said so."""

    def __init__(self, clock: Clock, look: Callable[[], Picture], told: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._clock, self._look, self._told = clock, look, told
        self._started_at = clock.wall()
        self._history, self._tokens = History(), 0
        self._validated = -1
        self._numbers: dict[tuple[Any, Any, Any], int] = {}
        self._count = count(1)
        self._marked: set[tuple[int, str, int]] = set()
        self.feed = Feed(self.view, secrets.token_hex(4))

    def tick(self) -> None:
        """To be called whenever more may be known: about once a second."""
        picture, wall = self._look(), self._clock.wall()
        if picture.step is not None and picture.loss is not None and picture.tokens is not None:
            fresh = {"step": picture.step, "value": picture.loss, "tokens": max(1, picture.tokens - self._tokens)}
            if picture.step > self._history.step:
                self._history.note("loss", fresh, wall)
                self._tokens = picture.tokens
        if picture.validation and picture.validation[0] > self._validated:
            self._validated = picture.validation[0]
            self._history.note("validation", {"step": self._validated, "value": picture.validation[1]}, wall)
        self.feed.refresh()

    def view(self) -> View:
        """The page's JSON, now."""
        picture, now = self._look(), self._clock.wall()
        names = {node.peer: node.name for node in picture.nodes}
        entries = self._entries(picture, names)
        self._mark(entries)
        status = picture.as_json() | {"peer": "", "regained": _regained(picture, entries)}
        if picture.phase == "unknown":
            status["phase"], status["sentence"] = "starting", "no node of the run has answered yet"
        known = Known(
            now=now,
            started_at=self._started_at,
            names=names,
            tokens_per_s=picture.tokens_per_second,
            seconds_left=_seconds_left(picture),
            committed_at=None if picture.commit_age_s is None else now - picture.commit_age_s,
            step_s=self._history.step_s,
        )
        shown: View = finite(make_view(status, self._history.as_json(), entries, known))
        return shown

    def _numbered(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Serials follow the order in which things were heard, and stay: who heard of an entry is not told again."""
        told = [((entry["peer"], entry["serial"], entry["wall"]), entry) for entry in self._told()]
        self._numbers = {key: self._numbers.get(key) or next(self._count) for key, _ in told}
        return [(self._numbers[key], entry) for key, entry in told]

    def _mark(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            mark = (int(entry["step"]), str(entry["kind"]), int(entry.get("stage", -1)))
            if entry["kind"] in MARKED and mark not in self._marked:
                self._marked.add(mark)
                self._history.mark(mark[0], mark[1], mark[2] if mark[2] >= 0 else None)

    def _entries(self, picture: Picture, names: Mapping[PeerId, str]) -> list[Entry]:
        members = {peer for _, peer, _ in picture.roster}
        said_at: dict[tuple[str, str], float] = {}
        shares: Counter[PeerId] = Counter()
        found: list[Entry] = []
        for serial, entry in self._numbered():
            peer, kind, wall = str(entry["peer"]), str(entry["kind"]), float(entry["wall"])
            if kind in OF_ONE or peer not in members:
                continue
            text = _of_another(public(entry["text"]), called(peer, names))
            if wall - said_at.get((kind, text), float("-inf")) < SAME_S:
                continue
            said_at[kind, text] = wall
            shares[peer] += 1
            if shares[peer] <= MOST_OF_ONE:
                shown: Entry = {"serial": serial, "wall": wall, "kind": kind, "level": LEVELS.get(kind, "info")}
                stage = entry.get("stage")
                where = {"stage": stage} if type(stage) is int else {}
                found.append(shown | {"step": int(entry["step"]), "text": text} | where)
        return found[-SHOWN_EVENTS:]


def _of_another(text: str, name: str) -> str:
    return text.replace("This node's", f"{name}'s").replace("This node", name).replace("this node", name)


def _regained(picture: Picture, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Stages of which was told that they are rebuilt, and that no commit has had a part of since."""
    step = picture.step or 0
    made = {e["stage"] for e in entries if e["kind"] == "rebuild" and "stage" in e and e["step"] >= step}
    return [
        {"stage": s, "rung": "recovery", "peer": peer} for s, peer, role in picture.roster if s in made and role == "active"
    ]


def _seconds_left(picture: Picture) -> float | None:
    if not (picture.step and picture.last_step and picture.tokens and picture.tokens_per_second):
        return None
    return (picture.last_step - picture.step) * (picture.tokens / picture.step) / picture.tokens_per_second
