"""What the page shows, as one JSON object: pure, from a status object, curves, entries and what else is known.

Sections: `mode`, `now`, `run`, `headline`, `warnings`, `pipeline`, `curves`, `events`, `node` (absent where nobody speaks
of itself). Nothing in it is secret, and every text of a peer in it went through `words`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.page.words import listed, mbit, named, provenance, public, short, took
from protocol.ids import PeerId
from protocol.sizes import human_bytes

SHOWN_EVENTS = 60
STALE_STEPS = 20.0
STALE_S = 30.0
"""A commit is late after so many usual steps, and no earlier than after so many seconds."""
UNCOUNTED_STEPS = 5
View = dict[str, Any]
Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Copying:
    """A stage's state on its way to this node."""

    num_bytes: int
    total_bytes: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known besides status, curves and entries; all times are seconds since the epoch."""

    now: float
    started_at: float
    names: Mapping[PeerId, str] = field(default_factory=dict)
    tokens_per_s: float | None = None
    seconds_left: float | None = None
    committed_at: float | None = None
    step_s: float | None = None
    counted: tuple[int, float] | None = None
    """Newest step that this node's work is in, and when it was committed."""
    copying: Mapping[int, Copying] = field(default_factory=dict)
    gone: Sequence[tuple[int, PeerId]] = ()
    """(stage, peer) that were lost a short while ago."""
    suspected: frozenset[PeerId] = frozenset()
    """Peers to whom something could not be sent, and who were not heard since; besides those that `status` says lapsed."""
    received_per_s: float | None = None
    sent_per_s: float | None = None
    """Bytes of streams, over the last minute or less."""


def make_view(status: Status, curves: Mapping[str, Any], events: Sequence[Mapping[str, Any]], known: Known) -> View:
    """The page of the node that `status` is of; of a run, where nobody is meant by its `peer`."""
    stages = pipeline(status, known)
    view: View = {"mode": "node" if status.get("peer") else "monitor", "now": round(known.now, 3)}
    view["run"] = _run(status, known)
    view["headline"] = headline(status, stages, known)
    view["warnings"] = warnings(status, stages, known)
    view["pipeline"] = stages
    view["spares"] = _spares(status, known)
    view["curves"] = dict(curves)
    view["events"] = [dict(event) for event in events][-SHOWN_EVENTS:]
    if status.get("peer"):
        view["node"] = _node(status, known)
    return view


# ---- the run


def _run(status: Status, known: Known) -> View:
    validation = status.get("validation") or {}
    return {
        "id": named(status.get("run_id") or ""),
        "phase": str(status.get("phase") or "starting"),
        "sentence": public(status.get("sentence") or ""),
        "step": status.get("step") or 0,
        "last_step": status.get("last_step") or 0,
        "loss": status.get("loss"),
        "validation": validation.get("loss"),
        "validation_step": validation.get("step"),
        "tokens": status.get("tokens") or 0,
        "tokens_per_s": known.tokens_per_s and round(known.tokens_per_s, 1),
        "seconds_left": known.seconds_left and round(known.seconds_left),
        "committed_at": known.committed_at,
        "policy": str(status.get("policy") or ""),
        "started_at": known.started_at,
    }


# ---- the pipeline


def pipeline(status: Status, known: Known) -> list[View]:
    """Each stage with its replicas and how it stands: `ok`, `single` (one holder), `strained` (a replica is suspected),
    `suspected` (all holders are), `rebuilding`, `lost`, `open` (not held yet, before the first step)."""
    phases = {str(row.get("peer")): str(row.get("phase")) for row in status.get("view", ())}
    me, leader = status.get("peer"), (status.get("ballot") or [0, ""])[1]
    regained = {row["stage"]: row for row in status.get("regained", ())}
    rows: dict[int, list[View]] = {stage: [] for stage in range(int(status.get("num_stages") or 0))}
    for seating in status.get("roster", ()):
        peer, stage, role = str(seating["peer"]), int(seating["stage"]), str(seating["role"])
        is_made = stage in regained and regained[stage]["peer"] == peer and regained[stage]["rung"] != "promotion"
        told = "lapsed" if peer in known.suspected else phases.get(peer, "")
        state = "live" if peer == me else {"lapsed": "suspected", "unwatched": "unwatched"}.get(told, "live")
        state = "rebuilding" if is_made and state != "suspected" else state
        rows.setdefault(stage, []).append(_replica(peer, role, state, peer == me, peer == leader, known))
    for stage, peer in known.gone:
        if all(replica["id"] != short(peer) for replica in rows.get(stage, ())):
            rows.setdefault(stage, []).append(_replica(peer, "", "lost", False, False, known))
    is_new = not status.get("step")
    return [_stage(stage, replicas, regained.get(stage), is_new) for stage, replicas in sorted(rows.items())]


