"""The demo's screen, on stderr: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from node.demo.process import NodeProcess
from node.demo.watch import Watch
from node.plain_text import printable

PLAIN_INTERVAL_S = 5.0


class DemoScreen:
    """Use as a context manager; `say` lines stay, `draw` shows the present."""

    def __init__(self, *, live: bool, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._wants_live = live and self._console.is_terminal
        self._live: Live | None = None
        self._drawn_at = float("-inf")
        self._said = ""

    def __enter__(self) -> Self:
        if self._wants_live:
            self._live = Live(Text(""), console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, sentence: str) -> None:
        """A line that stays; the same one twice in a row is shown once."""
        if sentence and sentence != self._said:
            self._said = sentence
            self._console.print(printable(sentence), markup=False, highlight=False)

    def draw(self, watch: Watch, now: float) -> None:
        """The present state. `now`: monotonic s."""
        if self._live is not None:
            self._live.update(picture(watch), refresh=True)
        elif now - self._drawn_at >= PLAIN_INTERVAL_S and watch.progress.step:
            self._drawn_at = now
            self.say(watch.progress.sentence())


def picture(watch: Watch) -> Group:
    """Progress, who holds what, and what the swarm does."""
    progress = watch.progress
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(1, progress.last_step), completed=progress.step, width=60))
    return Group(
        Text(progress.sentence(), style="bold"),
        bar,
        holders(watch.nodes, watch),
        Text(printable(watch.sentence, 200), style="dim"),
    )


def holders(nodes: Sequence[NodeProcess], watch: Watch) -> Table:
    """One row a node: process, seats, phase, step."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("node", "process", "holds", "phase", "step"):
        table.add_column(column)
    for node in nodes:
        status = watch.statuses.get(node.name, {})
        seats = ", ".join(f"stage {seat.get('stage')} ({seat.get('role')})" for seat in status.get("seats", ()))
        code = node.exit_code
        phase = str(status.get("phase", "starting")) if code is None else f"ended ({code})"
        table.add_row(node.name, str(node.process.pid), seats or "-", phase, str(status.get("step", "-")))
    return table
