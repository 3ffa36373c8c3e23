"""What a node shows to an observer: /status, metrics and events in plain words, made at most twice a second for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.metrics import Metrics
from node.plain_json import finite
from node.ports import Clock
from node.transport.config import Observation, ObserveRequest

FRESH_S = 0.5
MAX_EVENTS = 200
Chronicle = Callable[[int], Sequence[Mapping[str, Any]]]
"""Entries after this serial, oldest first."""
Shown = Callable[[int, int], Mapping[str, Any]]
"""Claims after the first step, and roots after the second one."""


class Observed:
    """`status`, `chronicle` and `proofs` are asked when somebody looks."""

    def __init__(
        self,
        clock: Clock,
        status: Callable[[], Mapping[str, Any]],
        metrics: Metrics,
        chronicle: Chronicle,
        proofs: Shown = lambda *_: {},
    ) -> None:
        self._clock, self._status, self._metrics, self._chronicle, self._proofs = clock, status, metrics, chronicle, proofs
        self._made_at = float("-inf")
        self._told: Mapping[str, Any] = {}
        self._json = b""
        self._text: bytes | None = None

    def show(self, asked: ObserveRequest) -> Observation:
        """One observer's answer."""
        now = self._clock.monotonic()
        if now - self._made_at >= FRESH_S:
            self._told = self._status()
            self._json, self._text, self._made_at = _json(self._told), None, now
        if asked.metrics and self._text is None:
            self._text, _ = self._metrics.render("", self._told)
        events = list(self._chronicle(asked.after))[-MAX_EVENTS:]
        proofs = self._proofs(asked.claims_after, asked.roots_after)
        return Observation(self._json, (self._text or b"") if asked.metrics else b"", _json(events), _json(proofs))


def _json(value: Any) -> bytes:
    return json.dumps(finite(value), separators=(",", ":")).encode()
