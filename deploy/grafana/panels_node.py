"""Dashboards of a node and of recoveries; see `panels.py`."""

from __future__ import annotations

from deploy.grafana.panels import PEER, RUN, STAGE, Board, Panel, Query, Row, both, grown, one, rate

NODE = Board(
    "regrow-node",
    "Regrow: node",
    "One node, or some: what they do, what it costs them, what they get done.",
    ("run", "stage", "peer"),
    (
        Row(
            "What it does",
            (
                Panel(
                    "Phase",
                    "timeline",
                    one(f"max by (peer, phase) (regrow_phase{{{PEER}}}) == 1", "{{peer}} {{phase}}"),
                    "none",
                    "What the node says it is doing.",
                    12,
                    words=(("1", "yes", "green"),),
                ),
                Panel("Step", "stat", one(f"regrow_step{{{PEER}}}", "{{peer}}"), "none", "The last one it knows.", 4),
                Panel("Seats", "line", one(f"regrow_seats{{{PEER}}}", "{{peer}} {{role}}"), "none", "Stages held, by role.", 4),
                Panel(
                    "Loss",
                    "line",
                    both(
                        Query(f"regrow_loss{{{PEER}}}", "training {{peer}}"),
                        Query(f"regrow_validation_loss{{{PEER}}}", "validation {{peer}}"),
                    ),
                    "none",
                    "As this node knows it.",
                    4,
                ),
            ),
        ),
        Row(
            "Work",
            (
                Panel(
                    "Parts of a step",
                    "stack",
                    one(f"run_peer:regrow_step_phase_seconds:mean5m{{{PEER}}}", "{{peer}} {{phase}}"),
                    "s",
                    "Mean over five minutes: forward and backward, reduce, commit, apply.",
                ),
                Panel(
                    "Computing",
                    "stack",
                    one(rate("regrow_compute_seconds_total", PEER), "{{peer}} {{op}}"),
                    "percentunit",
                    "Part of the time spent in each pass.",
                ),
                Panel(
                    "Time of a pass",
                    "line",
                    one(
                        rate("regrow_compute_seconds_total", PEER) + " / " + rate("regrow_computations_total", PEER),
                        "{{peer}} {{op}}",
                    ),
                    "s",
                    "Of one microbatch.",
                ),
                Panel(
                    "Microbatches",
                    "line",
                    one(f"sum by (peer, outcome) ({rate('regrow_microbatches_total', PEER)})", "{{peer}} {{outcome}}"),
                    "ops",
                    "Committed ones counted.",
                ),
                Panel(
                    "Share of the work",
                    "line",
                    one(f"regrow_work_share_ratio{{{PEER}}}", "{{peer}}"),
                    "percentunit",
                    "Of the swarm's, since the node has a seat.",
                ),
                Panel(
                    "Contribution",
                    "line",
                    both(
                        Query(f"regrow_contributed_tokens_total{{{PEER}}}", "tokens {{peer}}"),
                        Query(f"regrow_contributed_steps_total{{{PEER}}}", "steps {{peer}}"),
                    ),
                    "short",
                    "Since its start.",
                ),
            ),
        ),
        Row(
            "Wire",
            (
                Panel(
                    "Bytes by kind",
                    "stack",
                    one(f"sum by (kind, direction) ({rate('regrow_wire_bytes_total', PEER)})", "{{direction}} {{kind}}"),
                    "Bps",
                ),
                Panel(
                    "Link",
                    "line",
                    both(
                        Query(f"run_peer:regrow_wire_bytes:rate1m{{{PEER}}}", "{{peer}} {{direction}}"),
                        Query(f"regrow_link_peak_bytes_per_second{{{PEER}}}", "{{peer}} best second {{direction}}"),
                        Query(f"regrow_upload_limit_bytes_per_second{{{PEER}}}", "{{peer}} limit"),
                    ),
                    "Bps",
                    "Against the best second so far and --max-upload-mbit.",
                ),
                Panel(
                    "Link in use",
                    "line",
                    one(f"run_peer:regrow_sending:ratio5m{{{PEER}}}", "{{peer}}"),
                    "percentunit",
                    "Part of the time in which something was on its way out; near 1 the link is the bottleneck.",
                ),
                Panel("Queues", "line", one(f"regrow_queue_length{{{PEER}}}", "{{peer}} {{queue}}"), "short", "What waits."),
                Panel(
                    "Control messages",
                    "line",
                    one(f"sum by (peer, direction) ({rate('regrow_messages_total', PEER)})", "{{peer}} {{direction}}"),
                    "ops",
                ),
                Panel(
                    "Streams in trouble",
                    "line",
                    one(grown("regrow_stream_events_total", PEER), "{{peer}} {{event}}"),
                    "none",
                    "Failed dials, breaks, refusals.",
                ),
            ),
        ),
        Row(
            "Machine",
            (
                Panel(
                    "Memory",
                    "line",
                    both(
                        Query(f"process_resident_memory_bytes{{{PEER}}}", "{{peer}} process"),
                        Query(f"regrow_payload_bytes{{{PEER}}}", "{{peer}} activations and gradients"),
                        Query(f"regrow_payload_peak_bytes{{{PEER}}}", "{{peer}} most of those"),
                        Query(f"regrow_available_memory_bytes{{{PEER}}}", "{{peer}} left on the machine"),
                    ),
                    "bytes",
                ),
                Panel(
                    "Stages held",
                    "stack",
                    one(f"regrow_stage_bytes{{{PEER}}}", "{{peer}} {{role}}"),
                    "bytes",
                    "Weights and moments.",
                ),
                Panel("GPU memory", "stack", one(f"regrow_gpu_memory_bytes{{{PEER}}}", "{{peer}} {{state}}"), "bytes"),
                Panel("CPU", "line", one(rate("process_cpu_seconds_total", PEER), "{{peer}}"), "none", "Cores."),
                Panel("Disk left", "line", one(f"regrow_state_dir_free_bytes{{{PEER}}}", "{{peer}}"), "bytes"),
                Panel(
                    "Clock",
                    "line",
                    one(f"regrow_clock_offset_seconds{{{PEER}}}", "{{peer}}"),
                    "s",
                    "Against the peer it was last compared with.",
                ),
            ),
        ),
        Row(
            "Health",
            (
                Panel(
                    "Event loop",
                    "line",
                    one(
                        f"histogram_quantile(0.99, sum by (peer, le) ({rate('regrow_event_loop_lag_seconds_bucket', PEER)}))",
                        "{{peer}}",
                    ),
                    "s",
                    "99 of 100 ticks come no later than this.",
                ),
                Panel(
                    "Peers",
                    "line",
                    one(f"regrow_peers{{{PEER}}}", "{{peer}} {{state}}"),
                    "none",
                    "Heard, or silent.",
                ),
                Panel("Lease", "line", one(f"regrow_lease_age_seconds{{{PEER}}}", "{{peer}}"), "s", "Since it was stored."),
                Panel(
                    "Refused",
                    "line",
                    both(
                        Query(grown("regrow_refused_tensors_total", PEER), "{{peer}} tensors {{fault}}"),
                        Query(grown("regrow_refusals_total", PEER), "{{peer}} reports"),
                    ),
                    "none",
                ),
                Panel(
                    "Work that failed",
                    "line",
                    one(grown("regrow_command_failures_total", PEER), "{{peer}} {{blame}}"),
                    "none",
                    "By somebody else's fault.",
                ),
                Panel(
                    "Event log",
                    "line",
                    one(f"regrow_event_log_dropped_lines{{{PEER}}}", "{{peer}}"),
                    "none",
                    "Lines that the disk had no room for.",
                ),
            ),
        ),
    ),
)

