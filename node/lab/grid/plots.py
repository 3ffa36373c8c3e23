"""Plots of the grid as SVG: the same bytes from the same results. Needs matplotlib, which whoever only trains does not have."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from node.lab.grid.policies import RATE_NAMES, ROWS
from node.lab.grid.results import Results
from node.ports import UnusableError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAILING = tuple(rate for rate in RATE_NAMES if rate != "0")
SALT = "regrow"


def plots_of(results: Results) -> dict[str, tuple[str, bytes]]:
    """What is shown -> (file name, bytes). Raises `UnusableError(2)` without matplotlib."""
    return {
        "Held-out loss over hours, a line per run": ("loss-over-hours.svg", _drawn(results, _losses)),
        "Hours to the target": ("hours-to-target.svg", _drawn(results, _hours)),
    }


def _drawn(results: Results, draw: Callable[[Axes, Results, str], None]) -> bytes:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise UnusableError(2, "plots need matplotlib: pip install 'regrow[lab]', or give --no-plots") from None
    with mpl.rc_context({"svg.hashsalt": SALT, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        axes: list[Any] = list(figure.subplots(1, len(FAILING), sharey=True))
        for axis, rate in zip(axes, FAILING, strict=True):
            axis.set_title(f"{rate} % failures")
            draw(axis, results, rate)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _colour(policy: str) -> str:
    return f"C{[row.name for row in ROWS].index(policy) % 10}"


def _losses(axis: Axes, results: Results, rate: str) -> None:
    """The failure-free run beside the others, and the target."""
    shown = [cell for (policy, r), cell in results.cells.items() if r == rate or (policy, r) == ("none", "0")]
    for cell in shown:
        for number, run in enumerate(cell.runs):
            hours, losses = [x for x, _ in run.curve], [y for _, y in run.curve]
            dashes = "--" if cell.policy == "none" else "-"
            label = cell.policy if number == 0 else None
            axis.plot(hours, losses, dashes, color=_colour(cell.policy), label=label, linewidth=0.9)
    axis.axhline(results.plan.target_loss, color="black", linewidth=0.5)
    axis.set_xlabel("virtual hours")
    axis.set_ylabel("held-out loss")
    if shown:
        axis.legend(fontsize=6)


def _hours(axis: Axes, results: Results, rate: str) -> None:
    """A bar where all runs of a cell reached the target, with its standard error; how many of them did, where not all."""
    cells = [cell for (_, r), cell in results.cells.items() if r == rate]
    for number, cell in enumerate(cells):
        found = cell.figures["hours_to_target"]
        if found.value:
            axis.barh(number, found.value.mean, xerr=found.value.stderr, color=_colour(cell.policy))
        else:
            axis.text(0, number, f" {found.reached} of {found.n} reached it", va="center")
    axis.set_yticks(range(len(cells)), [cell.policy for cell in cells])
    calm = results.cells.get(("none", "0"))
    level = calm.mean("hours_to_target") if calm else None
    if level is not None:
        axis.axvline(level, color="black", linewidth=0.5)
    axis.set_xlabel("virtual hours to the target")
