"""The organiser's orders (pause, resume, stop): what is signed, and when an order must not be obeyed."""

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
