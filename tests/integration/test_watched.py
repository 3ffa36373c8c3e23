"""A real swarm, its monitor and a real Prometheus with our rules: all that dashboards and rules ask for is answered, the loss
of a stage is told as it goes, and what is told is what the nodes say.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
import yaml

from deploy.grafana.generate import BOARDS
from deploy.grafana.panels import MARKS
from node import http_client
from tests.tools.metric_names import PROMETHEUS, asked_for
from tests.tools.promtool import RULES, promtool, tool
from tests.tools.watched import ALERT, LOST, Watched, go_through_a_loss, watching

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
NOT_HERE = {
    "regrow_gpu_memory_bytes": "no GPU computes here",
    "regrow_shadow_age_steps": "the run's policy keeps no shadows",
}
"""Metrics that this run cannot have, and why."""


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, no_module_orphans: str) -> Iterator[Watched]:
    """The run after the loss and its recovery; everything is still up."""
    tool("prometheus")
    with watching(tmp_path_factory.mktemp("watched")) as watched:
        go_through_a_loss(watched)
        yield watched


def filled(expr: str) -> str:
    """As Grafana asks it, with everything chosen."""
    return re.sub(r"\$\w+", ".*", expr.replace("$__rate_interval", "20s"))


def expressions() -> list[str]:
    """Of every panel and annotation."""
    asked = [query.expr for board in BOARDS.values() for row in board.rows for panel in row.panels for query in panel.queries]
    return list(dict.fromkeys([*asked, *(mark.expr for mark in MARKS)]))


def test_the_loss_of_a_stage_was_pending_then_firing_then_over(lived: Watched) -> None:
    told = lived.prometheus.over_time(f'ALERTS{{alertname="{ALERT}", stage="{LOST}"}}')
    began = {series.labels["alertstate"]: series.points[0][0] for series in told}
    assert began["pending"] < began["firing"]
    assert lived.look_at_alert() == ""


def unanswered(lived: Watched, asked: list[str]) -> list[str]:
    """Those that get no data, be it later: what the monitor asks of a newcomer comes when it comes."""
    left = list(asked)

    def all_answered() -> bool:
        left[:] = [expr for expr in left if not lived.prometheus.over_time(filled(expr))]
        return not left

    with contextlib.suppress(AssertionError):
        lived.wait("every expression is answered", all_answered)
    return left


def test_every_expression_of_the_dashboards_is_answered(lived: Watched) -> None:
    assert lived.prometheus.over_time("regrow_nobody_has_this") == []
    asked = [expr for expr in expressions() if not asked_for(expr) & NOT_HERE.keys()]
    assert unanswered(lived, asked) == []


def test_what_this_run_cannot_have_is_not_there(lived: Watched) -> None:
    assert [name for name in NOT_HERE if lived.prometheus.over_time(name)] == [], "then it is no exception any more"


def test_every_recording_rule_has_data_and_every_alert_something_to_judge(lived: Watched) -> None:
    files = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yml"))]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    assert unanswered(lived, [rule["record"] for rule in rules if "record" in rule]) == []
    asked = set().union(*(asked_for(rule["expr"]) for rule in rules)) - PROMETHEUS | {"up"}
    assert unanswered(lived, sorted(asked)) == []
    evaluated = [rule for group in lived.prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(evaluated) == len(rules)
    assert [(rule["name"], rule.get("lastError")) for rule in evaluated if rule["health"] != "ok"] == []


def test_only_what_happened_is_alarming(lived: Watched) -> None:
    fired = lived.prometheus.over_time('ALERTS{alertstate="firing", severity="critical"}')
    assert {series.labels["alertname"] for series in fired} == {"RegrowStageLost"}
    assert {series.labels["stage"] for series in fired} == {str(LOST)}


def test_what_is_told_is_what_the_nodes_say(lived: Watched) -> None:
    """The step is asked before and after: training goes on meanwhile."""
    ask = lived.prometheus
    for name in ("regrow_swarm_step", "regrow_swarm_tokens_total"):
        key = {"regrow_swarm_step": "step", "regrow_swarm_tokens_total": "tokens"}[name]
        before = lived.made.status(lived.made.nodes[0])[key]
        lived.wait(f"{name} catches up", lambda name=name, before=before: ask.now(name)[0].points[0][1] >= before)
        told = ask.now(name)[0].points[0][1]
        assert told <= lived.made.status(lived.made.nodes[0])[key]
    status = lived.made.status(lived.made.nodes[0])
    (last,) = ask.now("regrow_swarm_last_step")
    assert last.points[0][1] == status["last_step"]
    assert {series.labels["run"] for series in ask.now("regrow_swarm_step")} == {status["run_id"]}

    def recovered() -> dict[str, float]:
        return {series.labels["rung"]: series.points[0][1] for series in ask.now("regrow_swarm_recoveries_total")}

    lived.wait("the recovery is told", lambda: recovered().get("recovery"))
    assert recovered()["recovery"] == 1


def test_coefficients_are_those_of_the_stage_that_came_back(lived: Watched) -> None:
    newcomer = lived.made.nodes[-1]
    (seat,) = [seat for seat in lived.made.status(newcomer)["seats"] if seat["stage"] == LOST]
    said = {str(source["stage"]): source["coefficient"] for source in seat["provenance"]["sources"]}
    about = f'regrow_swarm_recovery_coefficient{{stage="{LOST}"}}'
    lived.wait("the monitor tells them", lambda: lived.prometheus.now(about))
    told = lived.prometheus.now(about)
    assert {series.labels["source"]: series.points[0][1] for series in told} == pytest.approx(said)


def test_the_vanished_node_is_no_target_any_more(lived: Watched) -> None:
    lived.wait("the dead node's lease is over", lambda: lived.all_up(len(lived.made.nodes) - 1))


def test_metrics_of_the_monitor_are_clean(lived: Watched) -> None:
    assert promtool("check", "metrics", stdin=http_client.get(lived.monitor.http, "/metrics").decode()) == (0, "")
