"""JSON as everybody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """The same JSON value with null for numbers that JSON does not know."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
