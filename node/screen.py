"""What `start` and `join` show: who this node is, each change of state, a live line, and a summary at the end.

stdout carries at most the one line of `--json`; everything else goes to stderr. On a terminal the last line is live,
elsewhere (a file, systemd's journal) it is written now and then: often in the first minutes and during a transfer, when
somebody may be watching, seldom later.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from node.contribution import Contribution
from node.log_lines import JsonLog, Limiter, told
from node.plain_text import printable
from node.ports import Clock
from node.progress import Progress, Transfer, duration
from node.running import Running
from protocol.commands import Command, Exit, Note, Say
from protocol.events import Event, Learned, LearningGoesOn
from protocol.sizes import human_bytes

FIRST_MINUTES_S = 300.0
OFTEN_S, SELDOM_S = 4.0, 30.0
"""Longest silence where there is no terminal, less one tick."""
TICK_S = 1.0
REDRAW_S = 0.2
"""At least so long between two redraws for steps: small runs make twenty a second."""
BAR_CHARS = 16
ROUTINE = ("training", "evaluating")
LATE_S = 10.0
SHARED = (
    "Other peers see this node's address, its peer id and the tensors of its stages; nothing else of this machine is"
    " shared, and no code from elsewhere runs here."
)


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a node can say of itself before anything happened."""

    run_id: str
    name: str
    peer: str
    device: str
    stages: tuple[int, ...]
    why: str
    """Why these stages, or what is waited for."""
    local: bool = False
    """Nothing leaves this machine."""


