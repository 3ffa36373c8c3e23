"""Nodes of a run that tell a monitor of themselves: statuses, metrics, leases, as bytes and as they are read."""

from __future__ import annotations

import json
from typing import Any

from node.monitor.exposition import read
from node.monitor.picture import Sighting
from node.monitor.told import read_status
from node.ports import Lease

RUN_ID = "test-0123456789abcdef"
STEP_TOKENS = 256


def lease(peer: str, *stages: int, **changes: Any) -> Lease:
    """A lease that does not run out."""
    told: dict[str, Any] = {
        "peer": peer,
        "incarnation": 1,
        "name": "",
        "address": f"10.0.0.1:{1000 + len(peer)}",
        "http": "",
        "stages": stages,
        "ballot_term": 1,
        "coordinator": False,
        "leaving": False,
        "expires": 1e12,
    }
    return Lease(**(told | changes))


def status(peer: str, step: int = 10, roster: tuple[tuple[int, str, str], ...] = (), **changes: Any) -> dict[str, Any]:
    """What the node tells; by default of a run of three stages."""
    told: dict[str, Any] = {
        "run_id": RUN_ID,
        "peer": peer,
        "incarnation": 1,
        "phase": "training",
        "sentence": "training",
        "step": step,
        "last_step": 1000,
        "ballot": [1, "a"],
        "head": f"h{step}",
        "loss": 4.0 - step / 100,
        "tokens": step * STEP_TOKENS,
        "validation": None,
        "num_stages": 3,
        "seats": [],
        "roster": [{"stage": stage, "peer": holder, "role": role} for stage, holder, role in roster],
        "view": [],
        "version": "0.1.0",
    }
    return told | changes


def metrics(computed: float = 0.0, seconds: float = 0.0, recoveries: float = 0.0, counted: tuple[int, int] = (0, 0)) -> str:
    """Prometheus text; `computed` passes of each kind in `seconds` each; `counted`: microbatches accumulated, committed."""
    ops = ("embed", "head", "embed_backward", "forward", "backward")
    lines = [f'regrow_computations_total{{op="{op}"}} {computed}' for op in ops]
    lines += [f'regrow_compute_seconds_total{{op="{op}"}} {seconds * computed}' for op in ops]
    lines.append(f'regrow_recoveries_total{{rung="recovery"}} {recoveries}')
    for outcome, count in zip(("accumulated", "committed"), counted, strict=True):
        lines.append(f'regrow_microbatches_total{{stage="1",outcome="{outcome}"}} {count}')
    return "\n".join(lines) + "\n"


def sighting(told: dict[str, Any], *stages: int, at: float = 0.0, text: str = "", **changes: Any) -> Sighting:
    """The node as it was seen at `at`."""
    peer = told["peer"]
    read_told = read_status(json.dumps(told).encode(), RUN_ID, peer)
    return Sighting(lease(peer, *stages, **changes), read_told, at, read(text.encode()))
