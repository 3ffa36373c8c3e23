"""`/status`: what a node tells about itself, as plain JSON values (docs/contract.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol.sizes import state_bytes

if TYPE_CHECKING:
    from protocol.manifest import Manifest
    from protocol.node_state import NodeState
    from protocol.seat import Seat


def snapshot(state: NodeState, now: float) -> dict[str, Any]:
    """The contract's fields that the decision object knows; the shell adds `pid`."""
    config, chain = state.config, state.chain
    return {
        "run_id": config.manifest.run_id,
        "peer": config.member.peer,
        "incarnation": config.member.incarnation,
        "name": config.name,
        "phase": "leaving" if state.departure.is_on else state.outlook.phase,
        "sentence": state.outlook.sentence,
        "step": chain.step,
        "last_step": config.manifest.last_step,
        "ballot": [state.ballot.term, state.ballot.peer],
        "head": chain.head,
        "loss": chain.loss,
        "tokens": chain.tokens,
        "validation": _validation(state),
        "num_stages": config.manifest.num_stages,
        "seats": [_seat(seat, config.manifest) for _, seat in sorted(state.bench.seats.items())],
        "policy": config.manifest.recovery.policy,
        "regained": [{"stage": s, "rung": r.rung, "peer": r.peer} for s, r in sorted(chain.regained.items())],
        "roster": [{"stage": s.stage, "peer": s.member.peer, "role": s.role} for s in chain.seatings],
        "view": _view(state, now),
    }


def _validation(state: NodeState) -> dict[str, Any] | None:
    step, loss = state.outlook.validation
    return None if step < 0 else {"step": step, "loss": loss}


def _seat(seat: Seat, manifest: Manifest) -> dict[str, Any]:
    facts = seat.state
    return {
        "stage": facts.stage,
        "role": facts.role,
        "phase": str(seat.phase),
        "state_id": facts.state_id,
        "step": facts.step,
        "digest": facts.digest,
        "optimizer_age": facts.optimizer_age,
        "lr_factor": facts.lr_factor,
        "generation": facts.generation,
        "state_bytes": state_bytes(manifest, facts.stage),
        "provenance": facts.provenance,
    }


def _view(state: NodeState, now: float) -> list[dict[str, Any]]:
    """Everybody on the roster and everybody that this node exchanges messages with."""
    chain = state.chain
    stages: dict[str, list[int]] = {}
    for seating in chain.seatings:
        stages.setdefault(seating.member.peer, []).append(seating.stage)
    rows = []
    for peer in sorted({*stages, *state.view.known()} - {state.config.member.peer}):
        heard = state.view.silent_s(peer, now) if peer in state.view.known() else None
        phase = "unwatched" if heard is None else "lapsed" if state.view.lapsed(peer, now) else "live"
        rows.append({"peer": peer, "stages": stages.get(peer, []), "phase": phase, "seen_s": heard})
    return rows
