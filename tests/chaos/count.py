"""What the event logs of everybody say after a storm, those of killed nodes included."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.chaos.rig import NUM_MICROBATCHES
from tests.chaos.storm import Storm
from tests.tools import tally
from tests.tools.tally import Logs

MOST_SHOWN = 20
CLEAN = ("lost_microbatches", "doubled_microbatches", "digest_mismatches", "orphans", "violations")
"""Figures that must be 0."""


@dataclass(frozen=True)
class Verdict:
    """`figures`: for the JSON line. `findings`: sentences, by the figure that counts them."""

    figures: dict[str, Any]
    findings: dict[str, list[str]]

    @property
    def is_clean(self) -> bool:
        """Nothing was found that must not be."""
        return not any(self.figures[name] for name in CLEAN)


def judge(storm: Storm, goodput: float) -> Verdict:
    """Counts everything; only `goodput` comes from the clock."""
    logs = storm.rig.logs()
    gaps = {node.running.peer: storm.hands.gaps.get(node.name, []) for node in storm.rig.nodes if node.running}
    counted = tally.count_microbatches(logs, NUM_MICROBATCHES, gaps)
    _, unequal = tally.digests(logs)
    loss, contradictions = tally.losses(logs)
    wrong = [*storm.violations, *tally.two_children(logs), *contradictions, *_odd(logs, loss)]
    findings = {
        "lost_microbatches": counted.lost,
        "doubled_microbatches": counted.doubled,
        "digest_mismatches": [*unequal, *storm.unequal],
        "orphans": storm.orphans,
        "violations": wrong,
    }
    figures: dict[str, Any] = {"steps": max(loss, default=0)} | {name: len(found) for name, found in findings.items()}
    figures |= {
        "goodput": round(goodput, 3),
        "faults_fired": dict(sorted(storm.fired.items())),
        "withheld": dict(sorted(storm.withheld.items())),
        "recoveries": recoveries(logs),
        "takeovers": sum(event["type"] == "took_over" for events in logs.values() for event in events),
        "longest_pause_s": round(storm.longest_pause_s, 1),
        "slopes": storm.gauges.slopes(),
    }
    return Verdict(figures, findings)


def _odd(logs: Logs, loss: dict[int, float]) -> list[str]:
    """A step of which nobody noted the loss, one whose loss is no number, and lineages that parted."""
    missing = sorted(set(range(1, max(loss, default=0) + 1)) - loss.keys())
    found = [f"nobody noted the losses of steps {missing}"] if missing else []
    found += [
        f"the loss of step {step} is {value}"
        for step, value in loss.items()
        if not isinstance(value, float) or not math.isfinite(value)
    ]
    return found + [
        f"{peer} forked at step {e['step']}" for peer, events in logs.items() for e in events if e["type"] == "forked"
    ]


def recoveries(logs: Logs) -> dict[str, int]:
    """How many stages came back, by rung; each once, whoever tells."""
    told = {
        (event["stage"], event["step"], event["rung"])
        for events in logs.values()
        for event in events
        if event["type"] == "recovered"
    }
    return dict(sorted(Counter(rung for _, _, rung in told).items()))
