"""The organiser of a swarm of real processes, as a test that has no time for commands."""

from __future__ import annotations

import json
import time
from typing import Literal

from node import http_client
from node.keys import OrganiserKey, sign_order
from tests.tools.swarm import Swarm, wait_for

LIMIT_S = 90.0


class Organiser:
    """Pauses and resumes a run without the time that a command takes to start."""

    def __init__(self, made: Swarm) -> None:
        self._made = made
        self._key = OrganiserKey.load(made.nodes[0].state_dir / "organiser.key")
        self._run_id = str(made.status(made.nodes[0])["run_id"])

    def order(self, *actions: Literal["pause", "resume", "stop"]) -> None:
        """One after the other."""
        address = self._made.running(self._made.nodes[0]).http
        for action in actions:
            signed = sign_order(self._key, self._run_id, action, time.time_ns() // 1000)
            body = json.dumps({"action": signed.action, "serial": signed.serial, "signature": signed.signature}).encode()
            b"".join(http_client.stream(address, "/order", body=body))

    def paused(self, after: int = 0) -> int:
        """The step at which everybody stands still, above `after`."""

        def step() -> int:
            told = [self._made.status(node) for node in self._made.nodes]
            same = {(t.get("phase"), t.get("step")) for t in told} == {("paused", told[0].get("step"))}
            applied = all(seat["step"] == told[0]["step"] for t in told for seat in t.get("seats", ()))
            return int(told[0]["step"]) if same and applied and told[0]["step"] > after else 0

        return int(wait_for("the run is paused", step, LIMIT_S, self._made.situation))
