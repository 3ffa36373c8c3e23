"""Metrics: what events and notes turn into, and that counters count once and never fall."""

from __future__ import annotations

import math

import pytest

from node.metrics import Metrics
from protocol.commands import Apply, Command, Compute, Note, Reduce, SendMessage, Work
from protocol.events import Applied, CommandFailed, ComputeDone, Event, MessageReceived, Reduced, Tick
from protocol.ids import NO_BALLOT
from protocol.messages import RecordsWanted, Standing
from protocol.rungs import LADDER
from tests.tools.clock import StepClock


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture
def metrics(clock: StepClock) -> Metrics:
    return Metrics(clock, peer="me", lapse_s=3.0)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def loss(step: int, value: float, tokens: int = 64) -> Note:
    return Note("loss", {"step": step, "value": value, "tokens": tokens})


def test_tokens_of_a_step_count_once(metrics: Metrics) -> None:
    for note in (loss(1, 5.0), loss(2, 4.5), loss(2, 4.5), loss(1, 5.0)):
        metrics.observe_command(note)
    assert value(metrics, "regrow_tokens_total") == 128
    metrics.observe_command(loss(3, 4.0, tokens=32))
    assert value(metrics, "regrow_tokens_total") == 160
    assert value(metrics, "regrow_loss") == 4.0


def test_own_share_of_a_commit_counts_once(metrics: Metrics) -> None:
    fields = {"step": 1, "stage": 2, "contributors": {"me": "b", "other": "4"}}
    for _ in range(2):
        metrics.observe_command(Note("committed", fields))
    metrics.observe_command(Note("committed", fields | {"stage": 3, "contributors": {"other": "f"}}))
    assert value(metrics, "regrow_microbatches_total", stage="2", outcome="committed") == 3
    assert value(metrics, "regrow_microbatches_total", stage="3", outcome="committed") == 0


def test_phases_of_a_step_are_timed(metrics: Metrics, clock: StepClock) -> None:
    work = Work("forward", stage=1, step=7, attempt=0, microbatch=0)
    parts: list[tuple[float, Command | Event]] = [
        (0.0, Compute(work, 1, "other")),
        (1.0, Compute(work, 2, "other")),
        (2.0, Reduce(NO_BALLOT, 1, 7, 0, ())),
        (0.5, Reduced(1, 7, 0, "d", 1.0, 0.5)),
        (0.25, Apply(1, 7, 0, 1.0, 1e-3, "s")),
        (0.125, Applied(1, 7, "s", "d", 7, 0.125)),
    ]
    for seconds, what in parts:
        clock.now += seconds
        if isinstance(what, Reduced | Applied):
            metrics.observe_event(what)
        else:
            metrics.observe_command(what)  # type: ignore[arg-type]
    sums = {
        phase: value(metrics, "regrow_step_phase_seconds_sum", phase=phase)
        for phase in ("forward_backward", "reduce", "commit", "apply")
    }
    assert sums == {"forward_backward": 3.0, "reduce": 0.5, "commit": 0.25, "apply": 0.125}


def test_a_new_attempt_starts_its_own_clock(metrics: Metrics, clock: StepClock) -> None:
    metrics.observe_command(Compute(Work("forward", 1, 7, 0, 0), 1, "other"))
    clock.now += 50
    metrics.observe_command(Compute(Work("forward", 1, 7, 1, 0), 1, "other"))
    clock.now += 2
    metrics.observe_command(Reduce(NO_BALLOT, 1, 7, 1, ()))
    assert value(metrics, "regrow_step_phase_seconds_sum", phase="forward_backward") == 2


def test_peers_are_heard_or_silent(metrics: Metrics) -> None:
    metrics.observe_event(Tick({"a": 0.1, "b": 2.9, "c": 3.1}))
    assert value(metrics, "regrow_peers", state="heard") == 2
    assert value(metrics, "regrow_peers", state="silent") == 1


def test_messages_failures_and_compute_are_counted(metrics: Metrics) -> None:
    metrics.observe_command(SendMessage("a", RecordsWanted("h")))
    metrics.observe_event(MessageReceived("a", 1, Standing(NO_BALLOT, "training", "", 4, 4, 3.25)))
    metrics.observe_event(CommandFailed(1, 7, 0, 0, "a", "bad tensor"))
    metrics.observe_event(ComputeDone(Work("head", 0, 7, 0, 0), 0, 0, 1.0, 1, 0.5))
    assert value(metrics, "regrow_messages_total", kind="RecordsWanted", direction="sent") == 1
    assert value(metrics, "regrow_messages_total", kind="Standing", direction="received") == 1
    assert value(metrics, "regrow_validation_loss") == 3.25
    assert value(metrics, "regrow_command_failures_total", blame="peer") == 1
    assert value(metrics, "regrow_compute_seconds_total", op="head") == 0.5
    assert value(metrics, "regrow_computations_total", op="head") == 1


def test_no_evaluation_yet_is_no_validation_loss(metrics: Metrics) -> None:
    before = value(metrics, "regrow_validation_loss")
    metrics.observe_event(MessageReceived("a", 1, Standing(NO_BALLOT, "training", "", 4, -1, math.nan)))
    assert value(metrics, "regrow_validation_loss") == before


