"""Waiting for news with a deadline, and what several requests that broke together have to say."""

from __future__ import annotations

import asyncio
import contextlib

from node.ports import PeerError


async def wait_for_news(news: asyncio.Event, seconds: float) -> None:
    """For news, but not for long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()


def first_fault(errors: BaseExceptionGroup[PeerError]) -> PeerError:
    """The first one of a group, however deep."""
    first = errors.exceptions[0]
    return first if isinstance(first, PeerError) else first_fault(first)
