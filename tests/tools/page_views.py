"""Made-up runs for the status page: what `/status` of a node would say, and what the page knows besides."""

from __future__ import annotations

import math
import random
from typing import Any

from node.page.chronicle import Chronicle
from node.page.history import History
from node.page.view import Known, View, called, make_view

NAMES = ("anna", "bert", "cleo", "dora", "emil", "frida", "gustav", "hedi", "ivo", "jule", "kurt", "lena")
NOW = 1_790_000_000.0
FEW = ((1, 1, 1, 1, 1, 1), ((0, "passive"), (0, "passive")))
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "שלום\u202egnp.exe",
    "javascript:alert(1)//" + "x" * 10_000,
    "{{7*7}}' onmouseover='alert(1)",
)


def peer_of(number: int) -> str:
    """An id that looks like one."""
    draw = random.Random(number)
    return "Qm" + "".join(draw.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz123456789", k=44))


def status_of(replicas: tuple[int, ...], copies: tuple[tuple[int, str], ...] = (), **changes: Any) -> dict[str, Any]:
    """A training run with so many active replicas at each stage; `copies` are further (stage, role), each at a node of its own.
    Node 0 is the one that tells, and the coordinator."""
    seats = [(stage, "active") for stage, count in enumerate(replicas) for _ in range(count)] + list(copies)
    roster = [{"stage": stage, "peer": peer_of(n), "role": role} for n, (stage, role) in enumerate(seats)]
    me = roster[0]
    view = [{"peer": row["peer"], "stages": [row["stage"]], "phase": "live", "seen_s": 0.2} for row in roster[1:]]
    provenance = {"rung": "recovery", "step": 1180, "bytes": 4_100_000, "transfer_s": 0.9, "from": [peer_of(1), peer_of(2)]}
    sources = [{"stage": 2, "coefficient": 0.44}, {"stage": 4, "coefficient": 0.56}]
    told: dict[str, Any] = {
        "run_id": "sotu-a5105ac8a8eebc40",
        "peer": me["peer"],
        "name": NAMES[0],
        "pid": 1,
        "incarnation": 1,
        "phase": "training",
        "sentence": "training",
        "step": 1204,
        "last_step": 5000,
        "ballot": [3, me["peer"]],
        "loss": 3.412,
        "tokens": 1204 * 16384,
        "validation": {"step": 1200, "loss": 3.52},
        "num_stages": len(replicas),
        "policy": "checkfree_plus",
        "regained": [],
        "roster": roster,
        "view": view,
        "seats": [
            {"stage": me["stage"], "role": "active", "step": 1204, "generation": 1, "state_bytes": 4_100_000}
            | {"provenance": provenance | {"sources": sources}}
        ],
        "contribution": {"steps": 1180, "tokens": 3_000_000, "first_step": 3, "share": 0.17},
    }
    return told | changes


def history_of(steps: int, seed: int = 1) -> History:
    """Curves of a run that has come so far."""
    draw, past, wall = random.Random(seed), History(), NOW - 2.1 * steps
    for step in range(1, steps + 1):
        wall += 2.0 + draw.random() * 0.2
        bump = 0.9 * math.exp(-(step - 800) / 40) if step >= 800 else 0.0
        loss = 3.2 + 6 * math.exp(-step / 160) + bump + draw.gauss(0, 0.05)
        past.note("loss", {"step": step, "value": loss, "tokens": 16384}, wall)
        if step % 50 == 0:
            past.note("validation", {"step": step, "value": loss + 0.12}, wall)
        if step == 800:
            past.note("rebuild", {"step": step, "stage": 3}, wall)
            wall += 14.0
    past.committed_at = NOW - 2.0
    return past


def names_of(count: int) -> dict[str, str]:
    """What so many nodes call themselves."""
    return {peer_of(n): NAMES[n % len(NAMES)] + ("" if n < len(NAMES) else f"-{n // len(NAMES)}") for n in range(count)}


def known_of(status: dict[str, Any], **changes: Any) -> Known:
    """What a page knows besides."""
    facts: dict[str, Any] = {"names": names_of(len(status["roster"])), "tokens_per_s": 7803.0, "seconds_left": 7970.0}
    facts |= {"committed_at": NOW - 2.0, "step_s": 2.1, "counted": (status["step"], NOW - 2.0)}
    facts |= {"received_per_s": 1.4e6, "sent_per_s": 1.55e6}
    return Known(now=NOW, started_at=NOW - 2600, **(facts | changes))


def story_of(names: dict[str, str]) -> list[dict[str, Any]]:
    """A stage is lost and comes back."""
    wall = iter(NOW - x for x in (2480.0, 1010.0, 1008.0, 1007.6, 1006.0, 998.0, 60.0, 21.0, 12.0))
    told = Chronicle(lambda: next(wall), lambda peer: called(peer, names), peer_of(0), lambda _: False)
    told.note("committed", {"step": 3, "contributors": {peer_of(0): "1"}})
    told.silent([peer_of(3)], lambda _: [3], 800)
    told.note("lost", {"stage": 3, "peer": peer_of(3), "silent_s": 3.1, "step": 800})
    told.note("left", {"stage": 3, "peer": peer_of(3), "step": 800})
    sources = [{"stage": 2, "coefficient": 0.44, "state_id": "a"}, {"stage": 4, "coefficient": 0.56, "state_id": "b"}]
    told.note("rebuild", {"stage": 3, "step": 800, "sources": sources, "generation": 1})
    told.note("joined", {"stage": 3, "peer": peer_of(8), "role": "active", "step": 800})
    times = {"detect_s": 3.1, "grace_s": 0.0, "wait_for_newcomer_s": 1.4, "first_commit_s": 2.2}
    told.note("recovered", {"stage": 3, "rung": "recovery", "peer": peer_of(8), "step": 801} | times)
    told.note("joined", {"stage": 2, "peer": peer_of(7), "role": "learner", "step": 1190})
    told.note("voided", {"step": 1199, "reason": "peer ab: stream to 10.1.2.3:28480 broke, see /var/log/x"})
    told.note("joined", {"stage": 2, "peer": peer_of(7), "role": "active", "step": 1201})
    return told.latest()


def small_view(**changes: Any) -> View:
    """Six stages on as many nodes and two copies."""
    status = status_of(*FEW, **changes)
    return make_view(status, history_of(1204).as_json(), story_of(names_of(9)), known_of(status))


def large_view(nodes: int = 200, stages: int = 24) -> View:
    """So many nodes; some suspected, one stage lost, one being rebuilt, hostile names among them."""
    counts = tuple(nodes // stages + (stage < nodes % stages) for stage in range(stages))
    status = status_of(counts)
    peers = {row["peer"]: row for row in status["roster"]}
    lost, made = 7, 11
    status["roster"] = [row for row in status["roster"] if row["stage"] != lost]
    first = next(row for row in status["roster"] if row["stage"] == made)
    status["roster"] = [row for row in status["roster"] if row["stage"] != made or row is first]
    status["regained"] = [{"stage": made, "rung": "recovery", "peer": first["peer"]}]
    for n, row in enumerate(status["view"]):
        row["phase"] = "lapsed" if n % 37 == 5 else "unwatched" if n % 3 else "live"
    names = names_of(nodes) | dict(zip(list(peers)[1:], HOSTILE, strict=False))
    gone = [(lost, peer) for peer, row in peers.items() if row["stage"] == lost]
    return make_view(status, history_of(900).as_json(), story_of(names), known_of(status, names=names, gone=gone))
