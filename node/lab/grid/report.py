"""`regrow lab report`: tables, plots and results.json, all recomputed from the raw runs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.lab.files import write_whole
from node.lab.grid.plan import Plan
from node.lab.grid.plots import plots_of
from node.lab.grid.results import results_of
from node.lab.grid.tables import markdown
from node.lab.raw import Raw
from node.ports import UnusableError

REPORT, RESULTS = "report.md", "results.json"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Flags of `regrow lab report`."""

    raw: Path
    out: Path
    plan: Plan
    plots: bool = True


def report(options: ReportOptions) -> dict[str, Any]:
    """Write it. Raises `UnusableError(2)` where there is nothing to report, or it cannot be written."""
    lines = Raw(options.raw).all()
    results = results_of(lines, options.plan)
    if not results.cells and not results.stage0:
        raise UnusableError(2, f"{options.raw} has no run of plan {options.plan.digest}: make some with `regrow lab grid`")
    drawn = plots_of(results) if options.plots else {}
    for name, data in drawn.values():
        write_whole(options.out / name, data)
    raw = Path(os.path.relpath(options.raw, options.out)).as_posix()
    text = markdown(results, raw, {what: name for what, (name, _) in drawn.items()})
    plain = results.plain(raw)
    write_whole(options.out / REPORT, text.encode())
    write_whole(options.out / RESULTS, json.dumps(plain, indent=1).encode() + b"\n")
    return {
        "report": str(options.out / REPORT),
        "results": str(options.out / RESULTS),
        "plots": [str(options.out / name) for name, _ in drawn.values()],
        "runs": sum(line.get("run") == "grid" and line.get("plan") == options.plan.digest for line in lines),
        "missing": plain["missing"],
    }
