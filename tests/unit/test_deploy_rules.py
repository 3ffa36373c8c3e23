"""deploy/prometheus: configuration, recording rules and alerts, as Prometheus' own tool sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from node.facts import NODE_FACTS, Facts
from node.metrics import Metrics
from tests.tools.clock import StepClock
from tests.tools.metric_names import asked_for, families, in_code, monitor_metrics, scraped
from tests.tools.promtool import ROOT, RULES, promtool

pytestmark = pytest.mark.timeout(300)
DEPLOY = ROOT / "deploy/prometheus"
CASES = sorted((DEPLOY / "tests").glob("*.yml"))
SEVERITIES = {"critical", "warning", "info"}


def rules(kind: str) -> list[dict[str, Any]]:
    """All recording rules (`record`) or alerts (`alert`)."""
    read = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yml"))]
    return [rule for file in read for group in file["groups"] for rule in group["rules"] if kind in rule]


ALERTS = {rule["alert"]: rule for rule in rules("alert")}


def cases() -> list[dict[str, Any]]:
    return [case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]


def asks(case: dict[str, Any], alert: str) -> list[dict[str, Any]]:
    """What the case asks about the alert."""
    return [asked for asked in case["promql_expr_test"] if f'alertname="{alert}"' in asked["expr"]]


def fires(case: dict[str, Any], alert: str) -> bool:
    told = [sample["labels"] for asked in asks(case, alert) for sample in asked.get("exp_samples", ())]
    return any('alertstate="firing"' in labels for labels in told)


def is_silent(case: dict[str, Any], alert: str) -> bool:
    asked = asks(case, alert)
    return bool(asked) and not any(one.get("exp_samples") for one in asked)


def test_configuration_and_rules_are_valid() -> None:
    for args in (["check", "config", DEPLOY / "prometheus.yml"], ["check", "rules", "--lint-fatal", *RULES.glob("*.yml")]):
        code, said = promtool(*args)
        assert code == 0, said


def test_rules_do_what_their_cases_say() -> None:
    code, said = promtool("test", "rules", *CASES)
    assert code == 0, said


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_firing_and_a_silent_case(alert: str) -> None:
    assert any(fires(case, alert) for case in cases()), f"no case in which {alert} fires"
    assert any(is_silent(case, alert) for case in cases()), f"no case in which {alert} is silent"


FAILURE = re.compile(r'expr: ".*?alertname=\\"(\w+)\\".*\n\s+exp: (.*)\n\s+got: (.*)')


@pytest.mark.parametrize(("expr", "always"), [("absent(x_x)", True), ("vector(1) > 2", False)])
def test_the_cases_notice_an_alert_that_always_or_never_fires(tmp_path: Path, expr: str, always: bool) -> None:
    """For each alert: its cases are no use where they pass whatever the rule says."""
    file = yaml.safe_load((RULES / "alerts.yml").read_text())
    for group in file["groups"]:
        for rule in group["rules"]:
            rule.update({"expr": expr, "for": "0s"})
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(file))
    (tmp_path / "recording.yml").write_text((RULES / "recording.yml").read_text())
    failed = set()
    for path in CASES:
        case = yaml.safe_load(path.read_text())
        case |= {"rule_files": ["recording.yml", "alerts.yml"], "evaluation_interval": "1m"}
        (tmp_path / path.name).write_text(yaml.safe_dump(case))
        for alert, expected, got in FAILURE.findall(promtool("test", "rules", tmp_path / path.name)[1]):
            if (expected if always else got) == "nil":
                failed.add(alert)
    assert failed == set(ALERTS), f"cases that miss it: {sorted(set(ALERTS) - failed)}"


def test_what_alerts_say_is_filled_in_when_they_fire(tmp_path: Path) -> None:
    """promtool shows the whole alert where none was expected."""
    said = ""
    for path in CASES:
        file = yaml.safe_load(path.read_text())
        file["rule_files"] = [str(RULES / name) for name in ("recording.yml", "alerts.yml")]
        for case in file["tests"]:
            fired = [(alert, asked) for alert in ALERTS for asked in asks(case, alert) if fires(case, alert)]
            case["alert_rule_test"] = [{"alertname": alert, "eval_time": asked["eval_time"]} for alert, asked in fired]
        (tmp_path / path.name).write_text(yaml.safe_dump(file))
        said += promtool("test", "rules", tmp_path / path.name)[1]
    told = re.findall(r'Labels:\{alertname="(\w+)".*\n\s+Annotations:\{(.*)\}', said)
    assert {alert for alert, _ in told} == set(ALERTS)
    for alert, words in told:
        assert "error expanding" not in words and "<no value>" not in words, f"{alert}: {words}"
        assert "{{" not in words and not re.search(r"(run|node|stage) [:,]|\(\)", words), f"{alert}: {words}"


@pytest.mark.parametrize("alert", ALERTS)
def test_alerts_say_what_is_wrong_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in SEVERITIES
    for part in ("summary", "description", "runbook"):
        assert len(rule["annotations"][part]) > 20, part
    assert rule["annotations"]["runbook"].endswith(".")


def test_rules_ask_only_for_what_there_is() -> None:
    known = in_code() | {rule["record"] for rule in rules("record")}
    for rule in [*rules("record"), *rules("alert")]:
        asked = asked_for(rule["expr"])
        assert asked or "up{" in rule["expr"], rule
        assert asked <= known, f"{rule.get('alert') or rule['record']}: no such metric: {sorted(asked - known)}"


def test_names_are_found_in_expressions() -> None:
    expr = 'sum by (run, stage) (rate(regrow_x_total{run="regrow_no"}[5m])) / on (run) run_peer:regrow_y:ratio > up'
    assert asked_for(expr) == {"regrow_x_total", "run_peer:regrow_y:ratio"}


def test_metrics_of_a_node_are_clean() -> None:
    """As Prometheus' linter sees them, with every fact known."""
    metrics = Metrics(StepClock())
    metrics.identify(run_id="r", peer="p")
    for name in NODE_FACTS:
        metrics.facts.tell(name, 1.0, "x" if NODE_FACTS[name].label else "")
    code, said = promtool("check", "metrics", stdin=metrics.render()[0].decode())
    assert (code, said) == (0, "")


def test_metrics_of_a_monitor_are_clean() -> None:
    """The same of one that knows all there is to know."""
    code, said = promtool("check", "metrics", stdin=monitor_metrics().render()[0].decode())
    assert (code, said) == (0, "")


def test_the_linter_can_object() -> None:
    facts = Facts(CollectorRegistry(), {"regrow_x_milliseconds": NODE_FACTS["regrow_loss"]})
    facts.tell("regrow_x_milliseconds", 1.0)
    registry = CollectorRegistry()
    registry.register(facts)
    code, said = promtool("check", "metrics", stdin=generate_latest(registry).decode())
    assert code != 0 and "milliseconds" in said


def test_all_that_a_node_shows_is_enumerated() -> None:
    shown = {line.split()[2] for line in Metrics(StepClock()).render()[0].decode().splitlines() if line.startswith("# HELP")}
    assert shown - {name for name in shown if name.endswith("_created")} <= scraped(families()) | {
        family.name for family in families()
    }
