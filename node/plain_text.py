"""Strangers' text on our terminal: no escape sequences, no endless lines."""

from __future__ import annotations

MAX_CHARS = 2000


def printable(text: object, limit: int = MAX_CHARS) -> str:
    """`text` in one line of at most `limit` characters, what cannot be printed as `?`."""
    if isinstance(text, str) and len(text) <= limit and text.isprintable():
        return text
    shown = "".join(char if char.isprintable() else "?" for char in str(text)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
