"""What is told of a measurement: Markdown tables for people, the same as plain data for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from node.lab.derived import Run
from node.lab.figures import Mean
from node.lab.rows import Row
from node.lab.setup import Setup


@dataclass(frozen=True, slots=True)
class Measured:
    """All of one setup."""

    setup: Setup
    rows: Sequence[Row]
    tax: Mean
    hours: Mapping[str, Mapping[str, float]]
    run: Run
    better: Sequence[Row] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON has it; hours that never end are null."""
        return {
            "setup": self.setup.plain(),
            "policies": {row.name: row.plain() for row in self.rows},
            "swap_tax": self.tax.plain(),
            "derived": {
                "run": asdict(self.run),
                "hours": {
                    name: {rate: hours if math.isfinite(hours) else None for rate, hours in by_rate.items()}
                    for name, by_rate in self.hours.items()
                },
            },
            "better": {row.name: row.plain() for row in self.better},
        }

    def markdown(self) -> str:
        """Tables, each under a heading."""
        setup, stages = self.setup, range(1, self.setup.num_block_stages + 1)
        lines = [
            f"## {setup.num_block_stages} block stages of {setup.layers_per_stage} layers, {setup.hidden} wide",
            "",
            f"{len(setup.seeds)} seeds, a stage lost after steps {_and(setup.warm_steps)}; forks of {setup.fork_steps} steps of"
            f" {setup.samples * setup.context_tokens} tokens.",
            "",
            *self._policies("policy", self.rows, stages),
            "",
            f"Swapping stages (checkfree_plus) takes {_told(self.tax, 100)} % more steps without any failure.",
            "",
            *self._hours(),
        ]
        if self.better:
            lines += ["", "### Changes to checkfree", "", *self._policies("change", self.better, stages)]
        return "\n".join(lines) + "\n"

    def _policies(self, what: str, rows: Sequence[Row], stages: range) -> list[str]:
        warms = sorted({warm for row in rows for warm in row.by_warm})
        heads = [what, "lost steps per failure", "excess loss", *(f"S{s}" for s in stages), *(f"at {w}" for w in warms)]
        body = []
        for row in rows:
            apart = [row.by_stage.get(s) for s in stages] + [row.by_warm.get(w) for w in warms]
            body.append([row.name, _told(row.lost), _told(row.excess), *(_told(mean) for mean in apart)])
        return table(heads, body)

    def _hours(self) -> list[str]:
        rates = list(next(iter(self.hours.values())))
        told = f"Derived, not measured: hours until {self.run.steps:,} useful steps of {self.run.step_s} s,"
        told += f" {self.run.failing_stages} block stages that may fail, at failures per hour of the columns. A step under"
        told += f" redundant takes {self.run.redundant_factor:.2f} times as long ({self.run.redundant_source})."
        body = [[name, *(_hours_told(by_rate[rate]) for rate in rates)] for name, by_rate in self.hours.items()]
        return [told, "", *table(["policy", *(f"{rate} %" for rate in rates)], body)]


def table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Of Markdown."""
    return [_line(heads), _line(["---", *(["---:"] * (len(heads) - 1))]), *map(_line, body)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _told(mean: Mean | None, times: float = 1.0) -> str:
    if mean is None:
        return ""
    told = f"{mean.mean * times:.1f}" if abs(mean.mean * times) >= 1 or not mean.mean else f"{mean.mean * times:.2f}"
    return told if mean.stderr is None else f"{told} ± {mean.stderr * times:.2g}"


def _hours_told(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "never"


def _and(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
