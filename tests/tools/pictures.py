"""Draws the dashboards of a real run with matplotlib: `python -m tests.tools.pictures` renews docs/watching/*.png (minutes).

The queries are the panels' own, answered by a Prometheus that watched a small swarm lose a stage and get it back; the places
are those of the dashboards' files. It shows what is asked for and answered, not how Grafana paints it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from deploy.grafana.generate import BOARDS, FOLDER
from deploy.grafana.panels import MARKS, Board, Panel
from tests.tools.prometheus_server import Prometheus, Series
from tests.tools.promtool import ROOT
from tests.tools.watched import Watched, go_through_a_loss, watching

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

INTO = ROOT / "docs/watching"
CALM_S = 25.0
NOTE = "drawn by matplotlib from the dashboard's own queries, as a real Prometheus answered them; not a picture of Grafana"
STATES = {"red": "#d44a3a", "yellow": "#e0b400", "green": "#56a64b"}
UNITS = {"s": "s", "bytes": "bytes", "Bps": "bytes/s", "percentunit": "share", "ops": "per s"}
COLUMNS, INCH, ROW_INCH = 24, 0.7, 0.3
NUM_COLOURS = 48


def filled(expr: str) -> str:
    """As Grafana asks it, with everything chosen."""
    return re.sub(r"\$\w+", ".*", expr.replace("$__rate_interval", "10s"))


def name_of(series: Series, legend: str) -> str:
    """As Grafana names it."""
    named = re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), legend)
    return named.strip() or series.labels.get("__name__", "")


class Artist:
    """Draws panels of what one Prometheus saw."""

    def __init__(self, server: Prometheus) -> None:
        self._server, self._began = server, server.began
        self._marks = {mark.colour: [series.points[0][0] for series in server.over_time(filled(mark.expr))] for mark in MARKS}

    def board(self, name: str, board: Board) -> None:
        """One picture of a whole dashboard."""
        told = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        places = [panel["gridPos"] for panel in told["panels"] if panel["type"] != "row"]
        panels = [panel for row in board.rows for panel in row.panels]
        rows = max(at["y"] + at["h"] for at in places)
        figure = plt.figure(figsize=(COLUMNS * INCH, rows * ROW_INCH + 1), layout="none")
        for panel, at in zip(panels, places, strict=True):
            names = 1.0 if panel.kind in ("bars", "timeline") else 0.0
            left, width = (at["x"] + 1.0 + names) / COLUMNS, (at["w"] - 1.4 - names) / COLUMNS
            bottom, height = 1 - (at["y"] + at["h"] - 1.6) / rows, (at["h"] - 3.2) / rows
            self.panel(figure.add_axes((left, max(0.0, bottom * 0.97), width, height * 0.97)), panel)
        figure.suptitle(f"{board.title}: {NOTE}", fontsize=11, y=0.999, va="top")
        INTO.mkdir(exist_ok=True)
        figure.savefig(INTO / f"{name}.png", dpi=80)
        plt.close(figure)
        with Image.open(INTO / f"{name}.png") as large:
            small = large.convert("RGB").quantize(NUM_COLOURS)
        small.save(INTO / f"{name}.png", optimize=True)

    def panel(self, axes: Axes, panel: Panel) -> None:
        """One panel."""
        axes.set_title(panel.title, fontsize=9, loc="left", fontweight="bold")
        axes.tick_params(labelsize=7)
        found = [[(name_of(s, q.legend), s) for s in self._server.over_time(filled(q.expr))] for q in panel.queries]
        flat = [one for query in found for one in query]
        if not flat:
            axes.text(0.5, 0.5, "not in this run", ha="center", va="center", fontsize=8, color="grey")
            axes.set_axis_off()
        elif panel.kind == "by_step":
            self._by_step(axes, found)
        else:
            {"stat": self._stat, "bars": self._bars, "timeline": self._timeline}.get(panel.kind, self._lines)(axes, panel, flat)

    def _lines(self, axes: Axes, panel: Panel, flat: Sequence[tuple[str, Series]]) -> None:
        for name, series in flat:
            axes.plot([at - self._began for at, _ in series.points], [value for _, value in series.points], lw=1, label=name)
        axes.set_xlabel("s", fontsize=7)
        axes.set_ylabel(UNITS.get(panel.unit, ""), fontsize=7)
        self._mark(axes)
        _legend(axes)

    def _by_step(self, axes: Axes, found: Sequence[Sequence[tuple[str, Series]]]) -> None:
        (_, steps), *_ = found[0]
        step_at = dict(steps.points)
        for name, series in (one for query in found[1:] for one in query):
            both = [(step_at[at], value) for at, value in series.points if at in step_at]
            axes.plot([step for step, _ in both], [value for _, value in both], ".-", lw=0.7, ms=2, label=name)
        axes.set_xlabel("step", fontsize=7)
        _legend(axes)

    def _stat(self, axes: Axes, _: Panel, flat: Sequence[tuple[str, Series]]) -> None:
        value = flat[0][1].points[-1][1]
        axes.text(0.5, 0.5, f"{value:.4g}" if value % 1 else f"{value:.0f}", ha="center", va="center", fontsize=16)
        axes.set_axis_off()

    def _bars(self, axes: Axes, panel: Panel, flat: Sequence[tuple[str, Series]]) -> None:
        axes.barh([name for name, _ in flat], [series.points[-1][1] for _, series in flat], color="#5794f2")
        axes.set_xlabel(UNITS.get(panel.unit, ""), fontsize=7)

    def _timeline(self, axes: Axes, panel: Panel, flat: Sequence[tuple[str, Series]]) -> None:
        for row, (_, series) in enumerate(flat):
            for at, value in series.points:
                axes.broken_barh([(at - self._began, 1.02)], (row - 0.4, 0.8), color=colour_of(panel, value))
        axes.set_yticks(range(len(flat)), [name for name, _ in flat])
        axes.set_xlabel("s", fontsize=7)
        self._mark(axes)

    def _mark(self, axes: Axes) -> None:
        for colour, moments in self._marks.items():
            for at in moments:
                axes.axvline(at - self._began, color=STATES[colour], lw=1, ls="--")


def colour_of(panel: Panel, value: float) -> str:
    """Of a state."""
    told = {word: colour for word, _, colour in panel.words}.get(f"{value:.0f}")
    if told:
        return STATES[told]
    if panel.low_is_bad:
        first, second = panel.low_is_bad
        return STATES["red" if value < first else "yellow" if value < second else "green"]
    palette: list[Any] = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
    return str(mpl.colors.to_hex(palette[int(value) % len(palette)]))


def _legend(axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    if any(names):
        axes.legend(handles[:8], names[:8], fontsize=6, loc="best", framealpha=0.6)


def calm(watched: Watched) -> None:
    """Some time in which nothing happens."""
    until = time.monotonic() + CALM_S
    watched.wait("some calm time", lambda: time.monotonic() > until)


def main() -> None:
    """Live through a run and draw it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder, watching(Path(folder)) as watched:
        calm(watched)
        go_through_a_loss(watched)
        calm(watched)
        artist = Artist(watched.prometheus)
        for name, board in BOARDS.items():
            artist.board(name, board)


if __name__ == "__main__":
    main()
