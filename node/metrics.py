"""What a node tells Prometheus: facts from events, commands and notes as counters, gauges and histograms.

Each node has its own registry. Names follow the Prometheus conventions (base units, `_total`); no label takes
a value from outside a fixed set, except `stage`, which the manifest bounds. Counters never fall: what is
repeated or arrives late is counted once. No method raises on what a peer sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from node.facts import NODE_FACTS, Facts
from node.ports import BadTensorError, Clock, PeerError
from protocol.commands import Apply, Command, Compute, Note, Reduce, SendMessage
from protocol.events import Applied, CommandFailed, ComputeDone, Event, MessageReceived, Reduced, Tick
from protocol.ids import PeerId, members_of
from protocol.messages import Standing
from protocol.rungs import LADDER

PHASES = ("starting", "waiting", "training", "evaluating", "paused", "finished", "leaving")
ROLES = ("active", "passive", "learner", "parked")
WIRE_KINDS = frozenset({"control", "heartbeat", "forward", "backward", "evaluate", "reduce", "blob", "fetch"})
OTHER = "other"
RECOVERY_PHASES = ("detect", "grace", "wait_for_newcomer", "average", "transfer", "first_commit")
STEP_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
RECOVERY_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class Metrics:
    """The registry of one node. `peer`: its own id; a peer unheard for `lapse_s` counts as silent."""

    def __init__(self, clock: Clock, peer: PeerId = "", lapse_s: float = math.inf) -> None:
        self.registry = CollectorRegistry()
        self.peer, self.lapse_s = peer, lapse_s
        self._clock = clock
        self._loss_step = 0
        self._committed_step: dict[int, int] = {}
        self._steps = _StepTimes(clock)
        self._define_run()
        self._define_recovery()
        self._define_node()
        self.facts = Facts(self.registry, NODE_FACTS)
        ProcessCollector(registry=self.registry)

    def _define_run(self) -> None:
        on = self.registry
        self._step = Gauge("regrow_step", "Last committed step that this node knows.", registry=on)
        self._tokens = Counter("regrow_tokens", "Tokens of the whole run's committed steps since this node came.", registry=on)
        self._microbatches = Counter(
            "regrow_microbatches",
            "Microbatches of this node's seats: accumulated, committed (they counted), failed.",
            ["stage", "outcome"],
            registry=on,
        )
        self._phase_seconds = Histogram(
            "regrow_step_phase_seconds",
            "Time of this node in each part of a step.",
            ["phase"],
            registry=on,
            buckets=STEP_SECONDS,
        )
        self._notes = {
            name: Counter(f"regrow_{counter}", f"{help_} Noted by this node.", registry=on)
            for name, (counter, help_) in _NOTED.items()
        }

    def _define_recovery(self) -> None:
        self._recoveries = Counter(
            "regrow_recoveries",
            "Stages that the swarm trains again after their last holder was lost or left, by rung of the ladder. Counted by the"
            " coordinator alone, with the first commit: sum over nodes.",
            ["rung"],
            registry=self.registry,
        )
        self._recovery_seconds = Histogram(
            "regrow_recovery_seconds",
            "Parts of the time that a stage was away. detect, grace, wait_for_newcomer, first_commit: told by the coordinator"
            " alone; average: by each neighbour, of its share; transfer: by the newcomer alone, over its network.",
            ["phase"],
            registry=self.registry,
            buckets=RECOVERY_SECONDS,
        )
        for rung in LADDER:
            self._recoveries.labels(rung)
        for phase in RECOVERY_PHASES:
            self._recovery_seconds.labels(phase)

    def _define_node(self) -> None:
        on = self.registry
        self._info = Info("regrow_node", "Who this is.", registry=on)
        self._phase = Gauge("regrow_phase", "1 for what the node is doing.", ["phase"], registry=on)
        self._seats = Gauge("regrow_seats", "Stages that this node holds.", ["role"], registry=on)
        self._stage_bytes = Gauge("regrow_stage_bytes", "Weights and moments of the stages held.", ["role"], registry=on)
        self._peers = Gauge("regrow_peers", "Peers with a stream: heard, or silent for a lapse.", ["state"], registry=on)
        self._saved_bytes = Counter("regrow_checkpoint_bytes", "Size of the stages that were saved.", registry=on)
        self._shadow_bytes = Counter("regrow_shadow_bytes", "Received of what is kept of another stage.", registry=on)
        self._compute = Counter("regrow_compute_seconds", "Time spent computing.", ["op"], registry=on)
        self._computed = Counter("regrow_computations", "Passes of a microbatch that ended.", ["op"], registry=on)
        self._failures = Counter("regrow_command_failures", "Work that somebody else's fault ended.", ["blame"], registry=on)
        self._refused_tensors = Counter("regrow_refused_tensors", "Tensors of peers that were refused.", ["fault"], registry=on)
        for fault in BadTensorError.KINDS:
            self._refused_tensors.labels(fault)
        self._messages = Counter("regrow_messages", "Control messages of the protocol.", ["kind", "direction"], registry=on)
        self._wire = Counter("regrow_wire_bytes", "Bytes over the network.", ["kind", "direction"], registry=on)
        self._queue = Gauge("regrow_queue_length", "Entries waiting.", ["queue"], registry=on)
        self._payload = Gauge("regrow_payload_bytes", "Activations and gradients held now.", registry=on)
        self._payload_peak = Gauge("regrow_payload_peak_bytes", "Most of them ever held at once.", registry=on)
        self._lag = Histogram(
            "regrow_event_loop_lag_seconds",
            "How much later than asked the event loop wakes.",
            registry=on,
            buckets=LAG_SECONDS,
        )
        self._events_dropped = Gauge("regrow_event_log_dropped_lines", "Lines that events.jsonl had no room for.", registry=on)

    # --- from the runtime

    def identify(self, **facts: str) -> None:
        """Constant facts: run_id, peer, name, version."""
        self._info.info({key: str(value) for key, value in facts.items()})

    def observe_event(self, event: Event) -> None:
        """Count what an event says."""
        match event:
            case Tick(heard=heard):
                self._observe_heard(heard)
            case MessageReceived(message=message):
                self._messages.labels(type(message).__name__, "received").inc()
                if isinstance(message, Standing):
                    self._observe_standing(message)
            case ComputeDone(work=work, seconds=seconds):
                self._compute.labels(work.op).inc(max(0.0, seconds))
                self._computed.labels(work.op).inc()
            case Reduced() | Applied():
                self._observe_phases(self._steps.on_event(event))
            case CommandFailed(peer=peer):
                self._failures.labels("peer" if peer else "nobody").inc()
            case _:
                pass

    def observe_command(self, command: Command) -> None:
        """Count what a command asks or notes."""
        match command:
            case Note(type=type_, fields=fields):
                self._observe_note(type_, fields)
            case SendMessage(message=message):
                self._messages.labels(type(message).__name__, "sent").inc()
            case Compute() | Reduce() | Apply():
                self._observe_phases(self._steps.on_command(command))
            case _:
                pass

    def observe_fault(self, error: PeerError) -> None:
        """Count a tensor that was refused."""
        if isinstance(error, BadTensorError):
            self._refused_tensors.labels(error.kind).inc()

    def wire(self, kind: str, direction: str, num_bytes: int) -> None:
        """Bytes `sent` or `received`; a kind outside `WIRE_KINDS` counts as `other`."""
        assert direction in ("sent", "received"), direction
        self._wire.labels(kind if kind in WIRE_KINDS else OTHER, direction).inc(max(0, num_bytes))

    def queue(self, queue: str, length: int) -> None:
        """Entries in one of this node's queues; names come from our code, never from a peer."""
        self._queue.labels(queue).set(length)

    def payload_bytes(self, held: int, peak: int) -> None:
        """Size of the payload pool."""
        self._payload.set(held)
        self._payload_peak.set(peak)

    def lease_age(self, seconds: float) -> None:
        """Since the directory last took this node's lease."""
        self.facts.tell("regrow_lease_age_seconds", seconds)

    def loop_lag(self, seconds: float) -> None:
        """One measurement of the event loop."""
        self._lag.observe(max(0.0, seconds))

    def events_dropped(self, num_lines: int) -> None:
        """Lines missing in events.jsonl so far."""
        self._events_dropped.set(num_lines)

    # --- to Prometheus

    def render(self, accept: str = "", status: Mapping[str, Any] | None = None) -> tuple[bytes, str]:
        """(body, content type) for a scrape; `status` (as on /status) sets what it tells better."""
        if status is not None:
            self._observe_status(status)
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _observe_status(self, status: Mapping[str, Any]) -> None:
        self._step.set(int(status.get("step") or 0))
        for phase in PHASES:
            self._phase.labels(phase).set(status.get("phase") == phase)
        seats = status.get("seats", ())
        for role in ROLES:
            held = [int(seat.get("state_bytes") or 0) for seat in seats if seat.get("role") == role]
            self._seats.labels(role).set(len(held))
            self._stage_bytes.labels(role).set(sum(held))
        own = status.get("contribution") or {}
        self.facts.tell("regrow_contributed_tokens", own.get("tokens"))
        self.facts.tell("regrow_contributed_steps", own.get("steps"))
        self.facts.tell("regrow_work_share_ratio", own.get("share"))

    # --- inside

    def _observe_heard(self, heard: Mapping[PeerId, float]) -> None:
        silent = sum(age > self.lapse_s for age in heard.values())
        self._peers.labels("silent").set(silent)
        self._peers.labels("heard").set(len(heard) - silent)

    def _observe_standing(self, standing: Standing) -> None:
        if standing.validation_step >= 0:
            self.facts.tell("regrow_validation_loss", standing.validation_loss)

    def _observe_phases(self, measured: Mapping[str, float]) -> None:
        for phase, seconds in measured.items():
            self._phase_seconds.labels(phase).observe(max(0.0, seconds))

    def _observe_note(self, type_: str, fields: Mapping[str, Any]) -> None:
        match type_:
            case "loss":
                self._observe_loss(fields)
            case "accumulated":
                self._microbatches.labels(str(fields.get("stage", "")), "accumulated").inc()
            case "committed":
                self._observe_committed(fields)
            case "recovered":
                self._recoveries.labels(str(fields.get("rung"))).inc()
                self._observe_recovery(fields)
            case "provenance":
                if fields.get("rung") in LADDER:
                    self._observe_recovery(fields)
            case "averaged":
                self._observe_recovery(fields)
            case "validation":
                self.facts.tell("regrow_validation_loss", float(fields.get("value", math.nan)))
            case "rerouted":
                self._notes[type_].inc(sum(len(members_of(bits)) for bits in fields.get("to", {}).values()))
            case _ if type_ in self._notes:
                self._notes[type_].inc()
                self._observe_kept(type_, fields)

    def _observe_kept(self, type_: str, fields: Mapping[str, Any]) -> None:
        """What is saved, or kept of another stage."""
        if type_ == "saved":
            self._saved_bytes.inc(max(0, int(fields.get("bytes", 0))))
        elif type_ == "shadow":
            self._shadow_bytes.inc(max(0, int(fields.get("bytes", 0))))
            age = int(fields.get("step", 0)) - int(fields.get("oldest_step", 0))
            self.facts.tell("regrow_shadow_age_steps", age)

    def _observe_loss(self, fields: Mapping[str, Any]) -> None:
        step = int(fields.get("step", 0))
        self.facts.tell("regrow_loss", float(fields.get("value", math.nan)))
        if step > self._loss_step:
            self._loss_step = step
            self._tokens.inc(int(fields.get("tokens", 0)))

    def _observe_recovery(self, fields: Mapping[str, Any]) -> None:
        for phase in RECOVERY_PHASES:
            if f"{phase}_s" in fields:
                self._recovery_seconds.labels(phase).observe(max(0.0, float(fields[f"{phase}_s"])))

    def _observe_committed(self, fields: Mapping[str, Any]) -> None:
        stage, step = int(fields.get("stage", -1)), int(fields.get("step", 0))
        self._step.set(step)
        if step <= self._committed_step.get(stage, 0):
            return
        self._committed_step[stage] = step
        bits = str(fields.get("contributors", {}).get(self.peer, "0"))
        self._microbatches.labels(str(stage), "committed").inc(len(members_of(bits)))