def _replica(peer: PeerId, role: str, state: str, is_me: bool, leads: bool, known: Known) -> View:
    return {
        "id": short(peer),
        "name": named(known.names.get(peer, "")),
        "role": role,
        "state": state,
        "me": is_me,
        "leads": leads,
    }


def _stage(stage: int, replicas: list[View], regain: Mapping[str, Any] | None, is_new: bool) -> View:
    holders = [r for r in replicas if r["role"] in ("active", "passive", "parked")]
    suspected = [r for r in replicas if r["state"] == "suspected"]
    if any(r["state"] == "rebuilding" for r in replicas):
        state, rung = "rebuilding", str((regain or {}).get("rung", "")).replace("_", " ")
        note = "being rebuilt from its neighbours" if rung == "recovery" else f"coming back: {rung}"
    elif not holders:
        state, note = ("open", "nobody holds it yet") if is_new else ("lost", "nobody holds it")
    elif all(r["state"] == "suspected" for r in holders):
        state, note = "suspected", "nothing is heard of whoever holds it"
    elif suspected:
        state, note = "strained", f"{len(suspected)} of its replicas {'is' if len(suspected) == 1 else 'are'} suspected"
    elif len(holders) == 1:
        state, note = "single", "one replica holds it"
    else:
        state, note = "ok", f"{len(holders)} replicas hold it"
    return {"stage": stage, "kind": "block" if stage else "embedding", "state": state, "note": note, "replicas": replicas}


def _spares(status: Status, known: Known) -> list[View]:
    rows = [row for row in status.get("view", ()) if not row.get("stages")]
    live = [str(row["peer"]) for row in rows if row.get("phase") == "live"]
    return [{"id": short(peer), "name": named(known.names.get(peer, ""))} for peer in live]


# ---- the node itself


def headline(status: Status, stages: Sequence[View], known: Known) -> View:
    """Is this node working, and is it counted? `level` is good, idle, warn or bad."""
    phase, sentence = str(status.get("phase") or "starting"), _sentence(status)
    if not status.get("peer"):
        return _headline_of_run(phase, sentence, stages, status, known)
    if phase in ("starting", "waiting", "paused", "finished", "leaving"):
        level, title = {
            "starting": ("idle", "This node is starting."),
            "waiting": ("warn", "This node waits; nothing is computed."),
            "paused": ("idle", "The run is paused by its organiser."),
            "finished": ("good", "The run is finished."),
            "leaving": ("idle", "This node is leaving in order."),
        }[phase]
        return {"level": level, "title": title, "text": sentence}
    if away := _away(stages):
        title = "This node is up; the run gets a stage back."
        return {
            "level": "warn",
            "title": title,
            "text": f"{_stages(away)} not trained at present: {_its(away)} last holder was lost.",
        }
    return _headline_of_seats(status.get("seats", ()), status, known)


def _away(stages: Sequence[View]) -> list[int]:
    return [stage["stage"] for stage in stages if stage["state"] in ("lost", "rebuilding")]


def _headline_of_run(phase: str, sentence: str, stages: Sequence[View], status: Status, known: Known) -> View:
    if phase in ("training", "evaluating"):
        if away := _away(stages):
            return {"level": "warn", "title": "The run gets a stage back.", "text": f"{_stages(away)} not trained at present."}
        if is_late(known):
            return {"level": "warn", "title": "The run stands still.", "text": sentence}
        return {"level": "good", "title": "The run is training.", "text": f"Step {status.get('step', 0):,} is committed."}
    level = {"paused": "idle", "finished": "good", "starting": "idle"}.get(phase, "warn")
    return {"level": level, "title": f"The run is {phase}.", "text": sentence}


def _headline_of_seats(seats: Sequence[Mapping[str, Any]], status: Status, known: Known) -> View:
    roles = {str(seat.get("role")) for seat in seats}
    held = listed([seat.get("stage") for seat in seats])
    of_stage = f"stage{'s' if len(seats) > 1 else ''} {held}"
    if not seats:
        return {
            "level": "idle",
            "title": "This node is ready, and has no stage yet.",
            "text": "The run gives it one when it needs it.",
        }
    if roles == {"learner"}:
        text = f"It copies {of_stage}{_progress(known)}; then it computes, and its work counts."
        return {"level": "idle", "title": "This node is getting ready.", "text": text}
    if "active" not in roles:
        text = f"It holds {of_stage} exactly as those do that compute it: it takes over if they go."
        return {"level": "good", "title": "This node keeps an exact copy.", "text": text}
    if known.counted is None:
        text = f"It holds {of_stage}; the first step with its work is not committed yet."
        return {"level": "idle", "title": "This node is working; nothing is counted yet.", "text": text}
    return _headline_of_work(of_stage, known.counted, status, known)


