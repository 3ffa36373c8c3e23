"""deploy/grafana: the dashboards are those of `panels.py`, say what Grafana's schema knows, and ask for what there is."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana.generate import BOARDS, FOLDER, SOURCE, text
from deploy.grafana.panels import MARKS, VARIABLES
from tests.tools.grafana_types import OWN_KEYS, lost, mistyped
from tests.tools.metric_names import asked_for, in_code
from tests.tools.promtool import ROOT, RULES, promtool

pytestmark = pytest.mark.timeout(300)
GRAFANA = ROOT / "deploy/grafana"
UNSEEN = {
    "regrow_node_info",  # who it is: no number
    "regrow_evaluations_skipped_total",  # rare, and in the event log
    "regrow_tokens_total",  # of the whole run: the monitor's count is shown
    "regrow_recoveries_total",  # of the coordinator alone: the monitor's count is shown
}
"""Metrics that no panel has, and why."""
CONSTANT = re.compile(r"\bvector\s*\(|\bor\s+(on\s*\(\s*\)\s*)?vector\b|^\s*[\d.]+\s*$")


def dashboard(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return told


def panels(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [inner for panel in told["panels"] for inner in [panel, *panel.get("panels", ())]]


def expressions() -> list[str]:
    """Of every panel, annotation and variable, as a reader of the files finds them."""
    found = []
    for name in BOARDS:
        told = dashboard(name)
        found += [target["expr"] for panel in panels(told) for target in panel.get("targets", ())]
        found += [mark["expr"] for mark in told["annotations"]["list"]]
    return list(dict.fromkeys(found))


def plain(expr: str) -> str:
    """With Grafana's variables filled in."""
    filled = expr.replace("$__rate_interval", "1m")
    return re.sub(r"\$\w+", ".*", filled)


@pytest.mark.parametrize("name", BOARDS)
def test_files_are_what_the_generator_writes(name: str) -> None:
    """`python -m deploy.grafana.generate` brings them up to date."""
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text(BOARDS[name])
    assert {path.stem for path in FOLDER.glob("*.json")} == set(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_schema_knows_every_key_and_type(name: str) -> None:
    told = dashboard(name)
    assert mistyped(told) == []
    assert {path.rpartition(".")[2] for path in lost(told)} <= OWN_KEYS, lost(told)


def test_the_schema_can_object() -> None:
    told = dashboard("swarm")
    for key, value in (("unknownThing", 1), ("refresh", 10), ("graphTooltip", 7)):
        broken = copy.deepcopy(told) | {key: value}
        assert lost(broken) != lost(told) or mistyped(broken), key
    broken = copy.deepcopy(told)
    (graph,) = [panel for panel in panels(broken) if panel.get("title") == "Nodes" and "targets" in panel]
    graph["options"]["legend"]["placement"] = "nowhere"
    assert len(mistyped(broken)) == 1
    broken = copy.deepcopy(told)
    panels(broken)[1]["targets"][0]["exprr"] = "up"
    assert len(lost(broken)) == len(lost(told)) + 1


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_their_place_and_can_be_read(name: str) -> None:
    told = dashboard(name)
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels(told) if "id" in panel]
    assert len(ids) == len(set(ids))
    for panel in panels(told):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"] and all(target["datasource"] for target in panel["targets"] if "datasource" in target)
            assert panel["datasource"] == {"type": SOURCE.type_val, "uid": SOURCE.uid}
    assert [variable["name"] for variable in told["templating"]["list"]] == ["run", "stage", "peer"]


def test_expressions_ask_only_for_what_there_is() -> None:
    rules = yaml.safe_load((RULES / "recording.yml").read_text())
    known = in_code() | {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    for expr in [*expressions(), *VARIABLES.values()]:
        asked = asked_for(expr)
        assert asked or "up{" in expr, expr
        assert asked <= known, f"{expr}: no such metric: {sorted(asked - known)}"


def test_no_expression_is_a_constant() -> None:
    assert [expr for expr in expressions() if CONSTANT.search(expr)] == []
    assert CONSTANT.search("sum(x) or vector(0)") and CONSTANT.search("1") and CONSTANT.search("x or on() vector(1)")


def test_prometheus_parses_every_expression(tmp_path: Path) -> None:
    rules = [{"record": f"test:expression:{number}", "expr": plain(expr)} for number, expr in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    code, said = promtool("check", "rules", file)
    assert code == 0, said
    assert f"{len(rules)} rules found" in said
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": [{"record": "a:b:c", "expr": "sum(x) by"}]}]}))
    assert promtool("check", "rules", file)[0] != 0


def test_every_metric_of_a_node_is_on_a_panel_or_has_a_reason() -> None:
    shown = set().union(*map(asked_for, expressions()))
    rules = yaml.safe_load((RULES / "recording.yml").read_text())
    shown |= set().union(*(asked_for(rule["expr"]) for group in rules["groups"] for rule in group["rules"]))
    unseen = {name for name in in_code() if not name.startswith("process_")} - shown
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    unseen = {name for name in unseen if re.sub(r"_(bucket|sum|count)$", "", name) not in stems}
    assert unseen == UNSEEN


def test_provisioning_names_the_data_source_and_the_folder() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["uid"]) == (SOURCE.type_val, SOURCE.uid)
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/regrow.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "/etc/grafana/dashboards"


def test_marks_name_recoveries() -> None:
    assert any("recoveries_total" in mark.expr for mark in MARKS)
    for name in BOARDS:
        assert [mark["name"] for mark in dashboard(name)["annotations"]["list"]] == [mark.name for mark in MARKS]
