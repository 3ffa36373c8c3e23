"""What `start` and `join` show: who this node is, each change of state, a live line, and a summary at the end.

stdout carries at most the one line of `--json`; everything else goes to stderr. On a terminal the last line is live,
elsewhere (a file, systemd's journal) it is written now and then.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from node.plain_text import printable
from node.ports import Clock
from node.progress import Progress, duration
from node.running import Running
from protocol.commands import Command, Exit, Note, Say

PLAIN_INTERVAL_S = 30.0
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
    """The human side of one node. Use as a context manager; `as_json` puts the ready line on stdout."""

    def __init__(self, clock: Clock, *, as_json: bool = False, console: Console | None = None) -> None:
        self._clock, self._json = clock, as_json
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._began = clock.monotonic()
        self._written_at = -PLAIN_INTERVAL_S
        self._said = ""
        self.progress = Progress()

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._json:
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
            ]
        )
        if not who.local:
            self.line(SHARED)

    def up(self, running: Running) -> None:
        """The node is reachable."""
        if self._json:
            sys.stdout.write(running.line() + "\n")
            sys.stdout.flush()
            return
        self._rows(
            [
                ("peers reach it at", running.grpc),
                ("status", f"http://{running.http}/status"),
                ("state", running.state_dir),
                ("others join with", f"regrow join {running.invite}"),
            ]
        )

    def report(self, rows: Sequence[tuple[str, str]], as_json: dict[str, Any]) -> None:
        """The result of a command that ends with it, on stdout."""
        lines = [json.dumps(as_json)] if self._json else [f"{name}: {printable(value)}" for name, value in rows]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()

    def say(self, sentence: str) -> None:
        """A state sentence; the same one twice in a row is shown once."""
        if sentence and sentence != self._said:
            self._said = sentence
            self.line(sentence)
            self._refresh()

    def observe_command(self, command: Command) -> None:
        """Follow what the node decides: notes move the live line, sentences are said."""
        match command:
            case Say(sentence=sentence):
                self.say(sentence)
            case Note(type=type_, fields=fields):
                self.progress.note(type_, fields, self._clock.monotonic())
                if type_ == "loss":
                    self._refresh()
            case Exit():
                self._refresh()
            case _:
                pass

    def summary(self) -> None:
        """What came of it: steps, tokens, share, uptime."""
        p = self.progress
        parts = [f"step {p.step}", f"{p.num_tokens:,} tokens"]
        if p.last_loss is not None:
            parts.append(f"loss {p.last_loss:.3f}")
        if p.share is not None:
            parts.append(f"{p.share:.0%} of the work on its stages done here")
        parts.append(f"up {duration(self._clock.monotonic() - self._began)}")
        self.line("ended: " + ", ".join(parts))

    def line(self, sentence: str) -> None:
        """One line, above the live one."""
        self._console.print(printable(sentence), markup=False, highlight=False)

    def log_handler(self) -> logging.Handler:
        """For the root logger: records become lines."""
        return _ScreenHandler(self)

    def _rows(self, rows: Sequence[tuple[str, str]]) -> None:
        if not self._console.is_terminal:
            for name, value in rows:
                self.line(f"{name}: {value}")
            return
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row(f"[dim]{name}[/dim]", Text(printable(value), overflow="fold"))
        self._console.print(table)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(Text.from_markup(f"[bold]{escape(self.progress.sentence())}[/bold]"), refresh=True)
        elif self.progress.step and self._clock.monotonic() - self._written_at >= PLAIN_INTERVAL_S:
            self._written_at = self._clock.monotonic()
            self.line(self.progress.sentence())


class _ScreenHandler(logging.Handler):
    """Warnings and errors of the libraries and ours, one line each."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.line(f"{record.levelname.lower()}: {record.getMessage()}")