_NOTED = {
    "voided": ("voids", "Steps voided."),
    "lost": ("losses", "Losses declared."),
    "suspected": ("suspicions", "Peers suspected."),
    "rerouted": ("reroutes", "Microbatches rerouted."),
    "forked": ("forks", "Lineages forked."),
    "took_over": ("takeovers", "Times that this node became the coordinator after another one."),
    "refused": ("refusals", "Reports of peers refused."),
    "saved": ("checkpoints", "Stages saved (policy checkpoint)."),
    "shadow": ("shadow_rounds", "Times that all that is kept of another stage was newer than before."),
    "save_failed": ("checkpoint_failures", "Stages that could not be saved."),
    "rolled_back": ("rollbacks", "Times that everybody went back to what was saved."),
    "restore_failed": ("restore_failures", "Saved stages that could not be read back."),
    "evaluation_skipped": ("evaluations_skipped", "Evaluations without all results."),
}


class _StepTimes:
    """When each part of a step began, per stage that this node holds; yields the parts that ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempt: dict[int, tuple[int, int]] = {}
        self._since: dict[int, float] = {}

    def on_command(self, command: Compute | Reduce | Apply) -> dict[str, float]:
        if isinstance(command, Compute):
            work = command.work
            if not work.evaluate and self._attempt.get(work.stage) != (work.step, work.attempt):
                self._attempt[work.stage] = (work.step, work.attempt)
                self._since[work.stage] = self._clock.monotonic()
            return {}
        return self._lap(command.stage, "forward_backward" if isinstance(command, Reduce) else "commit")

    def on_event(self, event: Reduced | Applied) -> dict[str, float]:
        return self._lap(event.stage, "reduce" if isinstance(event, Reduced) else "apply")

    def _lap(self, stage: int, phase: str) -> dict[str, float]:
        before, now = self._since.get(stage), self._clock.monotonic()
        self._since[stage] = now
        return {} if before is None else {phase: now - before}