def _headline_of_work(of_stage: str, counted: tuple[int, float], status: Status, known: Known) -> View:
    step, own = int(status.get("step") or 0), status.get("contribution") or {}
    share = own.get("share")
    part = f" Since it came, {_percent(share)} of the swarm's work was its own." if isinstance(share, int | float) else ""
    if is_late(known):
        text = f"It holds {of_stage}, but no step was committed for a while."
        return {"level": "warn", "title": "This node is up, but the run stands still.", "text": text}
    if step - counted[0] > UNCOUNTED_STEPS:
        text = f"It holds {of_stage}, but its work was last counted in step {counted[0]:,}; the run is at step {step:,}."
        return {"level": "warn", "title": "This node is working, but is not counted at present.", "text": text}
    text = f"It computes {of_stage}, and its part in step {counted[0]:,} is committed.{part}"
    return {"level": "good", "title": "This node is working, and its work counts.", "text": text}


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def _progress(known: Known) -> str:
    done = sum(copy.num_bytes for copy in known.copying.values())
    total = sum(copy.total_bytes for copy in known.copying.values())
    return f" ({human_bytes(done)} of {human_bytes(total)} are here)" if total else ""


def _node(status: Status, known: Known) -> View:
    def name(peer: PeerId) -> str:
        return called(peer, known.names)

    own = status.get("contribution") or {}
    return {
        "id": short(str(status["peer"])),
        "name": named(status.get("name") or ""),
        "incarnation": status.get("incarnation"),
        "seats": [
            _seat(seat, known) | {"how": provenance(seat["stage"], seat["provenance"], name)} for seat in status["seats"]
        ],
        "contribution": {key: own.get(key) for key in ("steps", "tokens", "first_step", "share")},
        "counted_step": known.counted[0] if known.counted else None,
        "counted_at": known.counted[1] if known.counted else None,
        "received": None if known.received_per_s is None else mbit(known.received_per_s),
        "sent": None if known.sent_per_s is None else mbit(known.sent_per_s),
    }


def _seat(seat: Mapping[str, Any], known: Known) -> View:
    copy = known.copying.get(seat["stage"])
    told: View = {key: seat.get(key) for key in ("stage", "role", "step", "generation")}
    told["size"] = human_bytes(seat.get("state_bytes") or 0)
    if copy is not None:
        told["copied"] = round(copy.num_bytes / copy.total_bytes, 3) if copy.total_bytes else 0.0
        left = copy.seconds_left
        told["left"] = took(left) if left is not None and left < 1e6 else ""
    return told


def called(peer: PeerId, names: Mapping[PeerId, str]) -> str:
    """How people call a peer: by its name, if it has one, and the end of its id."""
    name = named(names.get(peer, ""))
    return f"{name} ({peer[-8:]})" if name else peer[-8:] or "nobody"


# ---- what to look at


def is_late(known: Known) -> bool:
    """Has no step been committed for far longer than steps take?"""
    if known.committed_at is None:
        return False
    return known.now - known.committed_at > max(STALE_S, STALE_STEPS * (known.step_s or 0.0))


def warnings(status: Status, stages: Sequence[View], known: Known) -> list[View]:
    """What is not as it should be, and what to do about it: [{"level", "text", "do"}]."""
    found = _of_stages(stages)
    phase = status.get("phase")
    if phase in ("training", "evaluating") and is_late(known):
        late = took(known.now - (known.committed_at or known.now))
        text = f"No step was committed for {late}."
        found.append(_warning("warn", text, "Usually a node is slow or away and the others wait for it; the events say which."))
    if phase == "waiting" and status.get("step") and not found:
        do = "It goes on by itself when what it waits for is there. More nodes help: regrow join."
        found.append(_warning("warn", "Training waits.", do))
    return found


def _sentence(status: Status) -> str:
    """What the node, or the coordinator, says, as a sentence."""
    said = public(status.get("sentence") or "").removeprefix("waiting: ").rstrip(".")
    return said[:1].upper() + said[1:] + "." if said else ""


def _of_stages(stages: Sequence[View]) -> list[View]:
    by_state: dict[str, list[int]] = {}
    for stage in stages:
        by_state.setdefault(stage["state"], []).append(stage["stage"])
    found = []
    if lost := by_state.get("lost"):
        do = "The swarm rebuilds it as soon as a node has room for it. If it stays so, start another node: regrow join."
        found.append(_warning("bad", f"{_stages(lost)} lost: nobody holds {_it(lost)}.", do))
    if suspected := by_state.get("suspected"):
        do = "Within seconds its holder is heard again, or given up and replaced. Nothing to do."
        found.append(_warning("warn", f"{_stages(suspected)} silent: nothing is heard of whoever holds {_it(suspected)}.", do))
    return found


def _stages(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (" and others" if len(numbers) > 8 else "")
    return f"Stage {shown} is" if len(numbers) == 1 else f"Stages {shown} are"


def _it(numbers: Sequence[int]) -> str:
    return "it" if len(numbers) == 1 else "them"


def _its(numbers: Sequence[int]) -> str:
    return "its" if len(numbers) == 1 else "their"


def _warning(level: str, text: str, do: str) -> View:
    return {"level": level, "text": text, "do": do}
