"""`make mutants`: makes `protocol/` wrong in one place at a time, in memory, and counts how often tests and swarms notice.

Everything for people goes to stderr; the one line on stdout is JSON. Exit code 0: 90 % and all named ones were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutants.edits import Mutant, all_mutants, choose
from tests.mutants.explained import EXPLAINED
from tests.mutants.killing import STAGES, Fate, NoTestError, let_loose
from tests.mutants.named import named_mutants

ROOT = Path(__file__).parents[2]
WANTED = 0.9
CANNOT = 2


def say(text: str = "") -> None:
    """For people."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """See the module."""
    asked = _arguments()
    try:
        drawn = [*named_mutants(ROOT), *choose(all_mutants(ROOT), asked.count, asked.seed)]
        if asked.only:
            drawn = [m for m in [*named_mutants(ROOT), *all_mutants(ROOT)] if asked.only in m.id or asked.only == m.name]
    except ValueError as error:
        say(f"mutants: {error}")
        return CANNOT
    drawn.sort(key=lambda mutant: mutant.id in EXPLAINED)  # whoever will survive takes longest, and tells nothing new
    if asked.list or not drawn:
        say("\n".join(f"{m.kind:>10}  {m.id}" for m in drawn) or f"mutants: none is called like '{asked.only}'")
        return 0 if drawn else CANNOT
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        fates = let_loose(
            ROOT, drawn, max(1, asked.jobs), asked.trust, lambda n, fate: say(f"{n:3}/{len(drawn)} {_line(fate)}")
        )
    except (NoTestError, KeyboardInterrupt) as error:
        say(f"mutants: {str(error) or 'interrupted'}")
        return CANNOT
    _table(fates)
    found = figures_of(fates) | {"seed": asked.seed, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(found))
    return 0 if found["killed_share"] >= WANTED and found["named_killed"] == found["named"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--count", type=int, default=30, help="how many are drawn, beside the five named ones (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time (default: one per core)")
    parser.add_argument("--only", metavar="TEXT", help="instead: all whose name or description holds this")
    parser.add_argument(
        "--trust", action="store_true", help="do not first show that all holds without a mutant (a minute or two)"
    )
    parser.add_argument("--list", action="store_true", help="only tell which they would be")
    return parser.parse_args()


def _line(fate: Fate) -> str:
    how = f"killed by {fate.stage}: {fate.witness}" if fate.stage else "SURVIVED"
    return f"{fate.seconds:5.0f} s  {fate.mutant.name or fate.mutant.kind:>24}  {how}\n{'':18}{_told(fate.mutant)}"


def _told(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line} {mutant.function}: {mutant.what}"


def _table(fates: list[Fate]) -> None:
    say()
    for kind in ("named", "check", "comparison", "constant"):
        of = [fate for fate in fates if fate.mutant.kind == kind]
        by = Counter(fate.stage for fate in of)
        rows = ", ".join(f"{by[stage]} by {stage}" for stage in STAGES)
        say(f"{kind:>12}: {len(of):3} mutants, {len(of) - by['']:3} killed ({rows})")
    for fate in fates:
        if not fate.stage:
            say(f"survived: {_told(fate.mutant)}\n  {EXPLAINED.get(fate.mutant.id, 'nobody has explained this one yet')}")


def figures_of(fates: list[Fate]) -> dict[str, Any]:
    """What the JSON line says, but for the seed and the time."""
    survivors = [fate.mutant for fate in fates if not fate.stage]
    named = [fate for fate in fates if fate.mutant.name]
    return {
        "mutants": len(fates),
        "killed": len(fates) - len(survivors),
        "survived": len(survivors),
        "killed_share": round(1 - len(survivors) / len(fates), 4),
        "named": len(named),
        "named_killed": sum(bool(fate.stage) for fate in named),
        "explained": sum(mutant.id in EXPLAINED for mutant in survivors),
        "killed_by": dict(Counter(fate.stage for fate in fates if fate.stage)),
        "killed_by_time": sum(fate.by_time for fate in fates),
        "survivors": [mutant.id for mutant in survivors],
    }


if __name__ == "__main__":
    sys.exit(main())