class Screen:
    """The human side of one node. Use as a context manager; `as_json` puts the ready line on stdout. With a `log` everything
    goes there instead of to people."""

    def __init__(
        self, clock: Clock, *, as_json: bool = False, console: Console | None = None, log: JsonLog | None = None
    ) -> None:
        self._clock, self._json, self._log = clock, as_json, log
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._began = clock.monotonic()
        self._written_at = self._said_at = self._stepped_at = self._began
        self._said, self._drawn_at = "", -REDRAW_S
        self._limiter, self._line, self._logged_step = Limiter(), "", 0
        self._transfers: dict[str, Transfer] = {}
        self._copied: set[int] = set()
        self.progress = Progress()
        self.contribution: Contribution | None = None
        """Set once the run is known."""

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._json and not self._log:
            self._live = Live(Text(""), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def introduce(self, who: Introduction, last_step: int) -> None:
        """Who this is, once."""
        self.progress.peer, self.progress.last_step = who.peer, last_step
        stages = ", ".join(map(str, who.stages)) or "none yet"
        self._rows(
            [
                ("run", who.run_id),
                ("node", f"{who.name} ({who.peer})" if who.name else who.peer),
                ("device", who.device),
                ("stage", f"{stages} ({who.why})" if who.why else stages),
            ],
            "node",
        )
        if not who.local:
            self.line(SHARED)

    def up(self, running: Running) -> None:
        """The node is reachable."""
        others = f"others join with: regrow join {running.invite}"
        if self._log:
            self._log.line("up", "the node is reached", asdict(running))
        if self._json:
            sys.stdout.write(running.line() + "\n")
            sys.stdout.flush()
        if self._json or self._log:
            return
        self._rows(
            [
                ("peers reach it at", running.grpc),
                ("status page", f"http://{running.http}/"),
                ("state", running.state_dir),
            ],
            "up",
        )
        self.line(others)  # not in a table, whose folds would be copied with it

    def report(self, rows: Sequence[tuple[str, str]], as_json: dict[str, Any]) -> None:
        """The result of a command that ends with it, on stdout."""
        lines = [json.dumps(as_json)] if self._json else [f"{name}: {printable(value)}" for name, value in rows]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()

    def say(self, sentence: str) -> None:
        """A state sentence; the same one twice in a row is shown once, and the routine of a run is no news."""
        if sentence and sentence != self._said:
            is_routine = sentence.startswith(ROUTINE) and self._said.startswith(ROUTINE)
            self._said, self._said_at = sentence, self._clock.monotonic()
            if self._log and not is_routine:
                self._log.say(sentence)
            elif not is_routine and (held_back := self._limiter.admit(sentence, self._said_at)) is not None:
                self.line(told(sentence, held_back))
                self._redraw()

    def granted(self, stage: int, num_others: int) -> None:
        """The run gives this node a seat."""
        self._copied.discard(stage)
        held = "nobody else holds it" if not num_others else f"{num_others} other{'s hold' if num_others > 1 else ' holds'} it"
        self.line(f"the run gives this node stage {stage}: {held}", "granted", {"stage": stage})

    def transfer(self, what: str, num_bytes: int, total_bytes: int, seconds_left: float | None = None) -> None:
        """Something is on its way to this node; with `total_bytes` it is here."""
        if num_bytes >= total_bytes:
            self._transfers.pop(what, None)
            return
        before = self._transfers.get(what)
        began = before.began if before else self._clock.monotonic()
        self._transfers[what] = Transfer(what, num_bytes, total_bytes, began, seconds_left)
        if before is None:
            self.line(f"{what}: {human_bytes(total_bytes)} to download", "downloading", {"what": what, "bytes": total_bytes})
        self._redraw()

    def tick(self) -> None:
        """To be called every `TICK_S`: what is waited for, or how far it is, is said again."""
        now = self._clock.monotonic()
        if self._log:
            if self.progress.step > self._logged_step and now - self._written_at >= SELDOM_S:
                self._log_progress(now)
        elif self._live is not None:
            self._redraw()
        elif now - self._written_at >= (OFTEN_S if self._transfers or now - self._began < FIRST_MINUTES_S else SELDOM_S):
            self.line(self._present(now))

    def _log_progress(self, now: float) -> None:
        p, self._logged_step, self._written_at = self.progress, self.progress.step, now
        facts = {"step": p.step, "last_step": p.last_step or None, "loss": p.loss, "tokens_per_s": p.tokens_per_s}
        facts["share"] = self.contribution.share if self.contribution else None
        self.line(self._present(now), "progress", {name: value for name, value in facts.items() if value is not None})

    def _present(self, now: float) -> str:
        """One line: a transfer, the progress, or what was said last and how long ago."""
        if self._transfers:
            return "; ".join(transfer.sentence(now) for transfer in self._transfers.values())
        if self.progress.step and (self._stepped_at >= self._said_at or self._said.startswith(ROUTINE)):
            share = self.contribution.share if self.contribution else None
            late = now - self._stepped_at
            return (
                self.progress.sentence()
                + (f"  own share {share:.0%}" if share is not None else "")
                + (f"  last step {duration(late)} ago" if late >= LATE_S else "")
            )
        return f"{self._said or 'starting'} ({duration(now - self._said_at)})"

    def observe_event(self, event: Event) -> None:
        """Follow a copy of a stage's state."""
        match event:
            case LearningGoesOn(stage=stage, num_bytes=done, total_bytes=total, seconds_left=left) if stage not in self._copied:
                self.transfer(f"copying stage {stage}", min(done, total - 1), total, left)
            case Learned(stage=stage) if f"copying stage {stage}" in self._transfers:
                del self._transfers[f"copying stage {stage}"]
                self._copied.add(stage)  # what follows only keeps it up
                size, peers = human_bytes(event.num_bytes), "1 peer" if len(event.donors) == 1 else f"{len(event.donors)} peers"
                here = f"stage {stage} is here as of step {event.step}: {size} from {peers} in {duration(event.seconds)}"
                self.line(here, "copied", {"stage": stage, "step": event.step, "bytes": event.num_bytes})
                self._redraw()
            case _:
                pass

    def observe_command(self, command: Command) -> None:
        """Follow what the node decides: notes move the live line, sentences are said."""
        match command:
            case Say(sentence=sentence):
                self.say(sentence)
            case Note(type=type_, fields=fields):
                self._note(type_, fields)
            case Exit():
                self._redraw()
            case _:
                pass

    def _note(self, type_: str, fields: dict[str, Any]) -> None:
        self.progress.note(type_, fields, self._clock.monotonic())
        if type_ == "loss":
            self._stepped_at = self._clock.monotonic()
            if self._stepped_at - self._drawn_at >= REDRAW_S:
                self._redraw()
        elif type_ == "committed" and self.contribution and self.contribution.committed(fields):
            since = f"training since step {fields['step']}: this node's work is in the run's weights"
            self.line(since, "contributing", {"step": fields["step"], "stage": fields["stage"]})
        elif self._log:
            self._log.note(type_, fields)
        elif type_ == "lost":
            self.line(f"stage {fields['stage']} has lost peer {fields['peer'][-8:]}: {fields['reason']}")

    @property
    def uptime_s(self) -> float:
        """Since the start."""
        return self._clock.monotonic() - self._began

    def summary(self, received: int, sent: int, kept: str = "") -> None:
        """What came of it: steps, tokens, share, uptime, bytes; `kept`: what it was over all starts."""
        p, done = self.progress, self.contribution
        parts = [f"step {p.step}"]
        if p.last_loss is not None:
            parts.append(f"loss {p.last_loss:.3f}")
        if done is not None and done.share is not None:
            steps = "1 step" if done.steps == 1 else f"{done.steps:,} steps"
            parts += [f"{steps} and {done.tokens:,} tokens computed here", f"{done.share:.0%} of the swarm's work"]
        parts.append(f"up {duration(self.uptime_s)}")
        parts.append(f"{human_bytes(received)} received, {human_bytes(sent)} sent")
        self.line("ended: " + ", ".join(parts) + (f"; altogether {kept}" if kept else ""), "ended", {"step": p.step})

    def line(self, sentence: str, event: str = "said", ids: Mapping[str, Any] | None = None, level: str = "info") -> None:
        """One line, above the live one; not the one that was written last. `event` and `ids` are for a log in JSON."""
        self._written_at = self._clock.monotonic()
        if self._log:
            self._log.line(event, sentence, ids, level)
        elif sentence != self._line:
            self._line = sentence
            self._console.print(printable(sentence), markup=False, highlight=False)

    def log_handler(self, level: int = logging.WARNING) -> logging.Handler:
        """For the root logger: records of this level and above become lines."""
        return _ScreenHandler(self, level)

    def logged(self, record: logging.LogRecord) -> None:
        """A record of a logger."""
        level, sentence = record.levelname.lower(), record.getMessage()
        if record.exc_info and record.exc_info[1]:
            sentence += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        if self._log:
            self._log.line("log", sentence, {"logger": record.name}, level)
        elif (held_back := self._limiter.admit(sentence, self._clock.monotonic())) is not None:
            self.line(told(f"{level}: {sentence}", held_back))

    def _rows(self, rows: Sequence[tuple[str, str]], event: str) -> None:
        if self._log:
            self._log.line(event, "", dict(rows))
            return
        if not self._console.is_terminal:
            for name, value in rows:
                self.line(f"{name}: {value}")
            return
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(f"[dim]{name}[/dim]", Text(printable(value), overflow="fold"))
        self._console.print(table)

    def _redraw(self) -> None:
        self._drawn_at = self._clock.monotonic()
        if self._live is not None:
            bars = " ".join(transfer.bar(BAR_CHARS) for transfer in self._transfers.values())
            present = printable(f"{bars} {self._present(self._clock.monotonic())}".strip())
            self._live.update(Text.from_markup(f"[bold]{escape(present)}[/bold]"), refresh=True)


class _ScreenHandler(logging.Handler):
    """What the libraries and we log, a line each; what comes again and again is held back."""

    def __init__(self, screen: Screen, level: int) -> None:
        super().__init__(level)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.logged(record)
