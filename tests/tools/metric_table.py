"""The tables of metrics and alerts in docs/watching.md, made of the code: `python -m tests.tools.metric_table` renews them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml
from prometheus_client.metrics_core import Metric

from node.facts import NODE_FACTS
from node.metrics import Metrics
from tests.tools.clock import StepClock
from tests.tools.metric_names import SUFFIXES, families, monitor_families
from tests.tools.promtool import ROOT, RULES

PAGE = ROOT / "docs/watching.md"


def shown(family: Metric) -> str:
    """As one asks for it."""
    return family.name + ("" if family.type == "histogram" else SUFFIXES[family.type][0])


def labels(family: Metric) -> str:
    """Of its own; the run is everybody's."""
    of_a_node = {
        collector._name: collector._labelnames
        for collector in vars(Metrics(StepClock())).values()
        if hasattr(collector, "_labelnames")
    }
    found = {name for sample in family.samples for name in sample.labels} - {"run", "le"}
    found |= set(of_a_node.get(family.name, ()))
    found |= {fact.label for name, fact in NODE_FACTS.items() if name == family.name and fact.label}
    return ", ".join(f"`{name}`" for name in sorted(found))


def metric_rows(found: Iterable[Metric]) -> list[str]:
    """One row for each metric of ours."""
    rows = [
        f"| `{shown(family)}` | {family.type} | {labels(family)} | {family.documentation} |"
        for family in sorted(found, key=lambda family: family.name)
        if family.name.startswith("regrow_")
    ]
    return ["| metric | type | labels | what |", "|---|---|---|---|", *rows]


def alert_rows() -> list[str]:
    """One row for each alert."""
    file = yaml.safe_load((RULES / "alerts.yml").read_text())
    rules: list[dict[str, Any]] = [rule for group in file["groups"] for rule in group["rules"]]
    rows = [
        f"| `{rule['alert']}` | {rule['labels']['severity']} | {rule['annotations']['description']} | "
        f"{rule['annotations']['runbook']} |"
        for rule in rules
    ]
    return [
        "| alert | severity | what it means | what to do |",
        "|---|---|---|---|",
        *(re.sub(r"\{\{.*?\}\}", "…", r) for r in rows),
    ]


def tables() -> dict[str, list[str]]:
    """By the name in the page's markers."""
    return {"alerts": alert_rows(), "node metrics": metric_rows(families()), "swarm metrics": metric_rows(monitor_families())}


def renewed(page: str) -> str:
    """The page with its tables as they should be."""
    for name, rows in tables().items():
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        assert begin in page, f"no place for the table of {name}"
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = "\n".join([head + begin, *rows, end + tail])
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
