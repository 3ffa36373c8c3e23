"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from node.lab.grid.policies import RATE_NAMES
from node.lab.grid.results import Cell, Figure, Results
from node.lab.grid.verdicts import HOPES, PAPER_HOURS, comparisons, hours, verdict
from node.lab.report import table

GIB = float(1 << 30)
COLUMNS = (
    "policy",
    "hours",
    "steps",
    "lost steps per failure",
    "failures",
    "outage, s",
    "s per step",
    "GiB per step",
    "goodput",
)


def markdown(results: Results, raw: str, plots: Mapping[str, str]) -> str:
    """`plots`: what is shown -> file beside the report."""
    plan = results.plan
    lines = [
        "# The grid's report",
        "",
        f"Made by `regrow lab report` from `{raw}` (plan `{plan.digest}`): do not edit. What is measured: [README](README.md).",
        "",
        f"Runs end when the held-out loss is down at {plan.target_loss:g}, or after {plan.max_steps:,} executed steps."
        " ± is the standard error over seeds. *k of n* stands where not all runs reached the target: there is no mean then.",
    ]
    if results.missing:
        lines += ["", f"**Not measured yet:** {'; '.join(results.missing)}."]
    for rate in RATE_NAMES:
        cells = [cell for (_, r), cell in results.cells.items() if r == rate]
        if cells:
            lines += ["", f"## {_title(rate)}", "", *_cells(cells)]
    if results.stage0:
        lines += ["", "## 10 % failures, stage 0 too", "", *_cells(list(results.stage0.values()))]
    for what, path in plots.items():
        lines += ["", f"![{what}]({path})"]
    return "\n".join([*lines, *_paper(results), ""])


def _title(rate: str) -> str:
    return "Without failures" if rate == "0" else f"{rate} % failures"


def _cells(cells: Sequence[Cell]) -> list[str]:
    return table(COLUMNS, [_row(cell) for cell in cells])


def _row(cell: Cell) -> list[str]:
    of = cell.figures
    return [
        cell.policy,
        told(of["hours_to_target"]),
        told(of["steps_to_target"], digits=0),
        told(of["lost_steps_per_failure"]) if cell.rate != "0" else "",
        told(of["failures"]),
        told(of["outage_s"]) if cell.rate != "0" else "",
        told(of["step_s"]),
        told(of["bytes_per_step"], scale=1 / GIB, digits=2),
        told(of["goodput"], digits=2),
    ]


def told(figure: Figure, scale: float = 1.0, digits: int = 1) -> str:
    """A cell of a table."""
    if figure.value is None:
        return f"{figure.reached} of {figure.n}" if figure.reached < figure.n else "–"
    mean = f"{figure.value.mean * scale:,.{digits}f}"
    return mean if figure.value.stderr is None else f"{mean} ± {figure.value.stderr * scale:.2g}"


def _paper(results: Results) -> Iterable[str]:
    yield from ["", "## Against the paper", ""]
    yield "Hours to the target here, and in the paper (500M, until validation loss 2.85): only the order can be compared."
    yield ""
    body = []
    for policy, there in PAPER_HOURS.items():
        row = [policy]
        for rate, paper in there.items():
            here = hours(results, policy, rate)
            row += ["–" if here is None else f"{here:,.1f}", f"{paper:,.0f}"]
        body.append(row)
    yield from table(["policy", *(f"{rate} %{where}" for rate in ("5", "10", "16") for where in ("", ", paper"))], body)
    yield ""
    yield from (f"- {sentence}" for sentence in comparisons(results))
    yield from ["", "What was hoped for:", ""]
    yield from (f"- {verdict(results, hope)}." for hope in HOPES)
