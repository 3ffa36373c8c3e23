"""The machine's clock: the `Clock` port in production."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """See `node.ports.Clock`."""

    def monotonic(self) -> float:
        """Seconds that only move forward."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
