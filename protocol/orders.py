"""The organiser's orders (pause, resume, stop): what is signed, when an order must not be obeyed, and the one that holds.

Every node keeps the newest order that it knows. A Standing carries the coordinator's; whoever knows a newer one sends it. So an
order outlives the coordinator that took it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from protocol.messages import Order

MAX_SERIAL = 2**53
Verify = Callable[[bytes, str], bool]
"""(signed bytes, signature) -> whether the organiser's key made the signature."""


def signed_bytes(run_id: str, action: str, serial: int) -> bytes:
    """What the organiser signs: no order of one run, or signature of another kind, passes as an order of this one."""
    return b"regrow order\n" + json.dumps([run_id, action, serial], separators=(",", ":")).encode()


def refusal(order: Order, run_id: str, last_serial: int, verify: Verify) -> str:
    """Why `order` must not be obeyed; '' if it must. `last_serial`: that of the last order obeyed (0 = none)."""
    if order.action not in ("pause", "resume", "stop"):
        return f"order {str(order.action)[:20]!r} is unknown"
    if not last_serial < order.serial <= MAX_SERIAL:
        return f"order {order.action} has serial {order.serial}, which is not above {last_serial}"
    if not verify(signed_bytes(run_id, order.action, order.serial), order.signature):
        return f"order {order.action} {order.serial} is not signed by the run's organiser"
    return ""


class Orders:
    """The newest order known here. Signatures are checked at the edge. A stop is never taken back."""

    def __init__(self) -> None:
        self.latest: Order | None = None

    @property
    def serial(self) -> int:
        """Of the newest order; 0 = none yet."""
        return self.latest.serial if self.latest else 0

    @property
    def paused(self) -> bool:
        """Is the run to stand still?"""
        return self.latest is not None and self.latest.action == "pause"

    @property
    def stopped(self) -> bool:
        """Is the run to end?"""
        return self.latest is not None and self.latest.action == "stop"

    def take(self, order: Order | None) -> bool:
        """Is it newer than what is known here? Then it holds from now on."""
        if order is None or order.serial <= self.serial or self.stopped:
            return False
        self.latest = order
        return True

    def unknown_to(self, order: Order | None) -> Order | None:
        """What somebody should be told whose newest order is `order`; None if he knows all that is known here."""
        known = order.serial if order else 0
        return self.latest if self.serial > known and not (order and order.action == "stop") else None
