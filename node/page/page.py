"""The page of one node: what its observers hand it, remembered in bounded room, as view and feed."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from node.page.chronicle import Chronicle
from node.page.feed import Feed
from node.page.history import History
from node.page.view import Copying, Known, View, called, make_view
from node.plain_json import finite
from node.ports import Clock, Lease
from node.progress import Progress
from protocol.commands import Command, Note
from protocol.events import CommandFailed, Event, Learned, LearningGoesOn
from protocol.ids import PeerId, members_of
from protocol.node_state import NodeState

GONE_S = 60.0
"""For so long a lost replica is still shown at its stage."""
MAX_GONE, MAX_NAMES = 64, 4096
REFRESH_S = 0.5
RATE_S, RATE_SAMPLES = 5.0, 12


class Page:
    """Sockets are bound before there is anything to show; `open` is called when the node is put together."""

    def __init__(self, clock: Clock, status: Callable[[], dict[str, Any]]) -> None:
        self._clock, self._status = clock, status
        self._started_at = clock.wall()
        self._state: NodeState | None = None
        self._chronicle: Chronicle | None = None
        self._history, self._progress = History(), Progress()
        self._names: dict[PeerId, str] = {}
        self._counted: tuple[int, float] | None = None
        self._copying: dict[int, Copying] = {}
        self._gone: deque[tuple[float, int, PeerId]] = deque(maxlen=MAX_GONE)
        self._broken: dict[PeerId, float] = {}
        """Since when nothing reaches them, and nothing was heard of them."""
        self._refreshed_at = self._sampled_at = clock.monotonic()
        self._wire = {"in": 0, "out": 0}
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=RATE_SAMPLES + 1)
        self.feed = Feed(self.view, secrets.token_hex(4))

    def open(self, state: NodeState) -> None:
        """From now on there is something to show."""
        config = state.config
        self._state = state
        self._names[config.member.peer] = config.name
        self._progress.peer, self._progress.last_step = config.member.peer, config.manifest.last_step
        self._chronicle = Chronicle(self._clock.wall, self._name, config.member.peer, lambda s: bool(state.chain.holders(s)))

    # ---- in

    def observe_command(self, command: Command) -> None:
        """Follow what the node notes."""
        if isinstance(command, Note):
            self._note(command.type, command.fields)

    def observe_event(self, event: Event) -> None:
        """Follow the copy of a stage's state, and whom nothing reaches."""
        match event:
            case LearningGoesOn(stage=stage, num_bytes=done, total_bytes=total, seconds_left=left):
                self._copying[stage] = Copying(min(done, total), total, left)
            case Learned(stage=stage):
                self._copying.pop(stage, None)
            case CommandFailed(peer=peer, unsent=True) if peer and peer != self._progress.peer:
                self._broken.setdefault(peer, self._clock.monotonic())
            case _:
                pass

    def observe_leases(self, leases: Iterable[Lease]) -> None:
        """Who is there, and how each calls itself. Names of those that went stay: events speak of them."""
        for lease in leases:
            if lease.peer in self._names or len(self._names) < MAX_NAMES:
                self._names[lease.peer] = lease.name

    def on_bytes(self, direction: str, num_bytes: int) -> None:
        """`in` or `out`, over this node's streams."""
        self._wire[direction] += num_bytes

    def tick(self) -> None:
        """To be called a few times a second."""
        now, state = self._clock.monotonic(), self._state
        if state is not None and self._chronicle is not None:
            self._chronicle.silent(self._suspected(state, now), self._stages_of, state.chain.step)
        if not self._samples or now - self._samples[-1][0] >= RATE_S:
            self._samples.append((now, self._wire["in"], self._wire["out"]))
        if now - self._refreshed_at >= REFRESH_S:
            self._refreshed_at = now
            self.feed.refresh()

    def _stages_of(self, peer: PeerId) -> list[int]:
        return [s.stage for s in self._state.chain.seatings if s.member.peer == peer] if self._state else []

    def _suspected(self, state: NodeState, now: float) -> list[PeerId]:
        """Peers on the roster that are silent for a lapse, or to whom a stream broke and who were not heard since. The second
        is told before a lapse is over: of a process that was killed its peers' machines know at once."""
        view, others = state.view, [peer for peer in state.view.known() if peer != state.config.member.peer]
        self._broken = {peer: at for peer, at in self._broken.items() if peer in others and view.silent_s(peer, now) > now - at}
        return sorted({*view.all_lapsed(others, now), *self._broken})

    def _note(self, type_: str, fields: Mapping[str, Any]) -> None:
        wall = self._clock.wall()
        self._progress.note(type_, fields, self._clock.monotonic())
        self._history.note(type_, fields, wall)
        if self._chronicle is not None:
            self._chronicle.note(type_, fields)
        match type_:
            case "committed" if members_of(fields.get("contributors", {}).get(self._progress.peer, "0")):
                self._counted = int(fields["step"]), wall
            case "left" if "peer" not in fields:
                self._copying.pop(int(fields["stage"]), None)
            case "left" if self._is_silent(str(fields["peer"])):
                self._lose(int(fields["stage"]), str(fields["peer"]))
            case "lost":
                self._lose(int(fields["stage"]), str(fields["peer"]))
            case _:
                pass

    def _lose(self, stage: int, peer: PeerId) -> None:
        if all((s, p) != (stage, peer) for _, s, p in self._gone):
            self._gone.append((self._clock.monotonic(), stage, peer))

    def _is_silent(self, peer: PeerId) -> bool:
        """Taken from the view before it forgets whoever left."""
        return self._chronicle is not None and self._chronicle.is_silent(peer)

    def _name(self, peer: PeerId) -> str:
        return called(peer, self._names)

    # ---- out

    def entries(self, after: int = 0, most: int = 200) -> list[dict[str, Any]]:
        """The newest entries of the chronicle whose serial is higher, oldest first."""
        return self._chronicle.latest(after, most) if self._chronicle else []

    def view(self) -> View:
        """The page's JSON, now."""
        told = make_view(self._status(), self._history.as_json(), self.entries(most=60), self._known())
        shown: View = finite(told)
        return shown

    def _known(self) -> Known:
        now = self._clock.monotonic()
        received, sent = self._rates()
        return Known(
            now=self._clock.wall(),
            started_at=self._started_at,
            names=self._names,
            tokens_per_s=self._progress.tokens_per_s,
            seconds_left=self._progress.eta_s,
            committed_at=self._history.committed_at,
            step_s=self._history.step_s,
            counted=self._counted,
            copying=self._copying,
            gone=[(stage, peer) for at, stage, peer in self._gone if now - at < GONE_S],
            suspected=frozenset(self._broken),
            received_per_s=received,
            sent_per_s=sent,
        )

    def _rates(self) -> tuple[float | None, float | None]:
        if len(self._samples) < 2:
            return None, None
        (began, received, sent), (ended, *last) = self._samples[0], self._samples[-1]
        seconds = ended - began
        return (last[0] - received) / seconds, (last[1] - sent) / seconds
