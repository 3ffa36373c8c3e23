"""Writes deploy/grafana/dashboards/*.json from `panels.py`: `python -m deploy.grafana.generate`.

Built with Grafana's own typed builders (grafana-foundation-sdk), so that what is written is what Grafana's published schema
of a dashboard knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, statetimeline, timeseries, xychart
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.xychart import SeriesMapping, XYShowMode

from deploy.grafana.panels import MARKS, SWARM, VARIABLES, Board, Mark, Panel, Query
from deploy.grafana.panels_node import NODE, RECOVERY

FOLDER = Path(__file__).parent / "dashboards"
BOARDS = {"swarm": SWARM, "node": NODE, "recovery": RECOVERY}
SOURCE = DataSourceRef("prometheus", "regrow-prometheus")
INSTANT = ("stat", "bars")


def build(board: Board) -> dict[str, Any]:
    """The dashboard as JSON."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["regrow"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(dashboard.DashboardLink("Regrow").type("dashboards").tags(["regrow"]).include_vars(True).keep_time(True))
    )
    for name in board.variables:
        made = made.with_variable(variable(name))
    for mark in MARKS:
        made = made.annotation(annotation(mark))
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(MAKERS[panel.kind](panel))
    plain: dict[str, Any] = json.loads(JSONEncoder().encode(made.build()))
    for serial, told in enumerate(plain["panels"], start=1):
        told["id"] = serial
    for mark, told in zip(MARKS, plain["annotations"]["list"], strict=True):
        told |= {"titleFormat": mark.name, "textFormat": mark.text}  # the Prometheus plugin's own keys
    return plain


def variable(name: str) -> dashboard.QueryVariable:
    """One of run, stage, peer."""
    made = dashboard.QueryVariable(name).label(name).datasource(SOURCE).query(VARIABLES[name])
    made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.NATURAL_ASC)
    if name == "run":
        return made
    chosen = VariableOption(selected=True, text=["All"], value=["$__all"])
    return made.multi(True).include_all(True).all_value(".*").current(chosen)


def annotation(mark: Mark) -> dashboard.AnnotationQuery:
    """What is drawn over every panel."""
    made = dashboard.AnnotationQuery().name(mark.name).datasource(SOURCE).expr(mark.expr)
    return made.icon_color(mark.colour).enable(True)


def target(panel: Panel, query: Query, number: int) -> prometheus.Dataquery:
    """A query of a panel; those that show one number ask only for now."""
    made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto").ref_id(chr(ord("A") + number))
    return made.instant() if panel.kind in INSTANT else made.range()


def with_common(made: Any, panel: Panel) -> Any:
    """What every kind of panel has."""
    made = made.title(panel.title).description(panel.about).datasource(SOURCE).unit(panel.unit)
    made = made.span(panel.width).height(panel.height).thresholds(thresholds(panel))
    for number, query in enumerate(panel.queries):
        made = made.with_target(target(panel, query, number))
    if panel.words:
        words = {value: ValueMappingResult(text=text, color=colour) for value, text, colour in panel.words}
        made = made.mappings([ValueMap(words)])
    return made


def thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    """Colours by value."""
    steps = [Threshold(None, "green")]
    if panel.low_is_bad:
        first, second = panel.low_is_bad
        steps = [Threshold(None, "red"), Threshold(first, "yellow"), Threshold(second, "green")]
    elif panel.high_is_bad:
        first, second = panel.high_is_bad
        steps = [Threshold(None, "green"), Threshold(first, "yellow"), Threshold(second, "red")]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def legend() -> common.VizLegendOptions:
    """Below the graph."""
    made = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    return made.show_legend(True)


def line(panel: Panel) -> Any:
    """Curves over time."""
    made = timeseries.Panel().legend(legend()).line_width(1).show_points(VisibilityMode.NEVER)
    return with_common(made, panel)


def stack(panel: Panel) -> Any:
    """Areas on top of one another."""
    return line(panel).fill_opacity(30).stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))


def figure(panel: Panel) -> Any:
    """The last value, large."""
    return with_common(stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])), panel)


def bars(panel: Panel) -> Any:
    """A bar for each series."""
    made = bargauge.Panel().display_mode(BarGaugeDisplayMode.BASIC).orientation(VizOrientation.HORIZONTAL)
    return with_common(made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])), panel)


def timeline(panel: Panel) -> Any:
    """States over time, a row for each series."""
    made = statetimeline.Panel().merge_values(True).show_value(VisibilityMode.AUTO).row_height(0.9).legend(legend())
    return with_common(made, panel)


def by_step(panel: Panel) -> Any:
    """Every query but the first over the first one."""
    x, *ys = [query.legend for query in panel.queries]
    series = [
        xychart.XYSeriesConfig()
        .x(xychart.XychartXYSeriesConfigX().matcher(named(x)))
        .y(xychart.XychartXYSeriesConfigY().matcher(named(y)))
        for y in ys
    ]
    made = xychart.Panel().mapping(SeriesMapping.MANUAL).series(series).show(XYShowMode.POINTS_AND_LINES).legend(legend())
    join = DataTransformerConfig(id_val="joinByField", options={"byField": "Time", "mode": "outer"})
    return with_common(made.with_transformation(join), panel)


def named(name: str) -> xychart.MatcherConfig:
    """The field of this name."""
    return xychart.MatcherConfig().id("byName").options(name)


MAKERS = {"line": line, "stack": stack, "stat": figure, "bars": bars, "timeline": timeline, "by_step": by_step}


def text(board: Board) -> str:
    """The dashboard's file."""
    return json.dumps(build(board), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, board in BOARDS.items():
        (FOLDER / f"{name}.json").write_text(text(board), encoding="utf-8")


if __name__ == "__main__":
    main()
