"""Ports that a node listens on: one that its user asked for must be had, a default one that is taken gives way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from node.ports import UnusableError

BAD_USE = 2
T = TypeVar("T")


async def at_port(
    open_at: Callable[[int], Awaitable[T]], port: int, option: str, is_default: bool, say: Callable[[str], None]
) -> T:
    """What `open_at(port)` opens; for a default port that cannot be had, what `open_at(0)` does, and that is said.

    `open_at` raises `UnusableError(2)`, and leaves nothing behind, where the port cannot be had."""
    try:
        return await open_at(port)
    except UnusableError as error:
        if error.code != BAD_USE or not is_default or port == 0:
            raise
    opened = await open_at(0)
    say(f"port {port} is taken on this machine, so a free one is used instead; {option} names another")
    return opened