PHASE_MEAN = (
    f"sum by (phase) (regrow_recovery_seconds_sum{{{RUN}}}) / (sum by (phase) (regrow_recovery_seconds_count{{{RUN}}}) > 0)"
)
RECOVERY = Board(
    "regrow-recovery",
    "Regrow: recovery",
    "What was lost, by which rung it came back, of what it was made, how long each part took.",
    ("run", "stage", "peer"),
    (
        Row(
            "Lost and found",
            (
                Panel(
                    "Stages",
                    "timeline",
                    one(f"regrow_swarm_stage_lost{{{STAGE}}}", "stage {{stage}}"),
                    "none",
                    "Held or lost.",
                    12,
                    words=(("0", "held", "green"), ("1", "lost", "red")),
                ),
                Panel(
                    "Recoveries",
                    "line",
                    one(f"sum by (rung) (regrow_swarm_recoveries_total{{{RUN}}})", "{{rung}}"),
                    "none",
                    "So far, by rung.",
                    6,
                ),
                Panel(
                    "Within an hour",
                    "bars",
                    one(f"run:regrow_recoveries:increase1h{{{RUN}}}", "{{rung}}"),
                    "none",
                    "By rung.",
                    6,
                ),
            ),
        ),
        Row(
            "How it came back",
            (
                Panel(
                    "Coefficients",
                    "bars",
                    one(f"regrow_swarm_recovery_coefficient{{{STAGE}}}", "stage {{stage}} of {{source}}"),
                    "none",
                    "What the last rebuilt stage was made of.",
                ),
                Panel(
                    "Time of each part",
                    "bars",
                    one(PHASE_MEAN, "{{phase}}"),
                    "s",
                    "Mean over all recoveries so far.",
                ),
                Panel(
                    "Slowest parts",
                    "bars",
                    one(
                        f"histogram_quantile(0.95, sum by (phase, le) (regrow_recovery_seconds_bucket{{{RUN}}}))",
                        "{{phase}}",
                    ),
                    "s",
                    "19 of 20 were no longer.",
                ),
                Panel(
                    "Loss around it",
                    "line",
                    both(
                        Query(f"regrow_swarm_loss{{{RUN}}}", "training"),
                        Query(f"regrow_swarm_validation_loss{{{RUN}}}", "validation"),
                    ),
                    "none",
                    "What the loss of a stage cost in learning.",
                    16,
                ),
                Panel(
                    "Commits",
                    "line",
                    one(f"regrow_swarm_commit_age_seconds{{{RUN}}}", "since the last"),
                    "s",
                    "How long training stood still.",
                ),
            ),
        ),
        Row(
            "What led to it",
            (
                Panel(
                    "Suspicions and losses",
                    "line",
                    both(
                        Query(f"sum by (run) (regrow_suspicions_total{{{RUN}}})", "suspected"),
                        Query(f"max by (run) (regrow_losses_total{{{RUN}}})", "lost"),
                    ),
                    "none",
                ),
                Panel(
                    "Steps run again",
                    "line",
                    both(
                        Query(f"max by (run) (regrow_voids_total{{{RUN}}})", "voided"),
                        Query(f"max by (run) (regrow_reroutes_total{{{RUN}}})", "microbatches rerouted"),
                    ),
                    "none",
                ),
                Panel(
                    "Coordinators and lineages",
                    "line",
                    both(
                        Query(f"sum by (run) (regrow_takeovers_total{{{RUN}}})", "took over"),
                        Query(f"max by (run) (regrow_forks_total{{{RUN}}})", "forked"),
                    ),
                    "none",
                ),
            ),
        ),
        Row(
            "Kept beside training",
            (
                Panel(
                    "Shadows",
                    "line",
                    both(
                        Query(f"regrow_shadow_age_steps{{{PEER}}}", "{{peer}} steps behind"),
                        Query(grown("regrow_shadow_rounds_total", PEER), "{{peer}} rounds"),
                    ),
                    "none",
                    "Policy shadow: how old what is kept of another stage is.",
                ),
                Panel(
                    "Bytes kept",
                    "line",
                    both(
                        Query(rate("regrow_shadow_bytes_total", PEER), "{{peer}} shadows"),
                        Query(rate("regrow_checkpoint_bytes_total", PEER), "{{peer}} checkpoints"),
                    ),
                    "Bps",
                ),
                Panel(
                    "Checkpoints",
                    "line",
                    both(
                        Query(f"sum by (run) (regrow_checkpoints_total{{{RUN}}})", "saved"),
                        Query(f"sum by (run) (regrow_checkpoint_failures_total{{{RUN}}})", "not saved"),
                        Query(f"max by (run) (regrow_rollbacks_total{{{RUN}}})", "gone back"),
                        Query(f"sum by (run) (regrow_restore_failures_total{{{RUN}}})", "not read back"),
                    ),
                    "none",
                    "Policy checkpoint.",
                ),
            ),
        ),
    ),
)
