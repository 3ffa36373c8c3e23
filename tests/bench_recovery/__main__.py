"""`make bench-recovery`: a stage's only holder is killed; how long until its neighbours' mix is committed at a newcomer.

Everything is measured from outside: the time of the kill, lines in event logs, counters of network interfaces. Everything for
people goes to stderr; the last line on stdout is JSON, of the cell that counts (or the last one asked for).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench_recovery.cells import CELLS, THE_ONE_THAT_COUNTS, Cell
from tests.bench_recovery.figures import Figures, figures_of, goals, moments_of
from tests.bench_recovery.link import MISSING
from tests.bench_recovery.rig import LINK, Outcome, run_cell
from tests.tools.wan import is_possible

CANNOT = 2
COLUMNS = ("detect_s", "step_s", "kill_to_commit_s", "transfer_s", "link_share", "download_over_stage")


def say(text: str = "") -> None:
    """For people."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """See the module."""
    names = [cell.name for cell in CELLS]
    parser = argparse.ArgumentParser(prog="make bench-recovery")
    parser.add_argument("--cell", action="append", choices=names, help="only this one (repeatable)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave state directories and event logs there")
    asked = parser.parse_args()
    chosen = [cell for cell in CELLS if not asked.cell or cell.name in asked.cell]
    if any(cell.on_wan for cell in chosen) and not is_possible():
        say("bench-recovery: the emulated WAN needs root and /dev/net/tun; without them: --cell tiny-loopback --cell loopback")
        return CANNOT
    say(f"emulated WAN: {LINK.rate * 8 / 1e6:.0f} Mbit/s up and down and {LINK.delay_s * 1e3:.0f} ms one way at every node")
    found: dict[str, Figures] = {}
    with ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="regrow-bench-")))
        for cell in chosen:
            found[cell.name] = _measure(cell, folder / cell.name)
    _table(found)
    last = found.get(THE_ONE_THAT_COUNTS) or list(found.values())[-1]
    print(json.dumps(_rounded(last)))
    return 0


def _measure(cell: Cell, folder: Path) -> Figures:
    say(f"\n{cell.name}: {cell.story}")
    outcome = run_cell(cell, folder)
    figures = figures_of(outcome.seen)
    _tell(cell, outcome, figures)
    return figures


def _tell(cell: Cell, outcome: Outcome, figures: Figures) -> None:
    seen, router = outcome.seen, outcome.router
    if cell.on_wan:
        say(f"  iperf3 through the same link: {seen.link_mbit:.1f} Mbit/s" if seen.link_mbit else f"  {MISSING}")
        say(f"  emulator: {router['packets']} packets, {router['dropped']} dropped, {router['cpu_s']} s of CPU")
    steps = sorted(moments_of(seen).items(), key=lambda item: item[1])
    for line in outcome.traffic:
        say(f"  MB received each second, {line}")
    say("  seconds after the kill: " + ", ".join(f"{name} {at:.2f}" for name, at in steps))
    if cell.name == THE_ONE_THAT_COUNTS:
        for goal in goals(seen, figures):
            say(f"  {goal}")


def _table(found: dict[str, Figures]) -> None:
    say("\n" + f"{'cell':15}" + "".join(f"{name:>21}" for name in COLUMNS))
    for name, figures in found.items():
        values = _rounded(figures)
        say(f"{name:15}" + "".join(f"{'-' if values[column] is None else values[column]:>21}" for column in COLUMNS))


def _rounded(figures: Figures) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(figures).items()}


if __name__ == "__main__":
    sys.exit(main())
