"""The page in a terminal: the same view as text, live, or as plain lines where nobody can redraw."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from node.page.view import View
from node.plain_text import printable
from node.progress import duration

BARS = "▁▂▃▄▅▆▇█"
LEVEL_STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "idle": "dim", "info": ""}
STAGE_STYLES = {
    "ok": "green",
    "single": "green",
    "strained": "yellow",
    "suspected": "yellow",
    "rebuilding": "blue",
    "lost": "bold red",
}
SIGNS = {"live": "●", "unwatched": "●", "suspected": "▲", "lost": "✕", "rebuilding": "↻"}
ROLE_SIGNS = {"passive": "○", "learner": "◔", "parked": "□"}
MAX_NAMED = 3
SHOWN_EVENTS = 8


def sparkline(values: Sequence[float], width: int) -> str:
    """The curve in one line of at most `width` characters; each is the mean of the values that fall to it."""
    if not values or width < 1:
        return ""
    width = min(width, len(values))
    means = []
    for n in range(width):
        part = values[n * len(values) // width : (n + 1) * len(values) // width]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def drawn(view: View, width: int = 80) -> RenderableType:
    """The whole view, for a terminal that can be drawn on again."""
    head = view["headline"]
    parts: list[RenderableType] = [Text(printable(head["title"]), style=f"bold {LEVEL_STYLES.get(head['level'], '')}")]
    parts.append(Text(printable(head["text"]), style="dim"))
    parts += [Text(f"! {printable(w['text'])} {printable(w['do'])}", style=LEVEL_STYLES["warn"]) for w in view["warnings"]]
    parts += [Text(""), Text(figures(view))]
    run = view["run"]
    if run["last_step"]:
        parts.append(ProgressBar(total=run["last_step"], completed=run["step"], width=min(width, 80)))
    parts += [Text(""), _pipeline(view)]
    for name, values in (("loss", view["curves"].get("loss", ())), ("tokens/s", view["curves"].get("tokens_per_s", ()))):
        if len(values) > 1:
            parts.append(Text(f"{name:>9} {sparkline([value for _, value in values], min(width - 12, 100))}", style="blue"))
    parts.append(Text(""))
    events = Table.grid(padding=(0, 2))
    for event in view["events"][-SHOWN_EVENTS:]:
        style = LEVEL_STYLES.get(event["level"], "")
        events.add_row(Text(_clock(event["wall"]), style="dim"), Text(_said(event), style=style, overflow="fold"))
    parts.append(events)
    return Group(*parts)


def figures(view: View) -> str:
    """`step 60/100  loss 5.881  2,095 tokens/s`."""
    run = view["run"]
    of = f"/{run['last_step']:,}" if run["last_step"] else ""
    told = [f"step {run['step']:,}{of}"]
    if run["loss"] is not None:
        told.append(f"loss {run['loss']:.3f}")
    if run["validation"] is not None:
        told.append(f"held out {run['validation']:.3f}")
    if run["tokens_per_s"]:
        told.append(f"{run['tokens_per_s']:,.0f} tokens/s")
    if run["seconds_left"] and run["step"] < run["last_step"]:
        told.append(f"{duration(run['seconds_left'])} left")
    if run["committed_at"]:
        told.append(f"last commit {duration(max(0.0, view['now'] - run['committed_at']))} ago")
    return "  ".join(told)


def _pipeline(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for stage in view["pipeline"]:
        style = STAGE_STYLES.get(stage["state"], "dim")
        signs = "".join(_sign(replica) for replica in stage["replicas"][:64])
        names = [printable(r["name"] or r["id"], 24) for r in stage["replicas"] if r["state"] != "lost"]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        named = ", ".join(names[:MAX_NAMED]) + more
        table.add_row(
            f"stage {stage['stage']}", Text(signs, style=style), Text(printable(stage["note"]), style=style), Text(named)
        )
    return table


def _sign(replica: dict[str, Any]) -> str:
    state = replica["state"]
    return ROLE_SIGNS.get(replica["role"], SIGNS["live"]) if state in ("live", "unwatched") else SIGNS.get(state, "?")


def _said(event: dict[str, Any]) -> str:
    times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
    return printable(event["text"]) + times


def _clock(wall: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall))


class Lines:
    """What is new in a view, as plain lines: the headline and each event once, how far the run is now and then."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._title, self._serial, self._told_at, self._figures = "", 0, float("-inf"), ""

    def news(self, view: View) -> Iterator[str]:
        """Lines to write now."""
        title = view["headline"]["title"]
        if title != self._title:
            self._title = title
            yield printable(f"{title} {view['headline']['text']}".strip())
        for event in view["events"]:
            if event["serial"] > self._serial:
                self._serial = event["serial"]
                yield f"{_clock(event['wall'])} {_said(event)}"
        told = figures(view)
        if view["now"] - self._told_at >= self._every_s and told != self._figures:
            self._told_at, self._figures = view["now"], told
            yield told
