"""Raw results: one line of JSON for each run and each fork, appended as soon as it is known. What is there is done once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.lab.treatments import Treatment
from node.ports import UnusableError

Plain = dict[str, Any]


def reference_name(seed: int, swapped: bool, steps: int, warm_steps: Iterable[int]) -> Plain:
    """Of an undisturbed run."""
    return {"run": "reference", "seed": seed, "swapped": swapped, "steps": steps, "warm_steps": list(warm_steps)}


def fork_name(seed: int, swapped: bool, warm: int, steps: int, stage: int, treatment: Treatment) -> Plain:
    """Of a fork."""
    place = {"run": "fork", "seed": seed, "swapped": swapped, "warm": warm, "steps": steps, "stage": stage}
    return place | {"treatment": treatment.plain()}


def run_name(cell: Plain, plan: str, data: str) -> Plain:
    """Of a run of the grid: its cell, and the digests of plan and data."""
    return {"run": "grid", **cell, "plan": plan, "data": data}


def _key(name: Plain) -> str:
    left_out = ("losses", "norms", "outcome")
    return json.dumps({key: value for key, value in name.items() if key not in left_out}, sort_keys=True)


@dataclass(slots=True)
class Raw:
    """A file of results. A last line that was torn off is as good as absent."""

    path: Path
    _found: dict[str, Plain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self._found = {_key(result): result for result in _lines(self.path)}

    def get(self, name: Plain) -> Plain | None:
        """What came of it, if it was done."""
        return self._found.get(_key(name))

    def all(self) -> list[Plain]:
        """Everything, in the order in which it was done."""
        return list(self._found.values())

    def add(self, result: Plain) -> None:
        """One more. Raises `UnusableError(2)` where it cannot be written."""
        self._found[_key(result)] = result
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                if file.tell():
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":
                        file.write(b"\n")
                file.write(json.dumps(result).encode() + b"\n")
        except OSError as error:
            why = f"cannot write {self.path} ({error.strerror}); free some space or choose another --work"
            raise UnusableError(2, why) from None


def _lines(path: Path) -> Iterator[Plain]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnusableError(2, f"{path} cannot be read ({error.strerror}); choose another --work") from None
    for line in text.splitlines():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if isinstance(result, dict) and isinstance(result.get("losses"), list):
            yield result
