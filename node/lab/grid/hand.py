"""A worker's part of the grid: one job is one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.data.files import BlobFiles
from node.data.store import open_token_store
from node.lab.crew import PROGRESS
from node.lab.grid.plan import Plan
from node.lab.grid.policies import Cell
from node.lab.grid.world import Play
from protocol.manifest import DataSection

Plain = dict[str, Any]
TOLD_EVERY = 5
"""Steps between two words of how far it is."""


def job_of(name: Plain, cell: Cell, plan: Plan, data: DataSection, cache: Path) -> Plain:
    """As JSON has it."""
    return {
        "what": "grid",
        "name": name,
        "cell": cell.name,
        "recovery": cell.recovery,
        "plan": plan.model_dump(mode="json"),
        "data": data.model_dump(mode="json"),
        "cache": str(cache),
    }


def do_job(job: Plain, say: Callable[[Plain], None]) -> Plain:
    """The name of the run, with what came of it."""
    cell = Cell(**job["cell"], recovery=job["recovery"])
    blobs = BlobFiles(Path(job["cache"]))

    def on_step(executed: int) -> None:
        if executed % TOLD_EVERY == 0:
            say({PROGRESS: executed, "cell": cell.name})

    plan, data = Plan.model_validate(job["plan"]), DataSection.model_validate(job["data"])
    play = Play(plan, cell, data, lambda manifest: open_token_store(manifest, blobs), on_step)
    outcome = play.result()
    name: Plain = job["name"]
    return name | {"losses": play.losses, "outcome": outcome}