def test_foreign_kinds_make_no_new_series(metrics: Metrics) -> None:
    for number in range(100):
        metrics.wire(f"kind-{number}", "received", 10)
        metrics.observe_command(Note(f"type-{number}", {}))
    metrics.wire("forward", "sent", 5)
    assert value(metrics, "regrow_wire_bytes_total", kind="other", direction="received") == 1000
    assert value(metrics, "regrow_wire_bytes_total", kind="forward", direction="sent") == 5
    assert metrics.render()[0].count(b"regrow_wire_bytes_total{") == 2


def test_notes_of_trouble_are_counted(metrics: Metrics) -> None:
    for name in ("voided", "lost", "lost"):
        metrics.observe_command(Note(name, {"step": 3}))
    assert value(metrics, "regrow_voids_total") == 1
    assert value(metrics, "regrow_losses_total") == 2
    metrics.observe_command(Note("rerouted", {"stage": 1, "to": {"a": "5", "b": "2"}}))
    assert value(metrics, "regrow_reroutes_total") == 3, "microbatches"


def test_what_is_saved_and_gone_back_to_is_counted(metrics: Metrics) -> None:
    for num_bytes in (100, 20):
        metrics.observe_command(Note("saved", {"stage": 1, "step": 10, "bytes": num_bytes, "s": 0.1}))
    for name in ("save_failed", "rolled_back", "restore_failed"):
        metrics.observe_command(Note(name, {"stage": 1, "step": 10}))
    assert value(metrics, "regrow_checkpoints_total") == 2
    assert value(metrics, "regrow_checkpoint_bytes_total") == 120
    for name in ("checkpoint_failures", "rollbacks", "restore_failures"):
        assert value(metrics, f"regrow_{name}_total") == 1


def test_what_is_kept_of_another_stage_is_counted(metrics: Metrics) -> None:
    for step, num_bytes in ((10, 100), (14, 20)):
        told = {"stage": 1, "step": step, "oldest_step": step - 3, "newest_step": step, "bytes": num_bytes}
        metrics.observe_command(Note("shadow", told))
    assert value(metrics, "regrow_shadow_rounds_total") == 2
    assert value(metrics, "regrow_shadow_bytes_total") == 120
    assert value(metrics, "regrow_shadow_age_steps") == 3


def test_recoveries_count_by_rung_with_the_parts_of_their_time(metrics: Metrics) -> None:
    assert {rung: value(metrics, "regrow_recoveries_total", rung=rung) for rung in LADDER} == dict.fromkeys(LADDER, 0)
    facts = {"stage": 2, "peer": "new", "generation": 1, "step": 8}
    parts = {"detect_s": 3.5, "grace_s": 0.0, "wait_for_newcomer_s": 2.0, "first_commit_s": 0.25}
    metrics.observe_command(Note("recovered", facts | parts | {"rung": "recovery"}))
    metrics.observe_command(Note("recovered", facts | {"rung": "promotion", "detect_s": 3.0}))
    assert value(metrics, "regrow_recoveries_total", rung="recovery") == 1
    assert value(metrics, "regrow_recoveries_total", rung="promotion") == 1

    def seen(phase: str) -> tuple[float | None, float | None]:
        names = ("regrow_recovery_seconds_count", "regrow_recovery_seconds_sum")
        count, total = (value(metrics, name, phase=phase) for name in names)
        return count, total

    assert (seen("detect"), seen("grace"), seen("first_commit")) == ((2, 6.5), (1, 0.0), (1, 0.25))
    assert seen("transfer") == (0, 0), "that is the newcomer's to tell"


def test_a_newcomer_times_the_transfer_of_a_recovery_and_no_ordinary_copy(metrics: Metrics) -> None:
    for rung in ("seed", "copy", "recovery", "handover", "promotion"):
        timed = {} if rung in ("seed", "promotion") else {"transfer_s": 1.5}
        metrics.observe_command(Note("provenance", {"stage": 2, "rung": rung} | timed))
    assert value(metrics, "regrow_recovery_seconds_count", phase="transfer") == 2
    assert value(metrics, "regrow_recovery_seconds_sum", phase="transfer") == 3.0
    assert value(metrics, "regrow_recoveries_total", rung="recovery") == 0, "that is the coordinator's to count"


def test_a_neighbour_times_what_it_averaged(metrics: Metrics) -> None:
    metrics.observe_command(Note("averaged", {"stage": 2, "part": 1, "parts": 2, "bytes": 8, "average_s": 0.25}))
    assert value(metrics, "regrow_recovery_seconds_sum", phase="average") == 0.25


def test_render_shows_the_status(metrics: Metrics) -> None:
    seats = [{"stage": 1, "role": "active", "state_bytes": 12}, {"stage": 0, "role": "passive", "state_bytes": 5}]
    metrics.identify(run_id="r", peer="me")
    text, content_type = metrics.render(status={"step": 9, "phase": "training", "seats": seats})
    lines = text.decode().splitlines()
    for line in (
        "regrow_step 9.0",
        'regrow_seats{role="active"} 1.0',
        'regrow_stage_bytes{role="active"} 12.0',
        'regrow_stage_bytes{role="passive"} 5.0',
        'regrow_stage_bytes{role="parked"} 0.0',
        'regrow_phase{phase="training"} 1.0',
        'regrow_phase{phase="paused"} 0.0',
        'regrow_node_info{peer="me",run_id="r"} 1.0',
    ):
        assert line in lines
    assert content_type.startswith("text/plain")
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_names_follow_the_conventions(metrics: Metrics) -> None:
    for family in metrics.registry.collect():
        assert family.documentation, family.name
        if family.name.startswith("regrow_") and "second" in family.name:
            assert "seconds" in family.name, family.name
