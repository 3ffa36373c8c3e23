"""A stranger's bytes at a monitor: what is refused, what is neutralised, and that nothing else gets through."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from node.metrics import Metrics
from node.monitor.exposition import MAX_LABELS, MAX_SERIES, MAX_VALUE_CHARS, read
from node.monitor.told import MAX_EVENTS, MAX_TEXT, read_chronicle, read_status
from tests.tools.clock import StepClock
from tests.tools.told import RUN_ID, status


def told(**changes: Any) -> bytes:
    return json.dumps(status("aa") | changes).encode()


def test_a_status_is_read() -> None:
    found = read_status(told(unheard_of={"deep": [1]}), RUN_ID, "aa")
    assert (found.step, found.peer, found.num_stages) == (10, "aa", 3)


SEAT = {"stage": 1, "role": "active", "provenance": {"rung": "seed"}}
BAD: dict[str, bytes] = {
    "no JSON": b"\xff\xfe{",
    "a list": b"[]",
    "nested too deep": b"[" * 100_000,
    "another run": told(run_id="other-0123456789abcdef"),
    "another peer": told(peer="bb"),
    "a step that is a text": told(step="10"),
    "a step that is true": told(step=True),
    "a step below zero": told(step=-1),
    "a step beyond reason": told(step=2**53 + 1),
    "a huge integer": told(step=10**400),
    "a loss that is not a number": b'{"loss": NaN}',
    "an infinite loss": told().replace(b'"loss": 3.9', b'"loss": 1e999'),
    "an unknown phase": told(phase='training",role="x'),
    "a missing field": json.dumps({k: v for k, v in status("aa").items() if k != "roster"}).encode(),
    "too many stages": told(num_stages=1000),
    "a stage that there is not": told(seats=[SEAT | {"stage": 65}]),
    "a role that there is not": told(seats=[SEAT | {"role": "king"}]),
    "a roster without end": told(roster=[{"stage": 1, "peer": "bb", "role": "active"}] * 8193),
    "a peer id that breaks out of its label": told(roster=[{"stage": 1, "peer": 'x"} 1\nevil 1', "role": "active"}]),
    "a share above one": told(contribution={"steps": 1, "tokens": 1, "share": 1.5}),
    "a time beyond reason": told(wall=1e300),
}


@pytest.mark.parametrize("what", BAD)
def test_a_status_that_is_none_is_refused_in_one_line(what: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - which line it is does not matter
        read_status(BAD[what], RUN_ID, "aa")
    assert len(str(refused.value).splitlines()) == 1
    assert str(refused.value).isprintable()


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_whatever_comes_is_refused_and_raises_nothing_else(data: bytes) -> None:
    for reader in (lambda: read_status(data, RUN_ID, "aa"), lambda: read_chronicle(data), lambda: read(data)):
        with contextlib.suppress(ValueError):
            reader()


def test_events_are_plain_and_printable() -> None:
    entry = {
        "serial": 4,
        "wall": 1.0,
        "kind": "lost",
        "step": 3,
        "text": "a\x1b[31m\n" + "x" * 900,
        "deep": {"a": 1},
        "peer": "p",
    }
    [shown] = read_chronicle(json.dumps([entry]).encode())
    assert shown["text"].startswith("a?[31m?")
    assert len(shown["text"]) == MAX_TEXT
    assert "deep" not in shown
    assert shown["serial"] == 4
    for bad in ([entry] * (MAX_EVENTS + 1), [entry | {"serial": "4"}], [entry | {"serial": -1}], [{"text": "x"}], {}):
        with pytest.raises(ValueError, match="its chronicle is not one"):
            read_chronicle(json.dumps(bad).encode())


# ---- metrics


def passed_on(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus' own rules find in what is passed on."""
    out = read(text.encode()).text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(out)
        for sample in family.samples
    }


