"""Dataclasses of this package as plain JSON values: for logs, for replays, for comparing in tests."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

CLASS = "$"
"""Key of the class name; no field can have it."""


def to_plain(value: object) -> Any:
    """Dataclasses, at any depth, as dictionaries with their class name under `$`; tuples as lists; the rest as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {CLASS: type(value).__name__} | {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    return value
