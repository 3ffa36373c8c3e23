"""Frozen dataclasses of this package as plain JSON values and back: for events.jsonl, for replays, for tests."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any


def to_plain(value: object) -> Any:
    """A dataclass as a dictionary with its class name under `kind`; other values as they are."""
    assert is_dataclass(value) and not isinstance(value, type), f"{value!r} is no dataclass instance"
    return {"kind": type(value).__name__, **asdict(value)}
