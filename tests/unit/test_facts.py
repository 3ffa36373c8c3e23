"""What is read when somebody scrapes: absent while it is not known, counters that never fall, how busy the link is."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from node.facts import NODE_FACTS, Fact, Facts, MachineWatch
from node.link_use import LinkUse
from node.metrics import Metrics
from node.ports import BadTensorError, PeerError
from tests.tools.clock import StepClock


@pytest.fixture
def facts() -> Facts:
    return Facts(CollectorRegistry(), {"a_bytes": Fact("gauge", "A.", "kind"), "b": Fact("counter", "B.")})


def shown(facts: Facts) -> dict[tuple[str, str], float]:
    return {
        (sample.name, "".join(sample.labels.values())): sample.value for family in facts.collect() for sample in family.samples
    }


def test_what_is_not_known_is_absent(facts: Facts) -> None:
    assert shown(facts) == {}
    facts.tell("a_bytes", 3, "x")
    assert shown(facts) == {("a_bytes", "x"): 3}
    facts.tell("a_bytes", None, "x")
    assert shown(facts) == {}
    assert [family.name for family in facts.describe()] == ["a_bytes", "b"]


def test_counters_never_fall(facts: Facts) -> None:
    for value in (5.0, 3.0, None, 6.0):
        facts.tell("b", value)
    facts.tell("b", 4.0)
    assert shown(facts) == {("b_total", ""): 6.0}


def test_they_are_refreshed_before_they_are_shown(facts: Facts) -> None:
    facts.refresh = lambda: facts.tell("b", 7.0)
    assert shown(facts) == {("b_total", ""): 7.0}


def test_nobody_says_a_loss_before_there_is_one() -> None:
    text = Metrics(StepClock()).render()[0].decode()
    assert "regrow_loss " not in text and "regrow_validation_loss" not in text and "regrow_work_share" not in text


def test_what_the_machine_has_left(tmp_path: Path) -> None:
    facts = Facts(CollectorRegistry(), NODE_FACTS)
    MachineWatch(tmp_path).tell(facts)
    assert shown(facts)["regrow_state_dir_free_bytes", ""] > 0
    assert not any(name == "regrow_gpu_memory_bytes" for name, _ in shown(facts))
    MachineWatch(tmp_path, lambda: (30, 100)).tell(facts)
    assert shown(facts)["regrow_gpu_memory_bytes", "free"] == 30
    assert shown(facts)["regrow_gpu_memory_bytes", "used"] == 70


def test_refused_tensors_count_by_fault_and_other_faults_do_not() -> None:
    metrics = Metrics(StepClock())
    metrics.observe_fault(BadTensorError("", "nan", "not_finite").by("other"))
    metrics.observe_fault(PeerError("other", "connection refused"))
    count = {
        fault: metrics.registry.get_sample_value("regrow_refused_tensors_total", {"fault": fault})
        for fault in BadTensorError.KINDS
    }
    assert count == dict.fromkeys(BadTensorError.KINDS, 0.0) | {"not_finite": 1.0}


def test_the_link_is_busy_while_anything_goes_out() -> None:
    clock = StepClock()
    use = LinkUse(clock)
    clock.now += 5
    assert use.sending_s == 0
    for change, passed in ((1, 1.0), (1, 2.0), (-1, 4.0), (-1, 8.0), (1, 0.5)):
        use.on_sending(change)
        clock.now += passed
    assert use.sending_s == 7.5, "two at once count once, and what goes on counts so far"


def test_the_best_second_of_the_link_is_kept() -> None:
    clock = StepClock()
    use = LinkUse(clock)
    for passed, num_bytes in ((0.5, 100), (0.5, 50), (1.0, 10), (4.0, 8), (0.0, 1)):
        use.on_bytes("sent", num_bytes)
        clock.now += passed
    assert use.peaks == {"sent": 150.0}
    assert "received" not in use.peaks