def test_a_nodes_own_metrics_are_passed_on_as_they_are() -> None:
    metrics = Metrics(StepClock(), "aa")
    metrics.identify(run_id=RUN_ID, peer="aa", name='anna "the \\ first"')
    metrics.loop_lag(0.3)
    metrics.wire("forward", "sent", 10)
    text = metrics.render("", status("aa"))[0].decode()
    found = read(text.encode())
    before = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.value == sample.value
    }
    assert passed_on(text) == before
    assert found.num_series == len(before) > 100
    kinds = {family.name: family.type for family in text_string_to_metric_families(found.text())}
    assert kinds["regrow_wire_bytes"] == "counter"
    assert kinds["regrow_event_loop_lag_seconds"] == "histogram"


@pytest.mark.parametrize(
    "line",
    [
        "regrow_step",
        "regrow_step one",
        "regrow step 1",
        'regrow_step{peer="a} 1',
        'regrow_step{a="1" b="2"} 1',
        'regrow_step{a="1",a="2"} 1',
        "{} 1",
        "regrow_step 1 2 3",
        'regrow_step{a="\\x"} 1',
        'regrow_step{a="1"}x 1',
        "\x00regrow_step 1",
    ],
)
def test_text_that_is_none_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 of its metrics"):
        read(f"regrow_loss 1\n{line}\n".encode())


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        read(b"\xff")


@pytest.mark.parametrize(
    "line",
    [
        "up 0",
        "ALERTS 1",
        "scrape_duration_seconds 1",
        "go_threads 1",
        "regrow_swarm_step 9",
        "regrow_monitor_observe_failures_total 1",
        'regrow_loss{__name__="up"} 1',
        'regrow_loss{__address__="x"} 1',
        "regrow_" + "x" * 200 + " 1",
        'regrow_loss{a="' + "x" * (MAX_VALUE_CHARS + 1) + '"} 1',
        "regrow_loss{" + ",".join(f'a{n}="1"' for n in range(MAX_LABELS + 1)) + "} 1",
    ],
)
def test_what_is_not_a_nodes_to_say_is_left_out_and_counted(line: str) -> None:
    found = read(f"{line}\nregrow_step 3\n".encode())
    assert (found.num_series, found.num_dropped) == (1, 1)
    assert passed_on(f"{line}\nregrow_step 3\n") == {("regrow_step", ()): 3.0}


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-inf", "1e999"])
def test_what_is_no_number_is_as_if_it_were_not_known(value: str) -> None:
    found = read(f"regrow_loss {value}\nregrow_step 3\n".encode())
    assert (found.num_series, found.num_dropped, found.value("regrow_loss")) == (1, 0, None)


def test_labels_cannot_break_out_of_their_quotes() -> None:
    value = 'x"} 1\nregrow_evil 1\n# \\'
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    shown = passed_on(f'regrow_loss{{a="{escaped}"}} 1\n')
    assert shown == {("regrow_loss", (("a", 'x"} 1?regrow_evil 1?# \\'),)): 1.0}


def test_help_and_type_cannot_smuggle_anything() -> None:
    text = "# HELP regrow_loss a\\nregrow_evil 1\n# TYPE regrow_loss evil\n# TYPE up gauge\n# EOF\nregrow_loss 1\n"
    assert read(text.encode()).text() == "# HELP regrow_loss a/nregrow_evil 1\n# TYPE regrow_loss untyped\nregrow_loss 1.0\n"


def test_series_are_capped_and_counted_and_none_comes_twice() -> None:
    lines = [f'regrow_loss{{a="{n}"}} {n}' for n in range(MAX_SERIES + 10)]
    found = read("\n".join([*lines[:5], *lines]).encode())
    assert (found.num_series, found.num_dropped) == (MAX_SERIES, 15)
    names = "\n".join(f"# TYPE regrow_{n} gauge" for n in range(MAX_SERIES + 10))
    assert len(read(names.encode()).families) == MAX_SERIES
